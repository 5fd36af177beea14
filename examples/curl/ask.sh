#!/usr/bin/env bash
# Asks over OpenAI's API with curl, and prints the response as it comes: ask.sh [--stream] QUESTION [IMAGE]
# GLIMPSE_URL overrides the gateway's address.
set -euo pipefail
url=${GLIMPSE_URL:-http://127.0.0.1:8080/v1}
stream=false
if [ "${1:-}" = --stream ]; then stream=true && shift; fi
if [ $# -lt 1 ] || [ $# -gt 2 ]; then
    echo "usage: ask.sh [--stream] QUESTION [IMAGE]" >&2
    exit 2
fi
if [ $# = 2 ] && [ ! -r "$2" ]; then
    echo "cannot read $2" >&2
    exit 2
fi

# As JSON: quotes, backslashes and line ends are escaped.
question=${1//\\/\\\\}
question=${question//\"/\\\"}
question=${question//$'\n'/\\n}

# The body goes through a pipe, because an image is too long for an argument.
body() {
    printf '{"messages": [{"role": "user", "content": ['
    if [ $# = 2 ]; then
        printf '{"type": "image_url", "image_url": {"url": "data:image/png;base64,%s"}}, ' "$(base64 <"$2" | tr -d '\n')"
    fi
    printf '{"type": "text", "text": "%s"}]}], "temperature": 0, "max_completion_tokens": 64, "stream": %s}' \
        "$question" "$stream"
}

# An error of the server is JSON too, and is printed; curl then ends with 22.
status=0
body "$@" | curl --silent --no-buffer --fail-with-body --header 'content-type: application/json' --data-binary @- \
    "$url/chat/completions" || status=$?
case $status in
0) echo ;;
22) echo && exit 1 ;;
*)
    echo "no answer from $url: curl ended with $status" >&2
    echo "Is the server running? \`make up\` starts one." >&2
    exit 1
    ;;
esac

"""Asks over Anthropic's API with the anthropic package: python anthropic_client.py [--stream] QUESTION [IMAGE]

GLIMPSE_URL overrides the gateway's address.
"""

import argparse
import base64
import os
import sys
from pathlib import Path
from typing import Any

from anthropic import Anthropic, AnthropicError

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("question")
parser.add_argument("image", nargs="?", type=Path)
parser.add_argument("--stream", action="store_true")
arguments = parser.parse_args()
if arguments.image and not arguments.image.is_file():
    parser.error(f"cannot read {arguments.image}")

content: list[Any] = [{"type": "text", "text": arguments.question}]
if arguments.image:
    data = base64.b64encode(arguments.image.read_bytes()).decode()
    content.insert(0, {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}})
url = os.environ.get("GLIMPSE_URL", "http://127.0.0.1:8080/v1")

try:
    client = Anthropic(base_url=url.removesuffix("/v1"), api_key="none")
    request: dict[str, Any] = {
        "model": client.models.list().data[0].id,
        "messages": [{"role": "user", "content": content}],
        "max_tokens": 64,
        "extra_body": {"temperature": 0},  # which the package no longer has
    }
    with client.messages.stream(**request) as stream:
        if arguments.stream:
            for text in stream.text_stream:
                print(text, end="", flush=True)
            print()
        else:
            print(stream.get_final_text())
except AnthropicError as error:
    sys.exit(f"no answer from {url}: {error}\nIs the server running? `make up` starts one.")

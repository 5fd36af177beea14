"""Asks through Envoy with the OpenAI client: python openai_client.py [--stream] QUESTION [PICTURE]

GLIMPSE_URL overrides the address.
"""

import argparse
import base64
import os
import sys
from pathlib import Path
from typing import Any

from openai import OpenAI

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("question")
parser.add_argument("picture", nargs="?", type=Path)
parser.add_argument("--stream", action="store_true")
arguments = parser.parse_args()

client = OpenAI(base_url=os.environ.get("GLIMPSE_URL", "http://127.0.0.1:8080/v1"), api_key="none")
content: list[Any] = [{"type": "text", "text": arguments.question}]
if arguments.picture:
    url = "data:image/png;base64," + base64.b64encode(arguments.picture.read_bytes()).decode()
    content.insert(0, {"type": "image_url", "image_url": {"url": url}})
request: dict[str, Any] = {
    "model": client.models.list().data[0].id,
    "messages": [{"role": "user", "content": content}],
    "temperature": 0,
    "max_completion_tokens": 64,
}

if arguments.stream:
    for chunk in client.chat.completions.create(**request, stream=True):
        sys.stdout.write(chunk.choices[0].delta.content or "")
        sys.stdout.flush()
else:
    sys.stdout.write(client.chat.completions.create(**request).choices[0].message.content)

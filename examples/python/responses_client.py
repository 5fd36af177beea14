"""Asks over OpenAI's Responses API with the openai package: python responses_client.py [--stream] QUESTION [IMAGE]

GLIMPSE_URL overrides the gateway's address.
"""

import argparse
import base64
import os
import sys
from pathlib import Path
from typing import Any

from openai import OpenAI, OpenAIError

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("question")
parser.add_argument("image", nargs="?", type=Path)
parser.add_argument("--stream", action="store_true")
arguments = parser.parse_args()
if arguments.image and not arguments.image.is_file():
    parser.error(f"cannot read {arguments.image}")

content: list[Any] = [{"type": "input_text", "text": arguments.question}]
if arguments.image:
    data_url = "data:image/png;base64," + base64.b64encode(arguments.image.read_bytes()).decode()
    content.insert(0, {"type": "input_image", "image_url": data_url})
url = os.environ.get("GLIMPSE_URL", "http://127.0.0.1:8080/v1")

try:
    client = OpenAI(base_url=url, api_key="none")
    request: dict[str, Any] = {
        "model": client.models.list().data[0].id,
        "input": [{"role": "user", "content": content}],
        "temperature": 0,
        "max_output_tokens": 64,
    }
    if arguments.stream:
        for event in client.responses.create(**request, stream=True):
            if event.type == "response.output_text.delta":
                print(event.delta, end="", flush=True)
        print()
    else:
        print(client.responses.create(**request).output_text)
except OpenAIError as error:
    sys.exit(f"no answer from {url}: {error}\nIs the server running? `make up` starts one.")

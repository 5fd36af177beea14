"""Asks over gRPC with the glimpse client: python glimpse_client.py [--stream] QUESTION [IMAGE]

GLIMPSE_TARGET overrides the server's address.
"""

import argparse
import os
import sys

from glimpse import Client
from glimpse.client import GlimpseError, Image

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("question")
parser.add_argument("image", nargs="?", help="a path or a URL")
parser.add_argument("--stream", action="store_true")
arguments = parser.parse_args()

prompt = [Image(arguments.image), arguments.question] if arguments.image else arguments.question
target = os.environ.get("GLIMPSE_TARGET", "127.0.0.1:50051")

try:
    with Client(target) as client:
        if arguments.stream:
            for chunk in client.stream(prompt, temperature=0, max_completion_tokens=64):
                print(chunk.text, end="", flush=True)
            print()
        else:
            print(client.chat(prompt, temperature=0, max_completion_tokens=64).text)
except OSError as error:
    parser.error(f"cannot read {error.filename}")
except GlimpseError as error:
    sys.exit(f"no answer from {target}: {error}\nIs the server running? `make up` starts one.")

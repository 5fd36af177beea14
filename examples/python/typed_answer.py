"""Asks what is in an image and gets it as a protobuf message: python typed_answer.py IMAGE

GLIMPSE_TARGET overrides the server's address.
"""

import os
import sys
from typing import Any

import grpc

from glimpse import Client
from glimpse.client import GlimpseError, Image

(image,) = sys.argv[1:] or sys.exit(__doc__)
target = os.environ.get("GLIMPSE_TARGET", "127.0.0.1:50051")
scene_pb2: Any = grpc.protos("scene.proto")  # as protoc generates it; needs grpcio-tools

try:
    with Client(target) as client:
        question = [Image(image), "What is in this image? Answer as JSON."]
        scene = client.chat(question, answer=scene_pb2.Scene, temperature=0)
except GlimpseError as error:
    sys.exit(f"no answer from {target}: {error}\nIs the server running? `make up` starts one.")
for thing in scene.things:
    print(f"{thing.size} {thing.colour} {thing.shape}, {thing.place}")

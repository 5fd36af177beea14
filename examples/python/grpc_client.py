"""Asks over typed gRPC, the picture as plain bytes: python grpc_client.py [--stream] QUESTION [PICTURE]

GLIMPSE_TARGET overrides the address.
"""

import argparse
import os
import sys
from pathlib import Path

import grpc

from glimpse.v1 import chat_pb2, chat_pb2_grpc, content_pb2, generation_pb2

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("question")
parser.add_argument("picture", nargs="?", type=Path)
parser.add_argument("--stream", action="store_true")
arguments = parser.parse_args()

content = [content_pb2.ContentPart(text=arguments.question)]
if arguments.picture:
    source = content_pb2.MediaSource(data=arguments.picture.read_bytes())
    content.insert(0, content_pb2.ContentPart(image=content_pb2.ImagePart(source=source)))
request = chat_pb2.CreateChatCompletionRequest(
    messages=[content_pb2.Message(role=content_pb2.ROLE_USER, content=content)],
    generation=generation_pb2.GenerationOptions(temperature=0, max_completion_tokens=64),
)

with grpc.insecure_channel(os.environ.get("GLIMPSE_TARGET", "127.0.0.1:50051")) as channel:
    chat = chat_pb2_grpc.ChatServiceStub(channel)
    if arguments.stream:
        for chunk in chat.StreamChatCompletion(request):
            sys.stdout.write(chunk.choices[0].delta.content if chunk.choices else "")
            sys.stdout.flush()
    else:
        sys.stdout.write(chat.CreateChatCompletion(request).choices[0].message.content)

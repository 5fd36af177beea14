"""Typed clients of a Glimpse server over gRPC: `Client`, and `AsyncClient` for asyncio.

    with Client("127.0.0.1:50051") as client:
        print(client.chat([Image("photo.png"), "What is in this image?"]).text)

Only grpc and protobuf are imported. Pillow is needed only by callers that pass its images.
"""

from glimpse.client.async_client import AsyncClient
from glimpse.client.client import Client
from glimpse.client.errors import AnswerError, GlimpseError
from glimpse.client.messages import Audio, Document, Image, Message, Video
from glimpse.client.openai_json import OptionError
from glimpse.client.options import (
    ChatOptions,
    CompletionOptions,
    EmbedOptions,
    RerankOptions,
    ScoreOptions,
    TokenizeOptions,
)
from glimpse.client.responses import Chunk, Completion, Embeddings, Ranking, Scores, TextCompletion
from glimpse.client.tls import Tls

__all__ = [
    "AnswerError",
    "AsyncClient",
    "Audio",
    "ChatOptions",
    "Chunk",
    "Client",
    "Completion",
    "CompletionOptions",
    "Document",
    "EmbedOptions",
    "Embeddings",
    "GlimpseError",
    "Image",
    "Message",
    "OptionError",
    "Ranking",
    "RerankOptions",
    "ScoreOptions",
    "Scores",
    "TextCompletion",
    "Tls",
    "TokenizeOptions",
    "Video",
]

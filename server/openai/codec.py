"""OpenAI's JSON for typed messages, generic over message types."""

from glimpse.server.openai.decode import Decoded, decode
from glimpse.server.openai.document import DecodeError
from glimpse.server.openai.encode import encode
from glimpse.server.openai.paths import json_path

__all__ = ["DecodeError", "Decoded", "decode", "encode", "json_path"]

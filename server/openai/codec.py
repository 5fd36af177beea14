"""The OpenAI JSON dialect of typed messages, by their descriptors alone."""

from glimpse.server.openai.decode import Decoded, decode
from glimpse.server.openai.document import DecodeError
from glimpse.server.openai.encode import encode
from glimpse.server.openai.paths import json_path

__all__ = ["DecodeError", "Decoded", "decode", "encode", "json_path"]

"""The OpenAI JSON dialect of typed messages, by their descriptors alone."""

from server.openai.decode import Decoded, decode
from server.openai.document import DecodeError
from server.openai.encode import encode
from server.openai.paths import json_path

__all__ = ["DecodeError", "Decoded", "decode", "encode", "json_path"]

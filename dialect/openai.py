"""OpenAI's dialect, which REST clients of `glimpse.openai.v1` speak."""

from importlib import resources

from glimpse.dialect.rules import Dialect

_FILES = ("openai.txtpb", "openai_responses.txtpb")

OPENAI = Dialect(
    "\n".join(resources.files("glimpse.dialect").joinpath(name).read_text(encoding="utf-8") for name in _FILES)
)
"""OpenAI's dialect: of the messages of glimpse.v1, and of the Responses API's own."""

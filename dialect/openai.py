"""OpenAI's dialect, which REST clients of `glimpse.openai.v1` speak."""

from importlib import resources

from glimpse.dialect.rules import Dialect

OPENAI = Dialect(resources.files("glimpse.dialect").joinpath("openai.txtpb").read_text(encoding="utf-8"))
"""OpenAI's dialect; `openai.txtpb` has its rules."""

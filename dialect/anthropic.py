"""Anthropic's dialect, which REST clients of `glimpse.anthropic.v1` speak."""

from importlib import resources

from glimpse.dialect.rules import Dialect

ANTHROPIC = Dialect(resources.files("glimpse.dialect").joinpath("anthropic.txtpb").read_text(encoding="utf-8"))
"""Anthropic's dialect; `anthropic.txtpb` has its rules."""

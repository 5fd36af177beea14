"""The dialects of the REST API."""

from collections.abc import Mapping

from glimpse.dialect.anthropic import ANTHROPIC
from glimpse.dialect.openai import OPENAI
from glimpse.dialect.rules import Dialect

DIALECTS: Mapping[str, Dialect] = {
    "glimpse.openai.v1.OpenAIService": OPENAI,
    "glimpse.anthropic.v1.AnthropicService": ANTHROPIC,
}
"""Full name of the service whose methods speak it → the dialect."""

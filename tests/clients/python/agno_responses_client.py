"""Agno's agents over the Responses API."""

from agno.models.openai import OpenAIResponses
from agno_client import asks

ASKS = asks(OpenAIResponses, most="max_output_tokens")

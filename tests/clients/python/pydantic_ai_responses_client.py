"""pydantic-ai's agents over the Responses API."""

from pydantic_ai.models.openai import OpenAIResponsesModel
from pydantic_ai_client import asks

ASKS = asks(OpenAIResponsesModel)

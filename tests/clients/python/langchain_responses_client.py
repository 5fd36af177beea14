"""LangChain's ChatOpenAI over the Responses API."""

from langchain_client import asks

ASKS = asks(use_responses_api=True)

"""Clients that the end-to-end tests share."""

from collections.abc import Iterator

import pytest
from openai import OpenAI

from tests.e2e.stack import Stack


@pytest.fixture
def client(stack: Stack) -> Iterator[OpenAI]:
    """OpenAI's own, of the stack with the embedded model."""
    with OpenAI(base_url=stack.openai_url, api_key="none", max_retries=0) as opened:
        yield opened

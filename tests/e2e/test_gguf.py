"""`glimpse up FILE.gguf`: a published checkpoint answers OpenAI's client through Envoy, and gRPC."""

from collections.abc import Iterator

import pytest
from openai import OpenAI

from glimpse.client import Client
from tests.checkpoints.smollm2 import SMOLLM2, needs_smollm2
from tests.e2e.stack import Stack, start_stack

pytestmark = needs_smollm2
QUESTION = "Complete the sentence: The capital of France is"
"""Asked for the capital alone, the first token is a tie in bfloat16, which instruction sets round differently."""


@pytest.fixture(scope="module")
def gguf_stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    served = start_stack(tmp_path_factory.mktemp("gguf"), f"--model={SMOLLM2}", "--kv-cache-bytes=64MiB")
    yield served
    assert served.stop() == 0


def test_openai_client_is_answered(gguf_stack: Stack) -> None:
    with OpenAI(base_url=gguf_stack.openai_url, api_key="none", max_retries=0) as client:
        assert [model.id for model in client.models.list()] == [SMOLLM2.stem]
        completion = client.chat.completions.create(
            model=SMOLLM2.stem, messages=[{"role": "user", "content": QUESTION}], temperature=0, max_tokens=32
        )
    assert completion.choices[0].message.content == "The capital of France is Paris."
    assert completion.choices[0].finish_reason == "stop"


def test_grpc_is_answered(gguf_stack: Stack) -> None:
    with Client(gguf_stack.target) as client:
        assert "Paris" in client.chat(QUESTION, temperature=0, max_tokens=32).text

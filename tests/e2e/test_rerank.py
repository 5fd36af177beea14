"""POST /v1/rerank through Envoy."""

from typing import Any

import pytest

from tests.e2e.requests import RERANK, ask
from tests.e2e.stack import Stack

DOCUMENTS = ["A circle is red.", {"text": "A square is blue."}, "One and two."]


def test_returns_the_best_documents(stack: Stack) -> None:
    answer = ask(stack, RERANK, query="Which shape is red?", documents=DOCUMENTS, top_n=2).body
    scores = [result["relevance_score"] for result in answer["results"]]
    assert len(scores) == 2
    assert 1 >= scores[0] >= scores[1] >= 0
    texts = ["A circle is red.", "A square is blue.", "One and two."]
    assert all(result["document"]["text"] == texts[result["index"]] for result in answer["results"])


@pytest.mark.parametrize(
    ("members", "param"),
    [
        ({"documents": ["a"]}, "query"),
        ({"query": "a"}, "documents"),
        ({"query": "a", "documents": [""]}, "documents[0].text"),
        ({"query": "a", "documents": [{"image": "a"}]}, "documents[0].image"),
        ({"query": "a", "documents": ["word " * 9000]}, "documents[0]"),
        ({"query": "a", "documents": ["a"], "top_n": 0}, "top_n"),
        ({"query": "a", "documents": ["a"], "truncate_prompt_tokens": 3}, "truncate_prompt_tokens"),
    ],
)
def test_refuses_invalid_input_by_field(stack: Stack, members: dict[str, Any], param: str) -> None:
    answer = ask(stack, RERANK, **members)
    assert (answer.status, answer.param) == (400, param), answer.text

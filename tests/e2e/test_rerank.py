"""POST /v1/rerank and /v1/score through Envoy."""

from typing import Any

import pytest
from PIL import Image

from tests.e2e.images import data_url
from tests.e2e.requests import RERANK, SCORE, ask
from tests.e2e.stack import Stack

DOCUMENTS = ["A circle is red.", {"text": "A square is blue."}, "One and two."]


def test_returns_the_best_documents(stack: Stack) -> None:
    answer = ask(stack, RERANK, query="Which shape is red?", documents=DOCUMENTS, top_n=2).body
    scores = [result["relevance_score"] for result in answer["results"]]
    assert len(scores) == 2
    assert 1 >= scores[0] >= scores[1] >= 0
    texts = ["A circle is red.", "A square is blue.", "One and two."]
    assert all(result["document"]["text"] == texts[result["index"]] for result in answer["results"])


def test_a_document_may_be_a_image(stack: Stack) -> None:
    image = {"type": "image_url", "image_url": {"url": data_url(Image.new("RGB", (56, 56), "red"))}}
    pages = [{"content": [image]}, {"content": [image, {"type": "text", "text": "A circle."}]}, "A circle."]
    answer = ask(stack, SCORE, queries="Which shape is red?", documents=pages).body
    assert len({round(each["score"], 6) for each in answer["data"]}) == 3
    assert answer["usage"]["prompt_tokens_details"]["image_tokens"] > 0


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


def test_returns_the_score_of_each_pair(stack: Stack) -> None:
    answer = ask(stack, SCORE, text_1="Which shape is red?", text_2=["A circle is red.", "One and two."]).body
    assert [each["index"] for each in answer["data"]] == [0, 1]
    assert all(0 <= each["score"] <= 1 for each in answer["data"])
    pairs = ask(stack, SCORE, queries=["Which shape is red?"] * 2, documents=["A circle is red.", "One and two."]).body
    assert [each["score"] for each in pairs["data"]] == pytest.approx([each["score"] for each in answer["data"]])
    refused = ask(stack, SCORE, text_1=["a", "b"], text_2=["a", "b", "c"])
    assert (refused.status, refused.param) == (400, "text_1"), refused.text

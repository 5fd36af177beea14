"""What rerankers are asked, and what late interaction makes of vectors."""

import tracemalloc

import numpy as np

from glimpse.engine.checkpoint.families.qwen.qwen3_vl import QWEN3_VL
from glimpse.engine.checkpoint.text.conversation import MediaSlot
from glimpse.engine.checkpoint.text.relevance import AnswerTokens, LateInteraction
from glimpse.media.kind import MediaKind


def test_qwen3_vl_is_asked_in_the_words_of_its_model_card() -> None:
    tokens, image = AnswerTokens(yes=1, no=2, question=QWEN3_VL.rerank_question), MediaSlot(kind=MediaKind.IMAGE)
    _, asked = tokens.messages("a {query}", (image, "b"), "")
    instruction = "Given a search query, retrieve relevant candidates that answer the query."
    assert asked.content == (f"<Instruct>: {instruction}<Query>:a {{query}}\n<Document>:", image, "b")
    _, asked = tokens.messages("a", ("b",), "c")
    assert asked.content == ("<Instruct>: c<Query>:a\n<Document>:b",)


def test_two_long_prompts_are_scored_in_little_memory() -> None:
    draw = np.random.default_rng(0)
    query, document = (draw.standard_normal((4000, 8)).astype("<f4") for _ in range(2))
    expected = (query.astype(np.float64) @ document.T).max(axis=1).sum()
    tracemalloc.start()
    (score,) = LateInteraction(size=8).scores([query.tobytes(), document.tobytes()], 1)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert abs(score - expected) < 1e-3 * expected
    assert peak < 16 << 20  # all products take 64 MB

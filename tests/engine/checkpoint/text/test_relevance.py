"""What rerankers are asked."""

from glimpse.engine.checkpoint.families.qwen.qwen3_vl import QWEN3_VL
from glimpse.engine.checkpoint.text.conversation import MediaSlot
from glimpse.engine.checkpoint.text.relevance import AnswerTokens
from glimpse.media.kind import MediaKind


def test_qwen3_vl_is_asked_in_the_words_of_its_model_card() -> None:
    tokens, image = AnswerTokens(yes=1, no=2, question=QWEN3_VL.rerank_question), MediaSlot(kind=MediaKind.IMAGE)
    _, asked = tokens.messages("a {query}", (image, "b"), "")
    instruction = "Given a search query, retrieve relevant candidates that answer the query."
    assert asked.content == (f"<Instruct>: {instruction}<Query>:a {{query}}\n<Document>:", image, "b")
    _, asked = tokens.messages("a", ("b",), "c")
    assert asked.content == ("<Instruct>: c<Query>:a\n<Document>:b",)

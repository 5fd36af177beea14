"""Parses the queries and documents that callers of `LLM` score, and makes scores of the logits of the answers."""

from collections.abc import Sequence

from glimpse.engine.checkpoint.text.relevance import TEMPLATE_OPTIONS, relevance_messages, relevance_score
from glimpse.offline.fields import InputError
from glimpse.offline.prompt_inputs import OfflineRequest
from glimpse.offline.run import EmbeddingOutput, RerankOutput, ScoreOutput
from glimpse.server.request import Conversation


def parse_pairs(queries: object, documents: object, instruction: object) -> list[OfflineRequest]:
    """Returns a prompt for each pair: one query with each document, or each query with the document at its place.

    Raises:
        InputError: there are other than texts, or the numbers of queries and documents do not fit.
    """
    if not isinstance(instruction, str | None):
        raise InputError("instruction", f"expected a text, got {type(instruction).__name__}")
    firsts, seconds = _texts(queries, "queries"), _texts(documents, "documents")
    if len(firsts) not in (1, len(seconds)):
        raise InputError("queries", f"expected 1, or {len(seconds)} as there are documents, got {len(firsts)}")
    if len(firsts) != len(seconds):
        firsts *= len(seconds)
    return [
        OfflineRequest(
            prompt=Conversation(
                messages=relevance_messages(query, document, instruction or ""), media=[], options=TEMPLATE_OPTIONS
            ),
            media=(),
            field=f"documents[{index}]",
        )
        for index, (query, document) in enumerate(zip(firsts, seconds, strict=True))
    ]


def parse_query(query: object) -> str:
    """Returns the only query. Raises InputError if it is not a text."""
    if not isinstance(query, str) or not query:
        raise InputError("query", f"expected a text, got {query!r}")
    return query


def score_outputs(outputs: Sequence[EmbeddingOutput]) -> list[ScoreOutput]:
    """Returns the scores of pairs. The embeddings are the logits of "yes" and of "no"."""
    return [
        ScoreOutput(
            prompt_token_ids=each.prompt_token_ids,
            score=relevance_score(*each.embedding.tolist()),
            num_cached_tokens=each.num_cached_tokens,
        )
        for each in outputs
    ]


def best_first(documents: Sequence[str], scores: Sequence[ScoreOutput], top_n: int | None) -> list[RerankOutput]:
    """Returns the best documents in descending order; those with equal scores keep theirs."""
    order = sorted(range(len(scores)), key=lambda index: -scores[index].score)
    return [
        RerankOutput(index=index, document=documents[index], relevance_score=scores[index].score)
        for index in order[:top_n]
    ]


def _texts(values: object, field: str) -> list[str]:
    """Returns one text or several as a list."""
    if isinstance(values, str):
        return _texts([values], field)
    if not isinstance(values, Sequence) or not values:
        raise InputError(field, "expected a text, or a list of texts")
    texts: list[str] = []
    for index, text in enumerate(values):
        if not isinstance(text, str) or not text:
            raise InputError(f"{field}[{index}]", f"expected a text, got {text!r}")
        texts.append(text)
    return texts

"""How well a document answers a query: the prompt of which the model says "yes" or "no", and the score of its answer;
or for late interaction, a prompt for each of both, and the score of their tokens' vectors.

The prompts that are answered are those of the model cards of Qwen3-Reranker and Qwen3-VL-Reranker, rendered by the
checkpoint's chat template.
"""

import math
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from glimpse.engine.checkpoint.families.registry import family_of
from glimpse.engine.checkpoint.families.spec import RerankQuestion
from glimpse.engine.checkpoint.model_config.model import ModelConfig
from glimpse.engine.checkpoint.text.conversation import ChatMessage, MediaSlot, TemplateOptions
from glimpse.engine.checkpoint.text.tokenizer import Tokenizer
from glimpse.engine.protocol.pooling_params import PoolingMode, PoolingParams

QUERY_OPTIONS = TemplateOptions(add_generation_prompt=False, template_kwargs={"is_query": True})
"""Options of the template with which models for late interaction render a query rather than a document."""
TEMPLATE_OPTIONS = TemplateOptions(template_kwargs={"enable_thinking": False})
"""Without the variable, the template of a model that can reason would let it reason first."""
NO_ANSWER_TOKENS = 'the model cannot rerank: its tokenizer has no single tokens for "yes" and "no"'
"""The error of a model for which `find_relevance` finds none."""
_SYSTEM = (
    "Judge whether the Document meets the requirements based on the Query and the Instruct provided. "
    'Note that the answer can only be "yes" or "no".'
)
_ANSWERS = (("yes", "no"), ("Yes", "No"))
"""Spellings of the answers, the first of which is used whose words are single tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerTokens:
    """The tokens of the two answers, and the question."""

    yes: int
    no: int
    question: RerankQuestion

    @property
    def pooling(self) -> PoolingParams:
        """Pooling of a prompt: the logits of "yes" and of "no" as the next token."""
        return PoolingParams(token_ids=(self.yes, self.no))

    def messages(self, query: str, document: Iterable[str | MediaSlot], instruction: str) -> tuple[ChatMessage, ...]:
        """Returns the conversation in which the model is asked. Special tokens in the texts are text."""
        asked = self.question.text.format(instruction=instruction or self.question.instruction, query=query)
        first, *others = document
        content = (asked + first, *others) if isinstance(first, str) else (asked, first, *others)
        return ChatMessage(role="system", content=(_SYSTEM,)), ChatMessage(role="user", content=content)

    def scores(self, pooled: Sequence[bytes], num_documents: int) -> list[float]:
        """Returns the score of each document, from the pooled logits of its prompt."""
        return [relevance_score(*struct.unpack("<2f", logits)) for logits in pooled[-num_documents:]]


@dataclass(frozen=True, slots=True, kw_only=True)
class LateInteraction:
    """Scores by the vectors of tokens (ColBERT, arXiv 2004.12832)."""

    size: int
    """Values of a vector."""

    @property
    def pooling(self) -> PoolingParams:
        return PoolingParams(mode=PoolingMode.TOKEN)

    def scores(self, pooled: Sequence[bytes], num_documents: int) -> list[float]:
        """Returns the score of each document.

        Args:
            pooled: vectors of the queries, one or as many as documents, and then of the documents, as float32.
        """
        matrices = [np.frombuffer(vectors, dtype="<f4").reshape(-1, self.size) for vectors in pooled]
        queries, documents = matrices[:-num_documents], matrices[-num_documents:]
        pairs = zip(queries * (num_documents // len(queries)), documents, strict=True)
        return [_max_sim(query, document) for query, document in pairs]


Matrix: TypeAlias = npt.NDArray[np.float32]
_MOST_PRODUCTS = 1 << 20
"""Products that are in memory at a time: those of all tokens of two long prompts take gigabytes."""


def _max_sim(query: Matrix, document: Matrix) -> float:
    """Returns the sum of each query token's largest product with a document token's vector: [tokens, size] each."""
    num_rows = max(1, _MOST_PRODUCTS // len(document))
    starts = range(0, len(query), num_rows)
    return sum(float((query[start : start + num_rows] @ document.T).max(axis=1).sum()) for start in starts)


Relevance: TypeAlias = AnswerTokens | LateInteraction


def find_relevance(model: ModelConfig, tokenizer: Tokenizer) -> Relevance | None:
    """Returns how a model scores documents; None if it cannot, as its tokenizer has no single token for an answer."""
    if model.token_embedding_size is not None:
        return LateInteraction(size=model.token_embedding_size)
    for answers in _ANSWERS:
        match [tokenizer.encode_plain(answer) for answer in answers]:
            case [[yes], [no]]:
                return AnswerTokens(yes=yes, no=no, question=family_of(model).rerank_question)
            case _:
                pass
    return None


def relevance_score(yes: float, no: float) -> float:
    """Returns the probability of "yes" against "no" from their logits: exp(yes) / (exp(yes) + exp(no))."""
    odds = math.exp(-abs(yes - no))
    return 1 / (1 + odds) if yes > no else odds / (1 + odds)

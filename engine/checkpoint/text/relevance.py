"""How well a document answers a query: the prompt of which the model says "yes" or "no", and the score of its answer.

The prompts are those of Qwen3-Reranker's model card (arXiv 2506.05176), rendered by the checkpoint's chat template.
"""

import math
from dataclasses import dataclass

from glimpse.engine.checkpoint.text.conversation import ChatMessage, TemplateOptions
from glimpse.engine.checkpoint.text.tokenizer import Tokenizer
from glimpse.engine.protocol.pooling_params import PoolingParams

DEFAULT_INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"
TEMPLATE_OPTIONS = TemplateOptions(template_kwargs={"enable_thinking": False})
"""Without the variable, the template of a model that can reason would let it reason first."""
NO_ANSWER_TOKENS = 'the model cannot rerank: its tokenizer has no single tokens for "yes" and "no"'
"""The error of a model for which `find_answer_tokens` finds none."""
_SYSTEM = (
    "Judge whether the Document meets the requirements based on the Query and the Instruct provided. "
    'Note that the answer can only be "yes" or "no".'
)
_ANSWERS = (("yes", "no"), ("Yes", "No"))
"""Spellings of the answers, the first of which is used whose words are single tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerTokens:
    """The tokens of the two answers."""

    yes: int
    no: int

    @property
    def pooling(self) -> PoolingParams:
        """Pooling of a prompt: the logits of "yes" and of "no" as the next token."""
        return PoolingParams(token_ids=(self.yes, self.no))


def find_answer_tokens(tokenizer: Tokenizer) -> AnswerTokens | None:
    """Returns the tokens of "yes" and "no"; None if the tokenizer has no single token for one of them."""
    for answers in _ANSWERS:
        match [tokenizer.encode_plain(answer) for answer in answers]:
            case [[yes], [no]]:
                return AnswerTokens(yes=yes, no=no)
            case _:
                pass
    return None


def relevance_messages(query: str, document: str, instruction: str) -> tuple[ChatMessage, ...]:
    """Returns the conversation in which the model is asked. Special tokens in the texts are text."""
    asked = f"<Instruct>: {instruction or DEFAULT_INSTRUCTION}\n<Query>: {query}\n<Document>: {document}"
    return ChatMessage(role="system", content=(_SYSTEM,)), ChatMessage(role="user", content=(asked,))


def relevance_score(yes: float, no: float) -> float:
    """Returns the probability of "yes" against "no" from their logits: exp(yes) / (exp(yes) + exp(no))."""
    odds = math.exp(-abs(yes - no))
    return 1 / (1 + odds) if yes > no else odds / (1 + odds)

"""Parses requests to order documents: a prompt for each, to which the model answers "yes" or "no".

The prompts are those of Qwen3-Reranker's model card (arXiv 2506.05176), rendered by the checkpoint's chat template.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from glimpse.engine.pooling_params import PoolingParams
from glimpse.engine.text.conversation import ChatMessage, TemplateOptions
from glimpse.engine.text.tokenizer import Tokenizer
from glimpse.server.parse.chat import check_bounds
from glimpse.server.request import Conversation, EmbeddingInput, EmbeddingRequest
from glimpse.server.rpc.errors import InvalidRequest
from glimpse.v1 import rerank_pb2

DEFAULT_INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"
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


def find_answer_tokens(tokenizer: Tokenizer) -> AnswerTokens | None:
    """Returns the tokens of "yes" and "no"; None if the tokenizer has no single token for one of them."""
    for answers in _ANSWERS:
        match [tokenizer.encode_plain(answer) for answer in answers]:
            case [[yes], [no]]:
                return AnswerTokens(yes=yes, no=no)
            case _:
                pass
    return None


def parse_rerank(request: rerank_pb2.RerankRequest, tokens: AnswerTokens | None) -> EmbeddingRequest:
    """Parses a request into one for the logits of the answers to each document. Raises InvalidRequest."""
    check_bounds(request)
    if tokens is None:
        message = 'the model cannot rerank: its tokenizer has no single tokens for "yes" and "no"'
        raise InvalidRequest("query", message, "unsupported")
    return EmbeddingRequest(
        inputs=tuple(_inputs(request)),
        pooling=PoolingParams(token_ids=(tokens.yes, tokens.no)),
        as_base64=False,
        priority=request.priority,
        cache_salt=request.cache_salt,
    )


def _inputs(request: rerank_pb2.RerankRequest) -> Iterator[EmbeddingInput]:
    instruction = request.instruction or DEFAULT_INSTRUCTION
    # Without it, the template of a model that can reason would let it reason first.
    options = TemplateOptions(template_kwargs={"enable_thinking": False})
    for index, document in enumerate(request.documents):
        field = f"documents[{index}]"
        if not document.text:
            raise InvalidRequest(f"{field}.text", "expected a text, got none", "missing_value")
        asked = f"<Instruct>: {instruction}\n<Query>: {request.query}\n<Document>: {document.text}"
        messages = (ChatMessage(role="system", content=(_SYSTEM,)), ChatMessage(role="user", content=(asked,)))
        yield EmbeddingInput(source=Conversation(messages=messages, media=[], options=options), field=field)

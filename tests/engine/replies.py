"""What the scripted engine answers when prompts say it: the last text between ⟦ and ⟧ of a prompt.

A prompt without one gets a fixed reply, and ⟦cache_salt⟧ the name under which the request is cached. The answer has one
byte per token and a few tokens per step. Their number is drawn from the request's seed, so that characters are cut
anywhere. All tokens have probability 1. Grammars are ignored: the prompt must contain a text that matches. The
embedding of a prompt begins with its number of tokens; all else is 0. A request with ⟦held⟧ gets nothing until it is
cancelled.
"""

import random
import re
import struct
from collections.abc import Iterator
from pathlib import Path

from msgspec.structs import replace

from glimpse.engine.checkpoint.families.registry import load_model_config
from glimpse.engine.checkpoint.text.tokenizer import load_tokenizer
from glimpse.engine.protocol.messages import Embed, FinishReason, Generate, TokenEvent
from glimpse.engine.protocol.messages import TokenLogprobs as Logprobs

NO_REPLY = "I was not told what to say. 🤷"
MARKED = re.compile("⟦(.*?)⟧", re.DOTALL)
CACHE_SALT = "cache_salt"
HELD = "held"
MAX_STEP_TOKENS = 8


def reply_with(text: str) -> str:
    """Returns what a prompt must contain for the engine to answer with `text`."""
    return f"⟦{text}⟧"


class Replies:
    """Answers with tokens of a checkpoint's vocabulary."""

    def __init__(self, checkpoint: Path) -> None:
        self._tokenizer = load_tokenizer(checkpoint)
        ids = range(self._tokenizer.vocab_size)
        spelt = ((token_id, self._tokenizer.token_bytes(token_id)) for token_id in ids)
        self._id_of_byte = {data[0]: token_id for token_id, data in spelt if len(data) == 1}
        model = load_model_config(checkpoint)
        self._end_id = model.eos_token_ids[0]
        self.max_model_len = model.text.max_position_embeddings
        self._hidden_size = model.text.hidden_size

    def answer(self, request: Generate | Embed) -> Iterator[TokenEvent]:
        """Yields the events of a request, in order."""
        marked = (MARKED.findall(self._tokenizer.decode(request.token_ids)) or [NO_REPLY])[-1]
        if marked == HELD:
            return
        if isinstance(request, Embed):
            yield self._embed(request)
            return
        text = request.cache_salt if marked == CACHE_SALT else marked
        token_ids = [*(self._id_of_byte[byte] for byte in text.encode()), self._end_id]
        most = min(request.sampling.max_tokens, self.max_model_len - len(request.token_ids))
        draw = random.Random(request.sampling.seed)
        start = 0
        while start < min(len(token_ids), most):
            end = min(start + draw.randint(1, MAX_STEP_TOKENS), len(token_ids), most)
            event = _event(request, token_ids[start:end], _finish(end, len(token_ids), most))
            yield replace(event, prompt_logprobs=_prompt_logprobs(request)) if start == 0 else event
            start = end

    def _embed(self, request: Embed) -> TokenEvent:
        pooling = request.pooling
        length = len(pooling.token_ids) or pooling.dimensions or self._hidden_size
        values = [float(len(request.token_ids))] + [0.0] * (length - 1)
        embedding = struct.pack(f"<{len(values)}f", *values)
        return TokenEvent(request_id=request.request_id, embedding=embedding, finish=FinishReason.STOP)


def _finish(end: int, num_tokens: int, most: int) -> FinishReason | None:
    if end == num_tokens:
        return FinishReason.STOP
    return FinishReason.LENGTH if end == most else None


def _event(request: Generate, token_ids: list[int], finish: FinishReason | None) -> TokenEvent:
    num_top = request.sampling.logprobs
    logprobs = [
        Logprobs(logprob=0.0, top=[(token_id, 0.0)] if num_top else []) for token_id in token_ids if num_top is not None
    ]
    return TokenEvent(request_id=request.request_id, token_ids=token_ids, logprobs=logprobs, finish=finish)


def _prompt_logprobs(request: Generate) -> list[Logprobs]:
    """Returns the scores of a prompt's tokens after the first, if the request asks for them."""
    if request.sampling.prompt_logprobs is None:
        return []
    return [Logprobs(logprob=0.0, top=[(token_id, 0.0)]) for token_id in request.token_ids[1:]]

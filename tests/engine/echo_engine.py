"""An engine that computes nothing and replies with a text from the prompt: `echo_engine.py --fd N`.

It implements the engine's side of the protocol. The answer is the last text between ⟦ and ⟧ in the prompt; a prompt
without one gets a fixed reply, and ⟦cache_salt⟧ the name under which the request is cached. The answer has one byte per
token and a few tokens per step. Their number is drawn from the request's seed, so that characters are cut anywhere. All
tokens have probability 1. Grammars are ignored: the prompt must contain a text that matches. The embedding of a prompt
begins with its number of tokens; all else is 0. A request with ⟦held⟧ gets nothing until it is cancelled: then
HELD_TOKENS tokens of its prompt are computed. Until then it counts as waiting.
"""

import argparse
import random
import re
import socket
import struct
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from msgspec.structs import replace

from glimpse.engine.checkpoint.families.registry import load_model_config
from glimpse.engine.checkpoint.text.tokenizer import load_tokenizer
from glimpse.engine.protocol.config import EngineConfig
from glimpse.engine.protocol.messages import (
    Cancel,
    Embed,
    FinishReason,
    Generate,
    Ready,
    RequestStats,
    Start,
    Step,
    StepStats,
    Stop,
    TokenEvent,
)
from glimpse.engine.protocol.messages import TokenLogprobs as Logprobs
from glimpse.engine.protocol.transport import Channel

NO_REPLY = "I was not told what to say. 🤷"
MARKED = re.compile("⟦(.*?)⟧", re.DOTALL)
CACHE_SALT = "cache_salt"
HELD = "held"
HELD_TOKENS = 1000
STEP_SECONDS = 0.0005
MAX_STEP_TOKENS = 8


def reply_with(text: str) -> str:
    """Returns what a prompt must contain for this engine to answer with `text`."""
    return f"⟦{text}⟧"


class EchoEngine:
    """Answers with tokens of a checkpoint's vocabulary."""

    def __init__(self, config: EngineConfig) -> None:
        checkpoint = Path(config.model_path)
        self._tokenizer = load_tokenizer(checkpoint)
        ids = range(self._tokenizer.vocab_size)
        spelt = ((token_id, self._tokenizer.token_bytes(token_id)) for token_id in ids)
        self._id_of_byte = {data[0]: token_id for token_id, data in spelt if len(data) == 1}
        model = load_model_config(checkpoint)
        self._end_id = model.eos_token_ids[0]
        self.max_model_len = model.text.max_position_embeddings
        self._hidden_size = model.text.hidden_size

    def embed(self, request: Embed) -> TokenEvent:
        """Returns the one event of a request for an embedding."""
        pooling = request.pooling
        length = len(pooling.token_ids) or pooling.dimensions or self._hidden_size
        values = [float(len(request.token_ids))] + [0.0] * (length - 1)
        embedding = struct.pack(f"<{len(values)}f", *values)
        return TokenEvent(request_id=request.request_id, embedding=embedding, finish=FinishReason.STOP)

    def answer(self, request: Generate) -> Iterator[TokenEvent]:
        """Yields the events of a request, in order."""
        token_ids = [*self._answer_ids(request), self._end_id]
        most = min(request.sampling.max_tokens, self.max_model_len - len(request.token_ids))
        draw = random.Random(request.sampling.seed)
        start = 0
        while start < min(len(token_ids), most):
            end = min(start + draw.randint(1, MAX_STEP_TOKENS), len(token_ids), most)
            event = _event(request, token_ids[start:end], _finish(end, len(token_ids), most))
            yield replace(event, prompt_logprobs=_prompt_logprobs(request)) if start == 0 else event
            start = end

    def is_held(self, request: Generate | Embed) -> bool:
        """Whether a request is answered only by its cancellation."""
        return self._marked(request) == HELD

    def _marked(self, request: Generate | Embed) -> str:
        return (MARKED.findall(self._tokenizer.decode(request.token_ids)) or [NO_REPLY])[-1]

    def _answer_ids(self, request: Generate) -> list[int]:
        marked = self._marked(request)
        text = request.cache_salt if marked == CACHE_SALT else marked
        return [self._id_of_byte[byte] for byte in text.encode()]


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


def _cancelled(request_id: str) -> TokenEvent:
    return TokenEvent(
        request_id=request_id, stats=RequestStats(num_computed_prompt_tokens=HELD_TOKENS), finish=FinishReason.CANCELLED
    )


def _step(*events: TokenEvent, num_held: int = 0) -> Step:
    stats = StepStats(
        num_running=1,
        num_waiting=num_held,
        num_used_blocks=1,
        num_prompt_tokens=0,
        num_generated_tokens=sum(len(event.token_ids) for event in events),
        num_cached_tokens=0,
        num_encoded_media=0,
        num_preemptions=0,
        step_seconds=STEP_SECONDS,
    )
    return Step(events=list(events), stats=stats)


def serve(channel: Channel) -> int:
    """Answers one request after the other. Returns the exit status."""
    start = channel.receive()
    assert isinstance(start, Start)
    engine = EchoEngine(start.config)
    channel.send(
        Ready(
            device="none",
            dtype="none",
            max_model_len=engine.max_model_len,
            num_blocks=8,
            block_size=8,
            load_seconds=0.0,
        )
    )
    held: set[str] = set()
    while True:
        match channel.receive():
            case Generate() | Embed() as request if engine.is_held(request):
                held |= {each.request_id for each in (request.each() if isinstance(request, Generate) else [request])}
                channel.send(_step(num_held=len(held)))
            case Generate() as request:
                for event in (event for each in request.each() for event in engine.answer(each)):
                    channel.send(_step(event))
                    time.sleep(STEP_SECONDS)
            case Embed() as request:
                channel.send(_step(engine.embed(request)))
            case Cancel(request_id=request_id) if request_id in held:
                held.remove(request_id)
                channel.send(_step(_cancelled(request_id), num_held=len(held)))
            case Cancel():
                pass  # a request is answered before the next message is read
            case Stop() | None:
                return 0
            case message:
                raise ValueError(message)


def main() -> int:
    """Serves the front end at the other end of the inherited socket."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--fd", type=int, required=True)
    return serve(Channel(socket.socket(fileno=parser.parse_args().fd)))


if __name__ == "__main__":
    sys.exit(main())

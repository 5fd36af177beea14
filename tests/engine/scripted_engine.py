"""An engine that computes nothing and follows a script: `scripted_engine.py SCRIPT… --fd N`.

Each step gives every request in progress its next tokens, `--step-ms` after the step before. With `--starts FILE` the
first start follows the first SCRIPT, the second start the second, and all later ones the last:

    ready    loads and serves; the first part of a request's id decides what it does
    replies  loads the checkpoint's vocabulary and serves; a text in the prompt is the answer, as `replies.py` says
    counts   loads and serves; the answer has as many tokens as the request allows, and their ids count up
    failed   reports that the checkpoint is unusable
    dies     exits while it loads
    hangs    never becomes ready
    until F  as `ready`, once there is a file F

The first part of a request's id:

    echo     returns the prompt, a token per step, then stops
    flood    returns the token 1 FLOOD_TOKENS times
    rank     returns one token, whose id is the request's priority
    who      returns one token, whose id says how many clients sent requests before this one's client first did
    hold     returns one token, then nothing until it is cancelled
    full     is refused, and may be repeated in 7 s
    garble   makes the engine send an invalid message

A request that is cancelled before its first token has computed HELD_TOKENS tokens of its prompt. Until its first token
it counts as waiting.
"""

import argparse
import os
import queue
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from glimpse.engine.errors import overloaded
from glimpse.engine.protocol.messages import (
    Cancel,
    Embed,
    Failed,
    FinishReason,
    Generate,
    LoadAdapter,
    LoadedAdapter,
    Loading,
    Prepare,
    Ready,
    RequestStats,
    Start,
    Step,
    StepStats,
    Stop,
    ToEngine,
    error_event,
)
from glimpse.engine.protocol.messages import TokenEvent as Event
from glimpse.engine.protocol.messages import TokenLogprobs as Logprobs
from glimpse.engine.protocol.transport import Channel

FLOOD_TOKENS = 5000
HELD_TOKENS = 1000
FIRST_COUNTED_ID = 300
COUNTED_IDS = 1000

Answer = Callable[[Generate | Embed], Iterator[Event]]
"""Yields the events of a request, in order. One that ends without a reason to finish is held until it is cancelled."""


class Running:
    """A request in progress."""

    def __init__(self, events: Iterator[Event]) -> None:
        self.events = events
        self.has_begun = False
        self.is_held = False

    def next(self) -> Event | None:
        """Returns its event of a step; None while it is held."""
        event = next(self.events, None)
        self.has_begun |= event is not None
        self.is_held = event is None
        return event

    def cancelled(self, request_id: str) -> Event:
        stats = RequestStats(num_computed_prompt_tokens=0 if self.has_begun else HELD_TOKENS)
        return Event(request_id=request_id, stats=stats, finish=FinishReason.CANCELLED)


class ScriptedEngine:
    def __init__(self, connection: socket.socket, step_seconds: float) -> None:
        self.connection = connection
        self.channel = Channel(connection)
        self.step_seconds = step_seconds
        self.next_step = 0.0
        self.running: dict[str, Running] = {}
        self.inbox: queue.SimpleQueue[ToEngine | None] = queue.SimpleQueue()
        self.clients: dict[str, int] = {}

    def run(self, script: str) -> int:
        """Follows the script. Returns the exit status."""
        while isinstance(first := self.channel.receive(), Prepare):
            pass
        if first is None:
            return 0  # a spare that was not needed
        assert isinstance(first, Start)
        self.channel.send(Loading(stage="reading the script", fraction=0.5))
        match script.split(" ", maxsplit=1):
            case ["ready"]:
                return self.serve(self.by_id)
            case ["replies"]:
                from tests.engine.replies import Replies  # noqa: PLC0415 - takes half a second

                replies = Replies(Path(first.config.model_path))
                return self.serve(replies.answer, max_model_len=replies.max_model_len)
            case ["counts"]:
                return self.serve(_counting, max_model_len=8192, num_blocks=4096, block_size=32)
            case ["failed"]:
                self.channel.send(Failed(message="the script says that it fails"))
                return 1
            case ["dies"]:
                return 3
            case ["hangs"]:
                while isinstance(self.channel.receive(), Generate | Cancel):
                    pass
                return 0
            case ["until", file]:
                while not Path(file).exists():
                    time.sleep(0.01)
                return self.serve(self.by_id)
            case _:
                raise ValueError(script)

    def serve(self, answer: Answer, *, max_model_len: int = 64, num_blocks: int = 8, block_size: int = 8) -> int:
        """Answers until it receives Stop."""
        self.channel.send(
            Ready(
                device="none",
                dtype="none",
                max_model_len=max_model_len,
                num_blocks=num_blocks,
                block_size=block_size,
                load_seconds=0.0,
            )
        )
        threading.Thread(target=self._receive, daemon=True).start()
        while True:
            try:
                message = self.inbox.get(timeout=self._pause())
            except queue.Empty:
                self.step()
                continue
            match message:
                case Generate() | Embed() as request:
                    for each in request.each() if isinstance(request, Generate) else [request]:
                        self.running[each.request_id] = Running(answer(each))
                case Cancel(request_id=request_id):
                    self.cancel(request_id)
                case LoadAdapter(request_id=request_id, name=name, path=path):
                    adapters = {name: LoadedAdapter(digest=b"d", path=path)}
                    self.tell([Event(request_id=request_id, finish=FinishReason.STOP)], adapters)
                case Stop():
                    self.cancel(*self.running)
                    return 0
                case _:
                    return 0 if message is None else 4

    def _receive(self) -> None:
        while message := self.channel.receive():
            self.inbox.put(message)
        self.inbox.put(None)

    def _pause(self) -> float | None:
        """Returns the seconds to the next step; None while no request waits for one."""
        if all(running.is_held for running in self.running.values()):
            return None
        return max(0.0, self.next_step - time.monotonic())

    def step(self) -> None:
        """Gives every request its next tokens."""
        self.next_step = time.monotonic() + self.step_seconds
        events = [event for running in self.running.values() if (event := running.next())]
        for event in events:
            if event.finish is not None:
                del self.running[event.request_id]
        if events or any(not running.has_begun for running in self.running.values()):
            self.tell(events)

    def cancel(self, *request_ids: str) -> None:
        """Ends requests; those that have ended are none of them."""
        ended = {request_id: self.running.pop(request_id) for request_id in request_ids if request_id in self.running}
        self.tell([running.cancelled(request_id) for request_id, running in ended.items()])

    def tell(self, events: list[Event], adapters: dict[str, LoadedAdapter] | None = None) -> None:
        """Sends what a step gave, and its statistics."""
        num_waiting = sum(not running.has_begun for running in self.running.values())
        stats = StepStats(
            num_running=len(self.running) - num_waiting,
            num_waiting=num_waiting,
            num_used_blocks=len(self.running),
            num_prompt_tokens=0,
            num_generated_tokens=sum(len(event.token_ids) for event in events),
            num_cached_tokens=0,
            num_encoded_media=0,
            num_preemptions=0,
            step_seconds=self.step_seconds,
        )
        self.channel.send(Step(events=events, stats=stats, adapters=adapters))

    def by_id(self, request: Generate | Embed) -> Iterator[Event]:
        """Yields what the request's id says."""
        assert isinstance(request, Generate)
        event = partial(Event, request_id=request.request_id)
        match request.request_id.split("-", maxsplit=1)[0]:
            case "echo":
                for token_id in request.token_ids:
                    yield event(token_ids=[token_id], logprobs=[Logprobs(logprob=-token_id)])
                yield event(finish=FinishReason.STOP, stats=RequestStats(num_cached_tokens=2))
            case "flood":
                for _ in range(FLOOD_TOKENS):
                    yield event(token_ids=[1])
                yield event(finish=FinishReason.LENGTH)
            case "rank":
                yield event(token_ids=[request.priority], finish=FinishReason.LENGTH)
            case "who":
                token_id = self.clients.setdefault(request.client, len(self.clients))
                yield event(token_ids=[token_id], finish=FinishReason.LENGTH)
            case "hold":
                yield event(token_ids=[1])
            case "full":
                yield error_event(request.request_id, overloaded("full", 6.5))
            case "garble":
                self.connection.sendall(b"\x01\x00\x00\x00\xc1")
            case _:
                raise ValueError(request.request_id)


def _counting(request: Generate | Embed) -> Iterator[Event]:
    assert isinstance(request, Generate)
    for number in range(1, request.sampling.max_tokens + 1):
        finish = FinishReason.LENGTH if number == request.sampling.max_tokens else None
        token_id = FIRST_COUNTED_ID + number % COUNTED_IDS
        yield Event(request_id=request.request_id, token_ids=[token_id], finish=finish)


def main() -> int:
    """Reads the command line and follows the script of this start."""
    parser = argparse.ArgumentParser()
    parser.add_argument("scripts", nargs="+")
    parser.add_argument("--starts", type=Path, help="file of the process ids of all starts")
    parser.add_argument("--step-ms", type=float, default=0.0)
    parser.add_argument("--fd", type=int, required=True)
    arguments = parser.parse_args()
    num_starts = 1
    if arguments.starts:
        with arguments.starts.open("a+") as starts:
            starts.write(f"{os.getpid()}\n")
            starts.seek(0)
            num_starts = len(starts.readlines())
    script = arguments.scripts[min(num_starts, len(arguments.scripts)) - 1]
    return ScriptedEngine(socket.socket(fileno=arguments.fd), arguments.step_ms / 1000).run(script)


if __name__ == "__main__":
    sys.exit(main())

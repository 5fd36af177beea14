"""A program that follows a script on the engine's side of the protocol: `scripted_engine.py STARTS_FILE SCRIPT… --fd
N`.

The first start follows the first SCRIPT, the second start the second, and all later ones the last:

    ready    loads and serves
    failed   reports that the checkpoint is unusable
    dies     exits while it loads
    hangs    never becomes ready
    until F  loads and serves once there is a file F

The first part of a request's id decides what it does:

    echo     returns the prompt, a token per step, then stops
    flood    returns the token 1 FLOOD_TOKENS times, as fast as possible
    rank     returns one token, whose id is the request's priority
    who      returns one token, whose id says how many clients sent requests before this one's client first did
    hold     returns one token, then nothing until it is cancelled
    garble   makes the engine send an invalid message
"""

import argparse
import os
import socket
import sys
import time
from pathlib import Path

from glimpse.engine.protocol.messages import (
    Cancel,
    Failed,
    FinishReason,
    Generate,
    Loading,
    Prepare,
    Ready,
    RequestStats,
    Start,
    Step,
    StepStats,
    Stop,
)
from glimpse.engine.protocol.messages import TokenEvent as Event
from glimpse.engine.protocol.messages import TokenLogprobs as Logprobs
from glimpse.engine.protocol.transport import Channel

READY = Ready(device="none", dtype="none", max_model_len=64, num_blocks=8, block_size=8, load_seconds=0.0)

FLOOD_TOKENS = 5000


class ScriptedEngine:
    """Follows one script."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.channel = Channel(connection)
        self.held: set[str] = set()
        self.clients: dict[str, int] = {}

    def run(self, script: str) -> int:
        """Follows the script. Returns the exit status."""
        while isinstance(first := self.channel.receive(), Prepare):
            pass
        if first is None:
            return 0  # a spare that was not needed
        assert isinstance(first, Start)
        self.channel.send(Loading(stage="reading the script", fraction=0.5))
        match script:
            case "ready":
                self.channel.send(READY)
                return self.serve()
            case "failed":
                self.channel.send(Failed(message="the script says that it fails"))
                return 1
            case "dies":
                return 3
            case "hangs":
                return self.serve()
            case _ if script.startswith("until "):
                while not Path(script.removeprefix("until ")).exists():
                    time.sleep(0.01)
                self.channel.send(READY)
                return self.serve()
            case _:
                raise ValueError(script)

    def serve(self) -> int:
        """Answers until it receives Stop."""
        while True:
            match self.channel.receive():
                case Generate() as request:
                    for each in request.each():
                        self.answer(each)
                case Cancel(request_id=request_id):
                    self.held.discard(request_id)
                    self.tell(Event(request_id=request_id, finish=FinishReason.CANCELLED))
                case Stop():
                    held, self.held = self.held, set()
                    self.tell(*(Event(request_id=request_id, finish=FinishReason.CANCELLED) for request_id in held))
                    return 0
                case message:
                    return 0 if message is None else 4

    def answer(self, request: Generate) -> None:
        """Does what the request's id says."""
        request_id = request.request_id
        match request_id.split("-", maxsplit=1)[0]:
            case "echo":
                for token_id in request.token_ids:
                    self.tell(
                        Event(request_id=request_id, token_ids=[token_id], logprobs=[Logprobs(logprob=-token_id)])
                    )
                self.tell(
                    Event(request_id=request_id, finish=FinishReason.STOP, stats=RequestStats(num_cached_tokens=2))
                )
            case "flood":
                for _ in range(FLOOD_TOKENS):
                    self.tell(Event(request_id=request_id, token_ids=[1]))
                self.tell(Event(request_id=request_id, finish=FinishReason.LENGTH))
            case "rank":
                self.tell(Event(request_id=request_id, token_ids=[request.priority], finish=FinishReason.LENGTH))
            case "who":
                self.clients.setdefault(request.client, len(self.clients))
                token_id = self.clients[request.client]
                self.tell(Event(request_id=request_id, token_ids=[token_id], finish=FinishReason.LENGTH))
            case "hold":
                self.held.add(request_id)
                self.tell(Event(request_id=request_id, token_ids=[1]))
            case "garble":
                self.connection.sendall(b"\x01\x00\x00\x00\xc1")
            case _:
                raise ValueError(request_id)

    def tell(self, *events: Event) -> None:
        """Sends one step. Its statistics count the held requests."""
        stats = StepStats(
            num_running=len(self.held),
            num_waiting=0,
            num_used_blocks=0,
            num_prompt_tokens=0,
            num_generated_tokens=0,
            num_cached_tokens=0,
            num_encoded_media=0,
            num_preemptions=0,
            step_seconds=0.0,
        )
        self.channel.send(Step(events=list(events), stats=stats))


def main() -> int:
    """Reads the command line and follows the script of this start."""
    parser = argparse.ArgumentParser()
    parser.add_argument("starts", type=Path)
    parser.add_argument("scripts", nargs="+")
    parser.add_argument("--fd", type=int, required=True)
    arguments = parser.parse_args()
    with arguments.starts.open("a+") as starts:
        starts.write(f"{os.getpid()}\n")
        starts.seek(0)
        num_starts = len(starts.readlines())
    script = arguments.scripts[min(num_starts, len(arguments.scripts)) - 1]
    return ScriptedEngine(socket.socket(fileno=arguments.fd)).run(script)


if __name__ == "__main__":
    sys.exit(main())

"""An engine that computes nothing: `python -m bench.serving.paced_engine --step-ms 30 --fd N`.

Each step emits a token for each request. It implements the engine's side of the protocol, so that the cost of the front
end can be measured alone, at a realistic token rate.
"""

import argparse
import socket
import sys
import threading
import time
from dataclasses import dataclass, field

from glimpse.engine.protocol.messages import Cancel, FinishReason, Generate, Ready, Step, StepStats, Stop, TokenEvent
from glimpse.engine.protocol.transport import Channel

_READY = Ready(device="none", dtype="none", max_model_len=8192, num_blocks=4096, block_size=32, load_seconds=0.0)


@dataclass(slots=True)
class Running:
    """Requests that receive tokens."""

    left: dict[str, int] = field(default_factory=dict[str, int])
    """Request id → tokens left to emit."""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def step(self, token_id: int) -> list[TokenEvent]:
        """Emits a token for each request; drops those that are complete."""
        with self.lock:
            events = [_event(request_id, left, token_id) for request_id, left in self.left.items()]
            self.left = {request_id: left - 1 for request_id, left in self.left.items() if left > 1}
        return events


def _event(request_id: str, left: int, token_id: int) -> TokenEvent:
    finish = FinishReason.LENGTH if left == 1 else None
    return TokenEvent(request_id=request_id, token_ids=[token_id], finish=finish)


def _give_tokens(channel: Channel, running: Running, step_seconds: float, first_id: int) -> None:
    for number in range(sys.maxsize):
        time.sleep(step_seconds)
        events = running.step(first_id + number % 1000)
        if events:
            channel.send(Step(events=events, stats=_stats(len(events), step_seconds)))


def _stats(num_running: int, step_seconds: float) -> StepStats:
    return StepStats(
        num_running=num_running,
        num_waiting=0,
        num_used_blocks=num_running,
        num_prompt_tokens=0,
        num_generated_tokens=num_running,
        num_cached_tokens=0,
        num_encoded_media=0,
        num_preemptions=0,
        step_seconds=step_seconds,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--step-ms", type=float, default=30.0)
    parser.add_argument("--first-id", type=int, default=300, help="answers are a thousand tokens from this id on")
    parser.add_argument("--fd", type=int, required=True, help="the inherited socket to the front end")
    arguments = parser.parse_args()
    channel = Channel(socket.socket(fileno=arguments.fd))
    channel.receive()
    channel.send(_READY)
    running = Running()
    giver = (channel, running, arguments.step_ms / 1000, arguments.first_id)
    threading.Thread(target=_give_tokens, args=giver, daemon=True).start()
    while True:
        match channel.receive():
            case Generate(request_id=request_id, sampling=sampling):
                with running.lock:
                    running.left[request_id] = sampling.max_tokens
            case Cancel(request_id=request_id):
                with running.lock:
                    running.left.pop(request_id, None)
            case Stop() | None:
                return
            case _:
                pass


if __name__ == "__main__":
    main()

"""The engine process around the real core, with a runner that pauses at a gate before it computes.

The gate is a socket. The program writes an "s" to it when a step starts, and continues when it receives a byte. It
writes an "m" for each message in its inbox. With the model "unprepared" there are two preparations to make while idle:
it writes a "p" when one starts, and continues when it receives a byte. With the model "forgetful" it takes 200 MB in
small blocks while idle and frees all but the last, writes a "p", and returns freed memory all the time.

`pausable_engine.py --gate N --fd M`. The model_path decides how loading ends: "missing" is no checkpoint, "broken"
makes the loader fail unexpectedly, anything else loads.
"""

import argparse
import ctypes
import socket
import sys

from glimpse.engine.core.core import Core
from glimpse.engine.core.limits import SchedulerLimits
from glimpse.engine.core.plan import CompletedStep, Sample, StepPlan, StepResult
from glimpse.engine.core.request import ModelSpec
from glimpse.engine.errors import CheckpointError
from glimpse.engine.protocol.config import EngineConfig
from glimpse.engine.protocol.messages import Ready, ToEngine
from glimpse.engine.protocol.transport import Channel
from glimpse.engine.worker import process


class NotedChannel(Channel):
    """Reports at the gate that a message is in the inbox, as soon as the next one is requested."""

    def __init__(self, connection: socket.socket, gate: socket.socket) -> None:
        super().__init__(connection)
        self.gate = gate
        self.is_first = True

    def receive(self) -> ToEngine | None:
        """Returns the next message."""
        if not self.is_first:
            self.gate.sendall(b"m")
        self.is_first = False
        return super().receive()


class PausableRunner:
    """Samples the length of the sequence, once the gate lets it."""

    def __init__(self, gate: socket.socket) -> None:
        self.gate = gate

    def launch(self, plan: StepPlan) -> CompletedStep:
        """Executes a step. One that computes nothing does not pause."""
        if plan.chunks:
            self.gate.sendall(b"s")
            self.gate.recv(1)
        samples = {
            chunk.sequence_id: Sample(token_id=chunk.start + len(chunk.token_ids))
            for chunk in plan.chunks
            if chunk.samples
        }
        return CompletedStep(StepResult(samples=samples))


class Preparations:
    """A number of preparations, each of which pauses at the gate."""

    def __init__(self, gate: socket.socket, num_left: int) -> None:
        self.gate = gate
        self.num_left = num_left

    def make_one(self) -> bool:
        """Returns False if none is left."""
        if not self.num_left:
            return False
        self.num_left -= 1
        self.gate.sendall(b"p")
        self.gate.recv(1)
        return True


class Forgetful:
    """Frees much, once."""

    def __init__(self, gate: socket.socket) -> None:
        self.gate = gate
        self.kept: int | None = None

    def forget(self) -> bool:
        if self.kept is None:
            libc = ctypes.CDLL(None)
            libc.malloc.restype = ctypes.c_void_p
            *blocks, self.kept = [libc.malloc(50_000) for _ in range(4000)]
            for block in blocks:
                ctypes.memset(block, 1, 50_000)
            for block in blocks:
                libc.free(ctypes.c_void_p(block))
            self.gate.sendall(b"p")
        return False


def main() -> int:
    """Serves with a pausable runner."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--gate", type=int, required=True)
    parser.add_argument("--fd", type=int, required=True)
    arguments = parser.parse_args()
    gate = socket.socket(fileno=arguments.gate)

    def load(config: EngineConfig, on_progress: process.OnProgress) -> tuple[Core, Ready]:
        on_progress("opening the gate", 0.5)
        if config.model_path == "missing":
            raise CheckpointError("the checkpoint has no config.json")
        if config.model_path == "broken":
            raise RuntimeError("out of order")
        prepare = Preparations(gate, 2 if config.model_path == "unprepared" else 0).make_one
        if config.model_path == "forgetful":
            process.RETURN_SECONDS, prepare = 0.05, Forgetful(gate).forget
        core = Core(
            runner=PausableRunner(gate),
            model=ModelSpec(vocab_size=100, encoder_row_width=2, eos_token_ids=()),
            limits=SchedulerLimits(
                num_blocks=16,
                block_size=4,
                max_model_len=64,
                max_batch_tokens=64,
                max_sequences=4,
                encoder_bytes_per_row=4,
                encoder_cache_bytes=1024,
                prefix_caching=True,
                max_decode_slowdown=2.5,
            ),
            max_waiting=4,
            prepare=prepare,
        )
        return core, Ready(device="none", dtype="none", max_model_len=64, num_blocks=16, block_size=4, load_seconds=0.0)

    return process.serve(NotedChannel(socket.socket(fileno=arguments.fd), gate), load=load)


if __name__ == "__main__":
    sys.exit(main())

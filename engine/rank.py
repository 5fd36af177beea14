"""A tensor-parallel rank other than 0, as a program: `python -m glimpse.engine.rank --fd N`.

It executes what rank 0 sends over the inherited socket N.

It knows the order of messages and how the process begins and ends. It belongs to rank 0: the end of the socket ends it,
in mid-step too, and any fault of its own ends it as well, which rank 0 notices. A rank that went on after a fault would
leave the others waiting in a sum.
"""

import argparse
import logging
import os
import queue
import signal
import socket
import threading
from pathlib import Path

from glimpse.engine.cpu_policy import use_normal_policy
from glimpse.engine.errors import CheckpointError
from glimpse.engine.parallel.messages import (
    Execute,
    FromRank,
    Joined,
    Load,
    Loaded,
    Pipe,
    Refused,
    ToRank,
    pipe_to_rank_zero,
)

_ToFirst = Pipe[FromRank, ToRank]
_Inbox = queue.SimpleQueue[ToRank]

_log = logging.getLogger(__name__)


def main() -> int:
    """Obeys the rank 0 at the other end of `--fd`; returns the exit status."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    use_normal_policy()  # whatever the caller of an offline engine does; before there are threads
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s rank: %(message)s")
    parser = argparse.ArgumentParser(prog="python -m glimpse.engine.rank", description="Obeys rank 0 of an engine.")
    parser.add_argument("--fd", type=int, required=True, help="the inherited socket to rank 0")
    connection = socket.socket(fileno=parser.parse_args().fd)
    connection.set_inheritable(False)  # else a helper that a library starts would hold the socket open after our death
    return _obey(pipe_to_rank_zero(connection))


def _obey(pipe: _ToFirst) -> int:
    inbox: _Inbox = queue.SimpleQueue()
    threading.Thread(target=_receive, args=(pipe, inbox), name="receive", daemon=True).start()
    try:
        load = inbox.get()
        assert isinstance(load, Load)
        _serve(pipe, inbox, load)
    except CheckpointError as error:
        pipe.send(Refused(message=str(error)))
    except Exception:
        _log.exception("a rank ends after an error that it did not expect")
    return 1


def _serve(pipe: _ToFirst, inbox: _Inbox, load: Load) -> None:
    # Imported here, not at the top: it takes seconds, and rank 0's end is noticed meanwhile.
    from glimpse.engine.loading.build_runner import make_runner  # noqa: PLC0415
    from glimpse.engine.loading.load_engine import load_shard  # noqa: PLC0415
    from glimpse.engine.parallel.group import join_group  # noqa: PLC0415

    part = load_shard(load.config, rank=load.rank, on_progress=_no_progress)
    pipe.send(Loaded())
    num_ranks = load.config.tensor_parallel_size
    group = join_group(Path(load.meeting_point), rank=load.rank, num_ranks=num_ranks, device=part.device)
    runner = make_runner(load.config, part, group, on_progress=_no_progress)
    pipe.send(Joined())
    while True:
        message = inbox.get()
        assert isinstance(message, Execute)
        runner.launch(message.plan).result()


def _no_progress(_stage: str, _fraction: float) -> None:
    """Rank 0 reports its own."""


def _receive(pipe: _ToFirst, inbox: _Inbox) -> None:
    """Fills the inbox. Runs beside the steps, so that it notices rank 0's death while the main thread is in a sum."""
    try:
        while (message := pipe.receive()) is not None:
            inbox.put(message)
    except Exception:
        _log.exception("a rank ends: it cannot read its socket")
        os._exit(1)
    os._exit(0)  # at once: nobody is left to clean up for


if __name__ == "__main__":
    os._exit(main())  # at once: what is left of a group may wait for the other ranks

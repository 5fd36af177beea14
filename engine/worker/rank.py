"""The program of a tensor-parallel rank other than 0: `python -m glimpse.engine.worker.rank --fd N`.

It executes the steps that rank 0 sends over the inherited socket N, which may lead to another node. It exits when the
socket closes, even during a step, and after any error of its own, which rank 0 detects: a rank that continued after an
error would leave the others waiting in an all-reduce.
"""

import logging
import queue

from glimpse.engine.errors import CheckpointError
from glimpse.engine.worker.child_process import inherited_socket, start_inbox
from glimpse.engine.worker.parallel.handshake import CANNOT_SERVE
from glimpse.engine.worker.parallel.messages import (
    Execute,
    FromRank,
    Join,
    Joined,
    Load,
    LoadFailed,
    Refused,
    ToRank,
    channel_to_rank_zero,
)
from glimpse.frames import BlockingChannel
from glimpse.log_writer import end_at_once
from glimpse.native.memory import freeze_garbage

_RankZero = BlockingChannel[FromRank, ToRank]
_Inbox = queue.SimpleQueue[ToRank]

_log = logging.getLogger(__name__)


def main() -> int:
    """Runs the rank until rank 0 closes the connection, and returns the exit status."""
    return _run(channel_to_rank_zero(inherited_socket("glimpse.engine.worker.rank", log_name="rank")))


def _run(rank_zero: _RankZero) -> int:
    inbox = start_inbox(rank_zero.receive)
    try:
        load = inbox.get()
        assert isinstance(load, Load)
        _serve(rank_zero, inbox, load)
    except CheckpointError as error:
        _log.error("the rank exits: %s", error)
        rank_zero.send(LoadFailed(message=str(error)))
        return CANNOT_SERVE
    except Exception:
        _log.exception("the rank exits after an unexpected error")
    return 1


def _serve(rank_zero: _RankZero, inbox: _Inbox, load: Load) -> None:
    # Imported here because it takes seconds, during which the receive thread already detects the end of rank 0.
    from glimpse.engine.worker.loading.build_runner import make_runner  # noqa: PLC0415
    from glimpse.engine.worker.loading.load_engine import load_shard  # noqa: PLC0415
    from glimpse.engine.worker.parallel.group import join_group  # noqa: PLC0415

    shard = load_shard(load.config, rank=load.rank, on_progress=_no_progress)
    rank_zero.send(shard.loaded)
    match inbox.get():
        case Join() as join:
            pass
        case Refused(message=message):
            raise CheckpointError(message)
        case Load() | Execute() as message:
            raise TypeError(f"expected Join or Refused, got {type(message).__name__}")
    group = join_group(
        join.rendezvous,
        rank=load.rank,
        num_ranks=load.config.tensor_parallel_size,
        device=shard.device,
        address=join.address,
    )
    runner = make_runner(load.config, shard, group, on_progress=_no_progress)
    freeze_garbage()
    rank_zero.send(Joined())
    while True:
        message = inbox.get()
        assert isinstance(message, Execute)
        runner.launch(message.plan).result()


def _no_progress(_stage: str, _fraction: float) -> None:
    """Only rank 0 reports progress."""


if __name__ == "__main__":
    end_at_once(main())  # at once: cleaning up the group could wait for the other ranks

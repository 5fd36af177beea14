"""The program of a tensor-parallel rank other than 0: `python -m glimpse.engine.worker.rank --fd N`.

It executes the steps that rank 0 sends over the inherited socket N, which may lead to another node. It exits when the
socket closes, even during a step, and after any error of its own, which rank 0 detects: a rank that continued after an
error would leave the others waiting in an all-reduce.
"""

import logging
import queue
import threading
from typing import TYPE_CHECKING

from glimpse.engine.errors import CheckpointError
from glimpse.engine.worker.child_process import inherited_socket, start_inbox
from glimpse.engine.worker.parallel.handshake import CANNOT_SERVE
from glimpse.engine.worker.parallel.messages import (
    AdapterStaged,
    Execute,
    FromRank,
    Join,
    Joined,
    Load,
    LoadFailed,
    PutAdapter,
    Refused,
    RemoveAdapter,
    StageAdapter,
    ToRank,
    channel_to_rank_zero,
)
from glimpse.frames import BlockingChannel
from glimpse.log_writer import end_at_once
from glimpse.native.memory import freeze_garbage

if TYPE_CHECKING:
    from glimpse.engine.worker.loading.adapters.adapter_store import RankAdapters

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
        case message:
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
        match inbox.get():
            case Execute(plan=plan):
                runner.launch(plan).result()
            case StageAdapter() as message:
                threading.Thread(target=_stage, args=(rank_zero, shard.adapters, message), daemon=True).start()
            case PutAdapter(digest=digest):
                shard.adapters.put(digest)
            case RemoveAdapter(digest=digest):
                shard.adapters.remove(digest)
            case message:
                raise TypeError(f"expected no {type(message).__name__} after Join")


def _stage(rank_zero: _RankZero, adapters: "RankAdapters", message: StageAdapter) -> None:
    """Reads an adapter beside steps. Rank 0 asks for one at a time."""
    try:
        staged = AdapterStaged(digest=adapters.stage(message.name, message.path))
    except CheckpointError as error:
        staged = AdapterStaged(message=str(error))
    except Exception:
        _log.exception("an adapter cannot be loaded")
        staged = AdapterStaged(message=f"adapter {message.name!r} cannot be loaded")
    rank_zero.send(staged)


def _no_progress(_stage: str, _fraction: float) -> None:
    """Only rank 0 reports progress."""


if __name__ == "__main__":
    end_at_once(main())  # at once: cleaning up the group could wait for the other ranks

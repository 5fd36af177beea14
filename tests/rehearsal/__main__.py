"""Rehearses several servers on this machine: `python -m tests.rehearsal`; `--help` explains the options.

The exit status is 1 if a request was lost or answered twice, or a conversation moved without reason.
"""

import argparse
import asyncio
import os
import sys
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.rehearsal.batches import Answers, answer_under_kills
from tests.rehearsal.conversations import Findings, converse
from tests.rehearsal.mesh import running_mesh
from tests.rehearsal.rolling import Streams, restart_all, restart_under


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.rehearsal", description=__doc__)
    parser.add_argument("--conversations", type=int, default=600, help="number of conversations (600)")
    parser.add_argument("--at-a-time", type=int, default=4, help="conversations that ask at the same time (4)")
    parser.add_argument("--streams-per-second", type=float, default=25, help="new streams in the rolling restart (25)")
    parser.add_argument("--tokens", type=int, default=12, help="tokens of such a stream (12)")
    parser.add_argument("--streams", type=int, default=200, help="streams at once in the second restart (200)")
    parser.add_argument("--kills", type=int, default=10, help="processes killed under a batch (10)")
    parser.add_argument("--only", choices=["conversations", "restarts", "batches"], help="one of the parts")
    options = parser.parse_args()
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    sys.exit(0 if asyncio.run(_rehearse(options)) else 1)


async def _rehearse(options: argparse.Namespace) -> bool:
    passed = True
    if options.only in (None, "batches"):
        with TemporaryDirectory(prefix="glimpse-batch-") as name:
            passed &= _report_batch(answer_under_kills(Path(name), num_requests=400, num_kills=options.kills))
    if options.only == "batches":
        return passed
    with TemporaryDirectory(prefix="glimpse-mesh-") as name:
        async with running_mesh(Path(name)) as mesh:
            if options.only != "restarts":
                found = await converse(mesh, num_conversations=options.conversations, at_a_time=options.at_a_time)
                passed &= _report(found)
            if options.only != "conversations":
                streams = await restart_all(mesh, streams_per_second=options.streams_per_second, tokens=options.tokens)
                passed &= _report_streams(f"{options.streams_per_second:g} streams per second", streams)
                streams = await restart_under(mesh, num_streams=options.streams, tokens=20 * options.tokens)
                passed &= _report_streams(f"{options.streams} streams at once", streams)
    return passed


def _report(found: Findings) -> bool:
    for name, value in asdict(found).items():
        print(f"{name.replace('_', ' '):24} {value}")
    return found.num_failed == found.moved_from_others == found.moved_at_return == 0


def _report_batch(found: Answers) -> bool:
    once = len(found.custom_ids) == len(set(found.custom_ids)) == 400
    print(f"a batch of 400 requests with kills of {found.num_kills}: {found.status}, {found.num_failed} failed")
    print("  each request is answered once" if once else f"  {len(set(found.custom_ids))} requests have answers")
    return once and found.status == "BATCH_STATUS_COMPLETED"


def _report_streams(title: str, streams: Streams) -> bool:
    print(f"rolling restart under {title}, at most {streams.most_at_once} at a time, {streams.seconds:.0f} s:")
    print(f"  {streams.num_whole} of {streams.count} streams whole", dict(streams.codes) or "")
    return streams.num_whole == streams.count


if __name__ == "__main__":
    main()

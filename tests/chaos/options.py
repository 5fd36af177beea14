"""The command line of the campaign."""

import argparse
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.chaos.attacks.registry import ATTACKS
from tests.chaos.stack import replaced

DEFAULT_SERVE_ARGS = ("--dtype=float32", "--media-cache-bytes=16MiB", "--encoder-cache-bytes=16MiB")
"""Answers must not depend on the batch, as the rounding of bfloat16 does. Small caches are full from the start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """What fails a campaign in addition to faults; None checks nothing."""

    health_p99_ms: float | None = None
    loop_delay_ms: float | None = None
    recovery_seconds: float | None = None
    memory_growth_percent: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What to do, and for how long."""

    seconds: float
    seed: int
    attacks: tuple[str, ...]
    kills: int
    """Kills of each process, besides the other attacks."""
    scale: float
    rest_seconds: float
    warm_up_seconds: float
    """Time for attacks before memory is measured first: KV cache and allocators grow to their working size."""
    hang_seconds: float
    pause_seconds: float
    compares: bool
    num_cores: int | None
    """On which all of it runs; None: all."""
    serve_args: tuple[str, ...]
    report: Path | None
    log: Path | None
    bounds: Bounds


def parse(arguments: Sequence[str] | None = None) -> Options | None:
    """Parses the command line; None if it only asked for the list of attacks, which is printed."""
    parser = _parser()
    given = parser.parse_args(arguments)
    if given.list:
        print("\n".join(f"{attack.name:20} {attack.summary}" for attack in ATTACKS.values()))
        return None
    if unknown := sorted({*given.only, *given.without} - ATTACKS.keys()):
        parser.error(f"no such attack: {', '.join(unknown)}; --list names all")
    chosen = tuple(name for name in given.only or ATTACKS if name not in given.without)
    if not chosen:
        parser.error("expected at least one attack, got none")
    return Options(
        seconds=given.seconds,
        seed=given.seed,
        attacks=chosen,
        kills=given.kills,
        scale=given.scale,
        rest_seconds=given.rest,
        warm_up_seconds=given.warm_up,
        hang_seconds=given.hang,
        pause_seconds=given.pause,
        compares=given.compare,
        num_cores=given.cores,
        serve_args=replaced(DEFAULT_SERVE_ARGS, shlex.split(given.serve_args)),
        report=given.report,
        log=given.log,
        bounds=Bounds(
            health_p99_ms=given.max_health_p99,
            loop_delay_ms=given.max_loop_delay,
            recovery_seconds=given.max_recovery,
            memory_growth_percent=given.max_memory_growth,
        ),
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.chaos",
        description="Attacks a real server (`glimpse up`) while bystanders, whose answers are known, use it.",
        epilog="The exit status is 1 if a request was lost, answered twice or wrongly, hung, or failed without an"
        " attack that explains it, or if a bound was exceeded.",
    )
    _add_attacks(parser)
    _add_manner(parser)
    _add_outputs(parser)
    _add_bounds(parser)
    return parser


def _add_attacks(parser: argparse.ArgumentParser) -> None:
    what = parser.add_argument_group("what")
    what.add_argument("--seconds", type=float, default=60, help="time for attacks; start and rest come on top (60)")
    what.add_argument("--seed", type=int, default=1, help="of the attacks' order and of their dice (1)")
    what.add_argument("--only", nargs="+", default=[], metavar="ATTACK", help="these attacks")
    what.add_argument("--without", nargs="+", default=[], metavar="ATTACK", help="all but these attacks")
    what.add_argument("--list", action="store_true", help="list the attacks and exit")
    what.add_argument(
        "--kills",
        type=int,
        default=0,
        metavar="N",
        help="kill each kind of process N times, spread over the time, while the other attacks run",
    )
    what.add_argument("--scale", type=float, default=1, help="factor of the attacks' counts (1)")


def _add_manner(parser: argparse.ArgumentParser) -> None:
    how = parser.add_argument_group("how")
    how.add_argument(
        "--serve-args",
        default="",
        metavar="FLAGS",
        help=f"more flags of `glimpse up`, as one argument; they replace or follow {' '.join(DEFAULT_SERVE_ARGS)}",
    )
    how.add_argument("--rest", type=float, default=5, metavar="SECONDS", help="quiet time before and after (5)")
    how.add_argument(
        "--warm-up",
        type=float,
        default=0,
        metavar="SECONDS",
        help="attacks before memory is measured for the first time, besides --seconds (0)",
    )
    how.add_argument(
        "--hang",
        type=float,
        default=180,
        metavar="SECONDS",
        help="a request hangs after this time (180), which must exceed --max-queue-seconds",
    )
    how.add_argument(
        "--pause", type=float, default=0.5, metavar="SECONDS", help="of a bystander between requests (0.5)"
    )
    how.add_argument(
        "--no-compare",
        dest="compare",
        action="store_false",
        help="accept any text, where the numerics depend on the batch (bfloat16)",
    )
    how.add_argument(
        "--cores",
        type=int,
        metavar="N",
        help="run everything on N of the cores: threads that wait for each other are slow on a busy machine (all)",
    )


def _add_outputs(parser: argparse.ArgumentParser) -> None:
    where = parser.add_argument_group("where to")
    where.add_argument("--report", type=Path, metavar="FILE", help="write the report as JSON")
    where.add_argument("--log", type=Path, metavar="FILE", help="append the server's log")


def _add_bounds(parser: argparse.ArgumentParser) -> None:
    bounds = parser.add_argument_group("bounds")
    bounds.add_argument("--max-health-p99", type=float, metavar="MS", help="of each health probe")
    bounds.add_argument("--max-loop-delay", type=float, metavar="MS", help="99th percentile of the event loop's delay")
    bounds.add_argument(
        "--max-recovery", type=float, metavar="SECONDS", help="median, from a kill of the engine to an answer"
    )
    bounds.add_argument("--max-memory-growth", type=float, metavar="PERCENT", help="of all processes together")

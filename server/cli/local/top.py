"""`glimpse top`: what servers do, once a second, from their metrics."""

import re
import signal
import sys
import time
import urllib.request
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http.client import HTTPException
from typing import Annotated

from cyclopts import Parameter, validators
from rich.console import Console
from rich.live import Live
from rich.table import Table

from glimpse.interrupts import INTERRUPTED
from glimpse.server.cli.local.running import memory_of, running_servers
from glimpse.server.cli.local.tables import size_text, table
from glimpse.usage import UsageError

_SECONDS = 2.0
_COLUMNS = ("SERVER", "RUN", "WAIT", "TOK/S", "PROMPT/S", "TTFT", "KV", "PREFIX", "IMAGES", "MEMORY")
_NOTHING = "–"


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """A server whose metrics are read."""

    name: str
    url: str
    pid: int | None = None
    """Process id of a server of this machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsSample:
    """Metrics of a server at one time."""

    seconds: float
    """Time on a clock that never goes back."""
    values: Mapping[str, float]
    """Sums over the labels, by name; empty if the server does not answer."""
    memory: int | None = None


def top(
    *metrics: str,
    interval: Annotated[float, Parameter(validator=validators.Number(gte=0.1))] = 1.0,
    once: Annotated[bool, Parameter(negative="")] = False,
) -> None:
    """Shows what servers do: requests, tokens per second, caches and memory. Ctrl-C ends it.

    RUN and WAIT are sequences. TOK/S are tokens generated and PROMPT/S tokens computed of prompts per second; these and
    TTFT, the mean time to the first token, are those of the last interval. KV is the part of the KV cache in use.
    PREFIX is the part of prompt tokens that the prefix cache had, and IMAGES the part of media that needed no encoder,
    both since the server started. MEMORY is that of all processes of a server of this machine.

    Parameters
    ----------
    metrics
        Where their metrics are: HOST:PORT, or a URL. Default: the servers of this machine, as in `glimpse ps`.
    interval
        Seconds between two looks.
    once
        Show one interval, and end. Without a terminal this is the default.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    watched = [_watched(each) for each in metrics]
    console = Console()
    before = _look(_servers(watched))
    if once or not console.is_terminal:
        time.sleep(interval)
        print(table(_COLUMNS, _rows(before, _look(_servers(watched)))))
        return
    try:
        with Live(console=console, auto_refresh=False) as live:
            while True:
                time.sleep(interval)
                now = _look(_servers(watched))
                live.update(_live_table(_rows(before, now)), refresh=True)
                before = now
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


def _watched(metrics: str) -> Watched:
    """Returns the server with these metrics. Raises UsageError."""
    match = re.fullmatch(r"(https?://)?([^/\s]+:\d+)(/\S*)?", metrics)
    if match is None:
        raise UsageError(f"'METRICS': expected HOST:PORT or a URL with a port, got {metrics!r}")
    return Watched(name=match[2], url=f"{match[1] or 'http://'}{match[2]}{match[3] or '/metrics'}")


def _servers(watched: Sequence[Watched]) -> Sequence[Watched]:
    """Returns the servers that were named, else those that run now."""
    return watched or [
        Watched(name=f"{each.names[0]} {each.target}", url=each.metrics_url, pid=each.pid) for each in running_servers()
    ]


def _look(servers: Sequence[Watched]) -> Mapping[Watched, MetricsSample]:
    return {
        each: MetricsSample(
            seconds=time.monotonic(),
            values=read_metrics(each.url),
            memory=None if each.pid is None else memory_of(each.pid),
        )
        for each in servers
    }


def read_metrics(url: str) -> Mapping[str, float]:
    """Returns the metrics of a server, each the sum over its labels; none if it does not answer."""
    try:
        with urllib.request.urlopen(url, timeout=_SECONDS) as answer:  # noqa: S310 - the user's own URL
            text = answer.read().decode()
    except (OSError, HTTPException, ValueError):
        return {}
    values = defaultdict[str, float](float)
    for name, value in re.findall(r"^(\w+)(?:\{.*\})? (\S+)$", text, re.MULTILINE):
        values[name] += float(value)
    return values


def _rows(before: Mapping[Watched, MetricsSample], now: Mapping[Watched, MetricsSample]) -> list[list[str]]:
    if not now:
        return [["no server of this machine runs", *[_NOTHING] * (len(_COLUMNS) - 1)]]
    return [[server.name, *row(before.get(server, sample), sample)] for server, sample in now.items()]


def _live_table(rows: Sequence[Sequence[str]]) -> Table:
    shown = Table(box=None, padding=(0, 1), pad_edge=False)
    for number, title in enumerate(_COLUMNS):
        shown.add_column(title, justify="right" if number else "left", overflow="fold")
    for each in rows:
        shown.add_row(*each)
    return shown


def row(before: MetricsSample, now: MetricsSample) -> list[str]:
    """Returns what a server did between two samples, in the order of the columns."""
    memory = _NOTHING if now.memory is None else size_text(now.memory)
    if "glimpse_engine_ready" not in now.values:
        return [*[_NOTHING] * (len(_COLUMNS) - 2), memory]  # it does not answer, or has vLLM's names alone
    values = defaultdict[str, float](float, now.values)

    def grown(name: str) -> float:
        return max(values[name] - before.values.get(name, values[name]), 0.0)

    seconds = max(now.seconds - before.seconds, 1e-9)
    firsts = grown("glimpse_time_to_first_token_seconds_count")
    first = grown("glimpse_time_to_first_token_seconds_sum") / firsts if firsts else None
    return [
        f"{values['glimpse_running_sequences']:.0f}",
        f"{values['glimpse_waiting_sequences']:.0f}",
        f"{grown('glimpse_generated_tokens_total') / seconds:.0f}",
        f"{grown('glimpse_prompt_tokens_total') / seconds:.0f}",
        _NOTHING if first is None else f"{1000 * first:.0f} ms",
        percent(values["glimpse_kv_blocks_used"], values["glimpse_kv_blocks"]),
        percent(values["glimpse_cached_tokens_total"], values["glimpse_admitted_tokens_total"]),
        percent(values["glimpse_encoder_cache_hits_total"], values["glimpse_media_total"]),
        memory,
    ]


def percent(part: float, whole: float) -> str:
    """Returns a share in percent; a dash where there is nothing to share."""
    return f"{100 * part / whole:.0f} %" if whole else _NOTHING

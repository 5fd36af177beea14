"""Load-tests a running server: time to first token, inter-token latency, rates, and the server's own cost.

    python -m bench.serving.serve --url http://127.0.0.1:8080/v1 --workload text --concurrency 4
python -m bench.serving.serve --url grpc://127.0.0.1:50051 --workload image --rate 2 --pid $(pgrep -of 'glimpse up')

Workloads: text (a prompt of --prompt-tokens); image (a new JPEG and a short question); prefix (an image and a long
text, the same with another question, the first again); chat (--turns about an image); interference (--concurrency
running streams while a prompt of --prompt-tokens arrives).

Sessions run with --concurrency, or arrive at --rate per second (Poisson). Tokens are counted by the server's `usage`.
"""

import argparse
import json
import os
import random
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import uvloop

from bench.serving.clients import AskError, Client, make_client
from bench.serving.interference import ask_amid_streams, judge
from bench.serving.load_generator import Gathered, closed_loop, open_loop, probe
from bench.serving.processes import cpu_seconds, peak_rss_mib
from bench.serving.report import Report, ServerCost, by_label, text_report
from bench.serving.workloads import WORKLOADS, Prompts, Sizes, poisson_arrivals
from glimpse.native.process_table import family

_QUIET_SECONDS = 4.0
"""Seconds that streams run before the long prompt arrives."""


async def measure(arguments: argparse.Namespace) -> Report:
    """Probes the server, runs the workload, and reports."""
    draw = random.Random(str([arguments.seed, arguments.workload, arguments.concurrency, arguments.prompt_tokens]))
    ignore_eos = await _takes_ignore_eos(arguments.url, arguments.model)
    async with make_client(arguments.url, model=arguments.model, ignore_eos=ignore_eos) as client:
        prompts = await probe(client, draw)
        pids = family(arguments.pid) if arguments.pid else []
        server_before, own_before, begun = cpu_seconds(pids), time.process_time(), time.perf_counter()
        gathered = await _run(arguments, client, draw, prompts)
        seconds = time.perf_counter() - begun
    tokens = sum(answer.output_tokens for _, answer in gathered.answers)
    return Report(
        target=arguments.url,
        workload=arguments.workload,
        arrivals=f"{arguments.rate:g} a second" if arguments.rate else f"{arguments.concurrency} at a time",
        seed=arguments.seed,
        seconds=seconds,
        latencies=by_label(gathered.answers),
        output_tokens=tokens,
        output_tokens_per_second=tokens / seconds,
        requests_per_second=len(gathered.answers) / seconds,
        failures=gathered.failures,
        generator_cpu_seconds=time.process_time() - own_before,
        server=_cost(pids, cpu_seconds(pids) - server_before, tokens) if pids else None,
        interference=_interference(gathered) if arguments.workload == "interference" else None,
    )


async def _takes_ignore_eos(url: str, model: str | None) -> bool:
    """Returns whether the server supports `ignore_eos`; some refuse unknown fields."""
    async with make_client(url, model=model, ignore_eos=True) as client:
        try:
            await probe(client, random.Random(0))
        except AskError:
            return False
    return True


async def _run(arguments: argparse.Namespace, client: Client, draw: random.Random, prompts: Prompts) -> Gathered:
    if arguments.workload == "interference":
        return await _run_interference(arguments, client, draw, prompts)
    sizes = Sizes(prompt_tokens=arguments.prompt_tokens, side=arguments.side, num_turns=arguments.turns)
    make_session = WORKLOADS[arguments.workload]
    sessions = [make_session(draw, prompts, sizes) for _ in range(arguments.sessions)]
    on_answer = _progress(sum(map(len, sessions)))
    if arguments.rate:
        arrivals = poisson_arrivals(draw, per_second=arguments.rate, count=len(sessions))
        return await open_loop(
            client, sessions, arrivals=arrivals, max_tokens=arguments.output_tokens, on_answer=on_answer
        )
    return await closed_loop(
        client,
        sessions,
        concurrency=arguments.concurrency,
        max_tokens=arguments.output_tokens,
        on_answer=on_answer,
    )


async def _run_interference(
    arguments: argparse.Namespace, client: Client, draw: random.Random, prompts: Prompts
) -> Gathered:
    try:
        streams, long_answer = await ask_amid_streams(
            client,
            draw,
            prompts,
            num_streams=arguments.concurrency,
            long_tokens=arguments.prompt_tokens,
            max_tokens=arguments.output_tokens,
            quiet_seconds=_QUIET_SECONDS,
        )
    except AskError as error:
        return Gathered(failures=[str(error)])
    return Gathered(answers=[*(("stream", stream) for stream in streams), ("long prompt", long_answer)])


def _interference(gathered: Gathered) -> Any:
    answers = [answer for _, answer in gathered.answers]
    return judge(answers[:-1], answers[-1]) if answers else None


def _cost(pids: list[int], seconds: float, tokens: int) -> ServerCost:
    per_token = 1000 * seconds / tokens if tokens else 0.0
    return ServerCost(cpu_seconds=seconds, cpu_ms_per_token=per_token, peak_rss_mib=peak_rss_mib(pids))


def _progress(total: int) -> Callable[[], None]:
    """Shows progress on a terminal."""
    done = 0

    def show() -> None:
        nonlocal done
        done += 1
        if sys.stderr.isatty():
            sys.stderr.write(f"\r\x1b[K{done}/{total} answers" if done < total else "\r\x1b[K")

    return show


def parse(words: list[str] | None = None) -> argparse.Namespace:
    """Parses the command line. Some defaults depend on the workload."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="http://127.0.0.1:8080/v1", help="an OpenAI base URL, or grpc://HOST:PORT")
    parser.add_argument("--model", help="name to ask for (default: the first that the server lists)")
    parser.add_argument("--workload", choices=(*WORKLOADS, "interference"), default="text")
    parser.add_argument("--concurrency", type=int, default=1, help="sessions, or streams, at a time (default: 1)")
    parser.add_argument("--rate", type=float, default=0.0, help="sessions a second, instead of --concurrency")
    parser.add_argument("--sessions", type=int, help="how many in all (default: 4, and twice the concurrency)")
    parser.add_argument("--prompt-tokens", type=int, help="(default: 512; prefix 1536, interference 4000)")
    parser.add_argument("--output-tokens", type=int, help="(default: 128; prefix 16, chat 64, interference 512)")
    parser.add_argument("--side", type=int, default=448, help="of an image, in pixels (default: 448)")
    parser.add_argument("--turns", type=int, default=6, help="of a chat (default: 6)")
    parser.add_argument("--seed", type=int, help="of prompts and images (default: a new one: a server may cache)")
    parser.add_argument("--pid", type=int, help="the server's process; those that descend from it are counted too")
    parser.add_argument("--nice", type=int, default=5, help="added to this program's niceness (default: 5)")
    parser.add_argument("--json", type=Path, help="file for the report")
    arguments = parser.parse_args(words)
    if arguments.workload == "interference" and arguments.rate:
        parser.error("interference has streams, not arrivals: use --concurrency")
    prompt_tokens = {"prefix": 1536, "interference": 4000}.get(arguments.workload, 512)
    output_tokens = {"prefix": 16, "chat": 64, "interference": 512}.get(arguments.workload, 128)
    arguments.prompt_tokens = arguments.prompt_tokens or prompt_tokens
    arguments.output_tokens = arguments.output_tokens or output_tokens
    arguments.sessions = arguments.sessions or max(4, 2 * arguments.concurrency)
    arguments.seed = random.SystemRandom().randrange(1 << 32) if arguments.seed is None else arguments.seed
    return arguments


def main() -> None:
    arguments = parse()
    os.nice(arguments.nice)
    try:
        report = uvloop.run(measure(arguments))
    except AskError as error:
        sys.exit(f"bench.serving.serve: {error}")
    print(text_report(report))
    if arguments.json:
        arguments.json.write_text(json.dumps(asdict(report), indent=2) + "\n", encoding="utf-8")
    sys.exit(1 if report.failures else 0)


if __name__ == "__main__":
    main()

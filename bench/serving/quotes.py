"""Quotes against what requests then cost: cached tokens, and times to first tokens by stage, idle and beside streams.

    python -m bench.serving.quotes [--model models/nano] [--rounds 40] [--streams 8]

It starts a server, which writes its spans. Each round quotes a prompt of random length, half of them with an image and
a third of them sent before, and sends it. It prints the times quoted and measured, by the server from arrival to
sending and by the client, as medians, the shares of them that are within a factor of 1.5, also in those rounds alone in
which no stream sent a prompt between the quote and the first token, how far quotes are off in each stage, and in how
many rounds the cached tokens were those of the usage.

Beside that stands what constants reach that are chosen afterwards: the rounds of a load are divided into kinds, by
whether an image is encoded and then by the tokens that are computed, a dozen to a kind, and each kind has the time
that is within the factor of most of its rounds. What such constants do not reach is spread of the times themselves.
"""

import argparse
import asyncio
import io
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Iterable
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from PIL import Image as PillowImage

from bench.figures import percentile, table
from bench.serving.words import common_text
from glimpse.v1 import chat_pb2, chat_pb2_grpc, content_pb2, generation_pb2

_ROOT = Path(__file__).parents[2]
_FACTOR = 1.5
_WARM_UP = 20
"""Requests before the first quote, from which the server learns."""
_ROUNDS_OF_KIND = 12
_STAGES = ("preparation", "queue", "encode", "prefill")
_SHARES = (0.1, 0.5, 0.9)
_TRACING = """
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor
exporter = ConsoleSpanExporter(out=open({path!r}, "w", buffering=1), formatter=lambda s: s.to_json(indent=None) + "\\n")
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(exporter))
trace.set_tracer_provider(provider)
from glimpse.server.cli.main import main
main()
"""


@dataclass(slots=True, kw_only=True)
class Round:
    """A request that was quoted, then made. All times are in milliseconds."""

    quote: chat_pb2.Quote
    milliseconds: float
    num_computed_tokens: int
    """Tokens of the prompt that the prefix cache does not have."""
    has_cached_tokens: bool
    """The tokens from the prefix cache are those of the quote."""
    request_id: str
    num_prompts_since: int
    """Prompts that streams sent between the quote and the first token."""
    stages: dict[str, float]
    """Milliseconds of each stage, measured by the server."""

    @property
    def quoted(self) -> float:
        return self.quote.first_token_milliseconds

    @property
    def of_server(self) -> float:
        return sum(self.stages.values())

    def is_within(self, milliseconds: float) -> bool:
        return 1 / _FACTOR <= milliseconds / self.quoted <= _FACTOR

    def quoted_stage(self, stage: str) -> float:
        return getattr(self.quote.first_token_stages, f"{stage}_milliseconds")


class Client:
    """Sends requests on a connection."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._stub = chat_pb2_grpc.ChatServiceStub(channel)
        self._num_asked = 0
        self.others_began = list[float]()
        """When streams sent their prompts."""

    async def ask(self, messages: list[Any], max_tokens: int) -> tuple[float, int, str]:
        """Returns the milliseconds to the first token, the tokens from the prefix cache, and the request's id."""
        self._num_asked += 1
        request_id = f"quotes-{id(self)}-{self._num_asked}"
        options = generation_pb2.GenerationOptions(max_completion_tokens=max_tokens, ignore_eos=True)
        request = chat_pb2.CreateChatCompletionRequest(
            messages=messages,
            generation=options,
            stream_options=chat_pb2.StreamOptions(include_usage=True, continuous_usage_stats=True),
        )
        began, first, cached = time.perf_counter(), 0.0, 0
        async for chunk in self._stub.StreamChatCompletion(request, metadata=[("x-request-id", request_id)]):
            first = first or time.perf_counter() - began
            cached = max(cached, chunk.usage.prompt_tokens_details.cached_tokens)
        return 1000 * first, cached, request_id

    async def quote_and_ask(self, messages: list[Any]) -> Round | None:
        """Returns None where the server has no time to quote."""
        counted = await self._stub.CountTokens(chat_pb2.CountTokensRequest(messages=messages, quote=True))
        quoted_at = time.perf_counter()
        milliseconds, cached, request_id = await self.ask(messages, 4)
        first_token_at = quoted_at + milliseconds / 1000
        if not counted.quote.HasField("first_token_milliseconds"):
            return None
        expected = counted.prompt_tokens_details.cached_tokens
        return Round(
            quote=counted.quote,
            milliseconds=milliseconds,
            num_computed_tokens=counted.prompt_tokens - expected,
            has_cached_tokens=cached == expected,
            request_id=request_id,
            num_prompts_since=sum(quoted_at <= each <= first_token_at for each in self.others_began),
            stages={},
        )

    async def stream_forever(self, draw: random.Random, most_words: int, began: list[float]) -> None:
        while True:
            prompt = make_prompt(draw, most_words)
            began.append(time.perf_counter())
            await self.ask(prompt, draw.randint(20, 200))


def make_prompt(draw: random.Random, most_words: int) -> list[Any]:
    parts = [noise(draw)] if draw.random() < 0.5 else []
    parts.append(content_pb2.ContentPart(text=common_text(draw, draw.randint(10, most_words))))
    return [content_pb2.Message(role=content_pb2.ROLE_USER, content=parts)]


def noise(draw: random.Random) -> content_pb2.ContentPart:
    file, side = io.BytesIO(), draw.randint(100, 600)
    PillowImage.frombytes("RGB", (side, side), draw.randbytes(3 * side**2)).save(file, "PNG")
    source = content_pb2.MediaSource(data=file.getvalue())
    return content_pb2.ContentPart(image=content_pb2.ImagePart(source=source))


@contextmanager
def serving(model: str, port: int, spans: Path, log: Path) -> Generator[None]:
    """Runs a server that writes its spans."""
    flags = [f"--model={model}", f"--port={port}", "--no-spare-engine"]
    command = [sys.executable, "-c", _TRACING.format(path=str(spans)), "serve", *flags]
    with log.open("wb") as output, subprocess.Popen(command, stdout=output, stderr=output) as server:
        try:
            yield
        finally:
            server.terminate()


async def wait_until_serving(channel: grpc.aio.Channel) -> None:
    async with asyncio.timeout(300):
        stub: Any = health_pb2_grpc.HealthStub(channel)
        async for health in stub.Watch(health_pb2.HealthCheckRequest(), wait_for_ready=True):
            if health.status == health_pb2.HealthCheckResponse.SERVING:
                return


async def measure(client: Client, draw: random.Random, rounds: int, most_words: int) -> list[Round]:
    """Quotes and asks one request after the other."""
    prompts: list[Any] = []
    measured: list[Round] = []
    for _ in range(rounds):
        prompts.append(draw.choice(prompts) if prompts and draw.random() < 1 / 3 else make_prompt(draw, most_words))
        made = await client.quote_and_ask(prompts[-1])
        measured += [] if made is None else [made]
    return measured


async def run(arguments: argparse.Namespace, target: str) -> dict[str, list[Round]]:
    """Returns the rounds by load."""
    draw, rounds = random.Random(arguments.seed), dict[str, list[Round]]()
    options = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
    async with grpc.aio.insecure_channel(target, options=options) as channel:
        await wait_until_serving(channel)
        client = Client(channel)
        for _ in range(_WARM_UP):
            await client.ask(make_prompt(draw, arguments.words), 4)
        for num_streams in (0, arguments.streams):
            others = [
                asyncio.create_task(
                    Client(channel).stream_forever(random.Random(index), arguments.words, client.others_began)
                )
                for index in range(num_streams)
            ]
            if others:
                await asyncio.sleep(arguments.settle)
            load = f"{num_streams} streams" if num_streams else "idle"
            rounds[load] = await measure(client, draw, arguments.rounds, arguments.words)
            for task in others:
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task
    return rounds


def measured_stages(spans: Path) -> dict[str, dict[str, float]]:
    """Returns the milliseconds of each stage by request id."""
    lines = [json.loads(line) for line in spans.read_text().splitlines()]
    calls = {each["context"]["span_id"]: each for each in lines if "glimpse.request_id" in each["attributes"]}
    stages: dict[str, dict[str, float]] = {}
    for each in lines:
        call = calls.get(each["parent_id"])
        if call is None or each["name"] not in ("queue", "encode", "prefill"):
            continue
        found = stages.setdefault(call["attributes"]["glimpse.request_id"], dict.fromkeys(_STAGES, 0.0))
        found[each["name"]] = _milliseconds(each["start_time"], each["end_time"])
        if each["name"] == "queue":
            found["preparation"] = _milliseconds(call["start_time"], each["start_time"])
    for found in stages.values():
        found["prefill"] -= found["encode"]
    return stages


def _milliseconds(begin: str, end: str) -> float:
    return (datetime.fromisoformat(end) - datetime.fromisoformat(begin)).total_seconds() * 1000


def row(load: str, rounds: list[Round]) -> list[str]:
    times = [[each.of_server for each in rounds], [each.milliseconds for each in rounds]]
    within = [_share(map(Round.is_within, rounds, measured)) for measured in times]
    undisturbed = [each.is_within(each.of_server) for each in rounds if not each.num_prompts_since]
    within.append(f"{_share(undisturbed)} of {len(undisturbed)}")
    within.append(f"{100 * num_within_constants(rounds) / len(rounds):.0f} %")
    ratios = [each.of_server / each.quoted for each in rounds]
    medians = [f"{statistics.median(values):.0f}" for values in ([each.quoted for each in rounds], *times)]
    spread = " / ".join(f"{percentile(ratios, share):.2f}" for share in _SHARES)
    cached = sum(each.has_cached_tokens for each in rounds)
    return [load, str(len(rounds)), *medians, spread, *within, f"{cached} of {len(rounds)}"]


def num_within_constants(rounds: list[Round]) -> int:
    """Returns how many of the server's times are within the factor of the best constant of their kind."""
    by_size = sorted(rounds, key=lambda each: (each.quoted_stage("encode") > 0, each.num_computed_tokens))
    kinds = (by_size[start : start + _ROUNDS_OF_KIND] for start in range(0, len(by_size), _ROUNDS_OF_KIND))
    return sum(_most_within([each.of_server for each in kind]) for kind in kinds)


def _most_within(times: list[float]) -> int:
    """Returns how many times are within the factor of one that is chosen for it."""
    return max(sum(least <= each <= least * _FACTOR**2 for each in times) for least in times)


def _share(values: Iterable[bool]) -> str:
    return f"{100 * statistics.fmean(values):.0f} %"


def stage_rows(load: str, rounds: list[Round]) -> Generator[list[str]]:
    """Yields a row for each stage: medians, and how far measured times were from quoted ones."""
    for stage in _STAGES:
        errors = [each.stages[stage] - each.quoted_stage(stage) for each in rounds]
        quoted = statistics.median(each.quoted_stage(stage) for each in rounds)
        measured = statistics.median(each.stages[stage] for each in rounds)
        spread = " / ".join(f"{percentile(errors, share):+.1f}" for share in _SHARES)
        yield [load, stage, f"{quoted:.1f}", f"{measured:.1f}", spread]


def report(rounds: dict[str, list[Round]]) -> str:
    """Returns the tables."""
    head = ["load", "rounds", "quoted ms", "server ms", "client ms", "server / quoted, 10 / 50 / 90 %"]
    head += ["server within 1.5", "client within 1.5", "server within 1.5, no prompt since"]
    head += ["constants within 1.5", "cached tokens as quoted"]
    stage_head = ["load", "stage", "quoted ms", "server ms", "server - quoted ms, 10 / 50 / 90 %"]
    by_stage = [each for load, made in rounds.items() for each in stage_rows(load, made)]
    return f"{table(head, [row(*each) for each in rounds.items()])}\n\n{table(stage_head, by_stage)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=str(_ROOT / "models" / "nano"))
    parser.add_argument("--port", type=int, default=50151, help="of the server that is started")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--streams", type=int, default=8, help="streams beside it in the second half")
    parser.add_argument("--words", type=int, default=1000, help="most words of a prompt")
    parser.add_argument(
        "--settle", type=float, default=5.0, help="seconds between the first streams and the first quote"
    )
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        spans, log = Path(folder) / "spans", Path(folder) / "log"
        try:
            with serving(arguments.model, arguments.port, spans, log):
                rounds = asyncio.run(run(arguments, f"127.0.0.1:{arguments.port}"))
        except BaseException:
            sys.stderr.write(log.read_text()[-4000:])
            raise
        stages = measured_stages(spans)
        for each in (each for made in rounds.values() for each in made):
            each.stages = stages[each.request_id]
        print(report(rounds))


if __name__ == "__main__":
    main()

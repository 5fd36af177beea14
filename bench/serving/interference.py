"""Inter-token latency of running streams before and while a long prompt is computed."""

import asyncio
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from bench.figures import percentile
from bench.serving.clients import Answer, Client, Turn
from bench.serving.words import common_text
from bench.serving.workloads import Prompts

_STREAM_WORDS = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Interference:
    """Inter-token latencies of running streams, in milliseconds."""

    quiet_itl_p50_ms: float
    """Before the long prompt arrives."""
    quiet_itl_p95_ms: float
    itl_p50_ms: float
    """From its arrival to its first token."""
    itl_p95_ms: float
    itl_max_ms: float
    ratio: float
    """Ratio of the p95 while it is computed to the quiet median."""
    long_prompt_tokens: int
    long_ttft_ms: float
    covered: bool
    """Whether all streams ran until the long prompt's first token; if not, request longer answers."""


async def ask_amid_streams(
    client: Client,
    draw: random.Random,
    prompts: Prompts,
    *,
    num_streams: int,
    long_tokens: int,
    max_tokens: int,
    quiet_seconds: float,
) -> tuple[list[Answer], Answer]:
    """Starts streams, and after some quiet seconds sends the long prompt.

    Returns:
        The streams' answers, and the long prompt's.

    Raises:
        AskError: a request was refused or failed.
    """
    questions = [Turn(role="user", text=common_text(draw, _STREAM_WORDS)) for _ in range(num_streams)]
    long_question = Turn(role="user", text=common_text(draw, prompts.num_words(long_tokens)))
    streams = [asyncio.create_task(client.ask([question], max_tokens=max_tokens)) for question in questions]
    await asyncio.sleep(quiet_seconds)
    long_answer = await client.ask([long_question], max_tokens=2)
    return await asyncio.gather(*streams), long_answer


def judge(streams: Sequence[Answer], long_answer: Answer) -> Interference:
    """Compares the gaps before the long prompt with those that overlap its computation."""
    begin = max(stream.token_times[0] for stream in streams)
    asked_at, first_token_at = long_answer.asked_at, long_answer.token_times[0]
    quiet = list(_gaps_ms(streams, begin, asked_at, whole=True))
    disturbed = list(_gaps_ms(streams, asked_at, first_token_at, whole=False))
    quiet_median, disturbed_p95 = percentile(quiet, 0.5), percentile(disturbed, 0.95)
    return Interference(
        quiet_itl_p50_ms=quiet_median,
        quiet_itl_p95_ms=percentile(quiet, 0.95),
        itl_p50_ms=percentile(disturbed, 0.5),
        itl_p95_ms=disturbed_p95,
        itl_max_ms=max(disturbed, default=0.0),
        ratio=disturbed_p95 / quiet_median if quiet_median else 0.0,
        long_prompt_tokens=long_answer.prompt_tokens,
        long_ttft_ms=1000 * long_answer.first_token_seconds,
        covered=all(stream.token_times[-1] >= first_token_at for stream in streams),
    )


def _gaps_ms(streams: Sequence[Answer], begin: float, end: float, *, whole: bool) -> Iterator[float]:
    """Returns the gaps inside an interval of time, or those that overlap it."""
    for stream in streams:
        for before, after in pairwise(stream.token_times):
            inside = begin <= before and after <= end if whole else before < end and after > begin
            if inside:
                yield 1000 * (after - before)

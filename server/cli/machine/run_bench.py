"""Measures the machine with a program of the engine's, and a model by asking a server that is started for it."""

import math
import os
import random
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import msgspec

from glimpse.client import Client, GlimpseError, Image
from glimpse.client.messages import Part
from glimpse.client.png import RGB, encode_png
from glimpse.engine.benchmark.messages import LimitsReport, StepShare
from glimpse.engine.checkpoint.location import DEFAULT_MODEL, resolve_checkpoint
from glimpse.engine.errors import CheckpointError
from glimpse.native.processors import num_processors
from glimpse.server.cli.console import say
from glimpse.server.cli.local.tables import json_text
from glimpse.server.cli.machine.bench_report import Answers, BenchReport, FirstToken, bench_text
from glimpse.server.cli.machine.served import serving
from glimpse.v1 import model_pb2

_WORDS = ("red", "blue", "green", "circle", "square", "triangle", "one", "two", "three", "above", "below", "left")
_PROMPT_WORDS = (100, 400)
_IMAGE_SIDE = 448
_REPEATS = 3
_ANSWER_SECONDS = 3.0
"""Time for an answer whose rate is measured."""
_MIN_TOKENS, _MAX_TOKENS = 8, 128
_AT_ONCE = 8
_DEFAULTS = ("--speculative=off",)
"""Draft tokens gain more with the repetitive answers of a small model than with others."""


def run_bench(model: str | None, flags: Sequence[str], *, with_levels: bool, as_json: bool) -> None:
    """Prints the report. Ends the process with a message if the machine or the model cannot be measured."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # Ctrl-C ends the server too
    load = os.getloadavg()[0]
    say("measuring memory and arithmetic")
    limits = msgspec.json.decode(_measured("limits"), type=LimitsReport)
    steps = _measure_steps(model) if with_levels else []
    say("loading the model")
    try:
        own = [] if model is None else [f"--model={model}"]
        with (
            serving([*_DEFAULTS, *own, *flags]) as (target, description),
            Client(target, max_retries=0) as client,
        ):
            report = BenchReport(
                processors=num_processors(),
                load=load,
                limits=limits,
                steps=steps,
                model=description,
                first_tokens=measure_first_tokens(client),
                answers=measure_answers(client),
            )
    except GlimpseError as error:
        sys.exit(f"glimpse: the model did not answer: {error}")
    print(json_text(report) if as_json else bench_text(report))


def _measure_steps(model: str | None) -> list[StepShare]:
    say("measuring steps at each level")
    try:
        checkpoint = resolve_checkpoint(model or str(DEFAULT_MODEL))
    except CheckpointError as error:
        sys.exit(f"glimpse: {error}")
    return msgspec.json.decode(_measured("steps", str(checkpoint)), type=list[StepShare])


def _measured(program: str, *arguments: str) -> bytes:
    """Returns what a program of the engine writes: this one loads no torch."""
    command = (sys.executable, "-m", f"glimpse.engine.benchmark.{program}", *arguments)
    done = subprocess.run(command, stdout=subprocess.PIPE, check=False)
    if done.returncode:
        sys.exit("glimpse: the program that measures this machine failed; its output is above")
    return done.stdout


def measure_first_tokens(client: Client) -> list[FirstToken]:
    """Measures the time until an answer begins, for each kind of prompt that the model takes."""
    say("measuring first tokens")
    (model, *_) = client.models()
    draw = random.Random(0)  # noqa: S311 - no secret
    _median_first_token(client, "", lambda: [_text(draw, 10)])  # warms up

    def texts(num_words: int) -> FirstToken:
        return _median_first_token(client, "", lambda: [_text(draw, num_words)])

    measured = [texts(num_words) for num_words in _PROMPT_WORDS if 2 * num_words < model.max_model_len]
    if model_pb2.MODALITY_IMAGE in model.input_modalities:
        content = f"an image of {_IMAGE_SIDE}×{_IMAGE_SIDE} pixels"
        measured.append(
            _median_first_token(client, content, lambda: [Image(noise_png(draw, _IMAGE_SIDE)), _text(draw, 10)])
        )
    return measured


def _median_first_token(client: Client, content: str, prompt: Callable[[], list[Part]]) -> FirstToken:
    """Asks with new prompts, none of which is cached."""
    seconds: list[float] = []
    num_tokens = 0
    for _ in range(_REPEATS):
        parts = prompt()
        begin = time.perf_counter()
        num_tokens = client.chat(parts, max_completion_tokens=1, ignore_eos=True).usage.prompt_tokens
        seconds.append(time.perf_counter() - begin)
    return FirstToken(prompt_tokens=num_tokens, content=content, seconds=statistics.median(seconds))


def measure_answers(client: Client) -> list[Answers]:
    """Measures the rate of one answer, and of several at once."""
    say("measuring answers")
    draw = random.Random(1)  # noqa: S311 - no secret
    rate = _rate(client, draw, 1, _MIN_TOKENS)
    num_tokens = max(_MIN_TOKENS, round(min(rate * _ANSWER_SECONDS, _MAX_TOKENS)))
    return [
        Answers(
            at_once=at_once,
            tokens=num_tokens,
            tokens_per_second=statistics.median(_rate(client, draw, at_once, num_tokens) for _ in range(_REPEATS)),
        )
        for at_once in (1, _AT_ONCE)
    ]


def _rate(client: Client, draw: random.Random, at_once: int, num_tokens: int) -> float:
    """Returns the tokens per second of answers together, from the first token of the first to the last of the last.

    Infinity if all came in one chunk, as few tokens of a fast model may.
    """
    prompts = [_text(draw, 20) for _ in range(at_once)]
    with ThreadPoolExecutor(at_once) as threads:
        spans = list(threads.map(lambda prompt: _span(client, prompt, num_tokens), prompts))
    begin, end = min(begin for begin, _ in spans), max(end for _, end in spans)
    return (num_tokens - 1) * at_once / (end - begin) if end > begin else math.inf


def _span(client: Client, prompt: str, num_tokens: int) -> tuple[float, float]:
    """Returns when an answer's first chunk came, and its last."""
    begin = end = 0.0
    for chunk in client.stream(prompt, max_completion_tokens=num_tokens, ignore_eos=True, return_token_ids=True):
        if any(choice.token_ids for choice in chunk.response.choices):
            end = time.perf_counter()
            begin = begin or end
    return begin, end


def _text(draw: random.Random, num_words: int) -> str:
    return " ".join(draw.choice(_WORDS) for _ in range(num_words))


def noise_png(draw: random.Random, side: int) -> bytes:
    """Returns a square RGB image as PNG."""
    rows = (draw.randbytes(3 * side) for _ in range(side))
    return encode_png(rows, width=side, height=side, colour_type=RGB)

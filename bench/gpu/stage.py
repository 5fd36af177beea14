"""One stage of `bench.gpu`, in a process of its own: `python -m bench.gpu.stage STAGE [--checkpoint PATH]`.

Prints each figure as a line of JSON as soon as it is known, and progress to standard error.
"""

import argparse
import gc
import json
import operator
import os
import random
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Literal

import torch

from bench.engine.divergence import ON_CPU, ON_GPU, compare
from bench.engine.driver import Driver, Question, text
from bench.figures import significant
from bench.gpu.draws import DRAWS, draw_seconds
from bench.gpu.idle import decode_idle_share
from bench.gpu.limits import device_limits
from bench.gpu.peer import output_tokens_per_second
from bench.gpu.workloads import PUBLISHED, ChatSizes, after_turns, batch_of_texts, chats, warm_up
from glimpse.engine.benchmark.costs import decode_bytes, prefill_flops, stored_bytes, vision_flops
from glimpse.engine.benchmark.limits import StepLimits
from glimpse.engine.benchmark.timed_engine import TimedEngine
from glimpse.engine.checkpoint.families.registry import load_model_config
from glimpse.engine.checkpoint.model_config.decoder import TextConfig
from glimpse.engine.protocol.config import ChosenQuantization, EngineConfig
from glimpse.engine.worker.loading.build_runner import choose_draw_tokens
from glimpse.engine.worker.loading.load_engine import LoadedEngine, load_core


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """The amount of work: enough for the figures on a GPU, enough to try the script on a CPU."""

    context: int = 512
    batches: tuple[int, ...] = (1, 8, 32)
    prefills: tuple[int, ...] = (512, 2048)
    repeats: int = 30
    num_streams: int = 64
    num_texts: int = 256
    text_lengths: tuple[int, int] = (100, 1024)
    chats: ChatSizes = field(default_factory=ChatSizes)
    num_chats: int = 96
    concurrency: int = 32


SMALL = Scale(
    context=32,
    batches=(1, 2),
    prefills=(32,),
    repeats=2,
    num_streams=4,
    num_texts=4,
    text_lengths=(4, 12),
    chats=ChatSizes(side=2, question_tokens=6, answer_tokens=4),
    num_chats=4,
    concurrency=2,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A stage's device and checkpoint."""

    checkpoint: Path
    device: Literal["cpu", "cuda"]
    scale: Scale

    def load(
        self,
        *,
        quantization: ChosenQuantization = "none",
        prefix_caching: bool = False,
        cuda_graphs: bool = True,
        prepares: bool = True,
    ) -> LoadedEngine:
        """Returns an engine that has captured its graphs, without prefix caching unless it is what is measured."""
        config = EngineConfig(
            model_path=str(self.checkpoint),
            device=self.device,
            quantization=quantization,
            prefix_caching=prefix_caching,
            cuda_graphs=cuda_graphs,
            speculative="off",  # each step has one token of each sequence
        )
        engine = load_core(config, on_progress=lambda *_: None)
        while prepares and engine.core.prepare():
            pass
        return engine


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One measurement."""

    name: str
    value: float
    unit: str
    aim: str = ""
    """What the value is compared with."""

    def __str__(self) -> str:
        aim = f" ({self.aim})" if self.aim else ""
        return f"{self.name}: {significant(self.value)} {self.unit}{aim}"


def limits(setting: Setting) -> Iterator[Figure]:
    """Measures the machine's limits."""
    measured = device_limits(setting.device)
    yield Figure(name="copy", value=measured.read_bytes_per_second / 1e9, unit="GB/s, read and written")
    yield Figure(name="matrix product", value=measured.flops_per_second / 1e12, unit="TFLOP/s in bfloat16")


def tests(setting: Setting) -> Iterator[Figure]:
    """Runs the oracle, kernel and graph tests on the device."""
    environment = os.environ | {"GLIMPSE_TEST_DEVICE": setting.device}
    paths = [
        "tests/engine/worker/models/test_oracle.py",
        "tests/engine/worker/models/test_oracle_videos.py",
        "tests/engine/worker/cuda",
    ]
    # Plugins of other tests may be missing there, so their options would be unknown.
    options = ["-q", "-p", "no:cacheprovider", "-W", "default::pytest.PytestConfigWarning"]
    command = [sys.executable, "-m", "pytest", *options, *filter(os.path.exists, paths)]
    done = subprocess.run(command, env=environment, stdout=sys.stderr, check=False)
    yield Figure(name="pytest's exit status", value=done.returncode, unit="", aim="0: all passed")


def same(setting: Setting) -> Iterator[Figure]:
    """Checks that answers are equal with and without graphs, prefix cache and batching."""
    draw, scale = random.Random(0), setting.scale
    questions = [
        *(Question(token_ids=text(draw, scale.context), output_tokens=32) for _ in range(4)),
        *chats(load_model_config(setting.checkpoint), 4, scale.chats, seed=0),
    ]
    plain = setting.load(cuda_graphs=False)
    expected = Driver(plain.core).ask(questions, concurrency=1).answers
    del plain
    _free_device_memory()
    driver = Driver(setting.load(prefix_caching=True).core)
    for name, concurrency in (("replayed", 1), ("from the prefix cache", 1), ("together", len(questions))):
        answers = driver.ask(questions, concurrency=concurrency).answers
        share = sum(map(operator.eq, answers, expected)) / len(questions)
        yield Figure(name=f"same answers, {name}", value=100 * share, unit="%", aim="beside eager ones, one by one")


def steps(setting: Setting) -> Iterator[Figure]:
    """Measures decode and prefill against the device's limits."""
    found, scale = device_limits(setting.device), setting.scale
    engine = setting.load()
    timed = TimedEngine(engine.core, engine.model, repeats=scale.repeats)
    yield from _decodes(timed, engine.model.text, found, scale, "none")
    for num_tokens in scale.prefills:
        ideal = prefill_flops(engine.model.text, num_tokens) / found.flops_per_second
        yield from _against(f"prefill of {num_tokens}", timed.prefill(num_tokens), ideal)
    ideal = vision_flops(engine.model.vision, 32 * 32) / found.flops_per_second
    yield from _against("image of 448 x 448", timed.image(448, 448), ideal)


def graphs(setting: Setting) -> Iterator[Figure]:
    """Measures decode steps with graphs for the longest context, then with those for the steps' own contexts."""
    engine, scale = setting.load(prepares=False), setting.scale  # on demand, only the former are captured
    timed = TimedEngine(engine.core, engine.model, repeats=scale.repeats)
    for name in ("the longest context", "their own contexts"):
        for batch_size in scale.batches:
            timed.run(batch_size, scale.context // 2)
            median = statistics.median(timed.decode())
            label = f"decode step, {batch_size} x {scale.context // 2}, graph for {name}"
            yield Figure(name=label, value=1000 * median, unit="ms")
        timed.end()
        while engine.core.prepare():
            pass


def quantization(setting: Setting) -> Iterator[Figure]:
    """Measures the speed and the divergence of quantized weights."""
    found, scale = device_limits(setting.device), setting.scale
    schemes: tuple[ChosenQuantization, ...] = ("fp8", "int8", "int4")
    for scheme in schemes:
        engine = setting.load(quantization=scheme)
        timed = TimedEngine(engine.core, engine.model, repeats=scale.repeats)
        for figure in _decodes(timed, engine.model.text, found, scale, scheme):
            yield replace(figure, name=f"{scheme}, {figure.name}")
        del engine, timed
        _free_device_memory()
    draw = random.Random(0)
    prompts = [text(draw, min(256, scale.context)) for _ in range(4)]
    variants = ON_GPU if setting.device == "cuda" else ON_CPU
    for variant, apart in compare(setting.checkpoint, prompts, variants, torch.device(setting.device)):
        yield Figure(name=f"{variant}, rms of logits", value=apart.rms, unit="sd", aim="from float32")
        yield Figure(name=f"{variant}, same first token", value=100 * apart.same_first, unit="%")
        _free_device_memory()


def sampling(setting: Setting) -> Iterator[Figure]:
    """Measures the kernels that draw tokens beside torch's operations, on random logits."""
    vocab_size = load_model_config(setting.checkpoint).text.vocab_size
    kernels = choose_draw_tokens("triton" if setting.device == "cuda" else "torch", torch.device(setting.device))
    for num_rows in (1, setting.scale.concurrency, setting.scale.num_texts):
        for name, params, spread in DRAWS:
            logits = spread * torch.randn(num_rows, vocab_size, device=setting.device)
            seconds = {"torch": draw_seconds(logits, params, None, repeats=setting.scale.repeats)}
            if kernels is not None:
                seconds["kernels"] = draw_seconds(logits, params, kernels, repeats=setting.scale.repeats)
            for path, (host, whole) in seconds.items():
                label = f"{name}, {num_rows} rows, {path}"
                yield Figure(name=f"{label}, host", value=1e6 * host, unit="µs", aim="until all is launched")
                yield Figure(name=label, value=1e6 * whole, unit="µs", aim="until the tokens are on the host")


def idle(setting: Setting) -> Iterator[Figure]:
    """Measures how long the device waits for the host in steady decoding."""
    engine, scale = setting.load(), setting.scale
    driver = Driver(engine.core)
    draw = random.Random(0)
    questions = [Question(token_ids=text(draw, scale.context), output_tokens=4096) for _ in range(scale.num_streams)]
    driver.begin(questions)
    for _ in range(50):  # until all decode, and whatever is captured has been
        engine.core.step()
    share = decode_idle_share(engine.core)
    yield Figure(name=f"idle, {scale.num_streams} streams", value=100 * share, unit="% of the time", aim="under 5 %")


def batch(setting: Setting) -> Iterator[Figure]:
    """Runs nano-vllm's workload on our engine and on transformers' continuous batching."""
    scale = setting.scale
    shortest, longest = scale.text_lengths
    questions = batch_of_texts(scale.num_texts, shortest=shortest, longest=longest)
    engine = setting.load()
    driver = Driver(engine.core)
    driver.ask(questions[:8], concurrency=8)
    ours = driver.ask(questions, concurrency=len(questions)).output_tokens_per_second
    yield Figure(name=f"{len(questions)} texts", value=ours, unit="output tokens/s")
    text_config = engine.model.text
    del engine, driver
    _free_device_memory()
    theirs = output_tokens_per_second(text_config, questions, setting.device)
    yield Figure(name="the same, transformers", value=theirs, unit="output tokens/s")
    yield Figure(name="ratio", value=ours / theirs, unit="times", aim="at least 3")


def dashinfer(setting: Setting) -> Iterator[Figure]:
    """Runs DashInfer-VLM's workload: chats about two to four images, in the first and the third turn."""
    engine, scale = setting.load(prefix_caching=True), setting.scale
    driver, sizes = Driver(engine.core), scale.chats
    warm_up(driver, engine.model, sizes)
    published = PUBLISHED.get(setting.checkpoint.name, ())
    for seed, (num_turns, concurrency) in enumerate(((0, 1), (0, scale.concurrency), (2, 1), (2, scale.concurrency))):
        num_chats = min(6, scale.num_chats) if concurrency == 1 else scale.num_chats
        questions = chats(engine.model, num_chats, sizes, seed=seed)
        questions = after_turns(
            driver, questions, sizes, num_turns=num_turns, concurrency=scale.concurrency, seed=100 + seed
        )
        rate = driver.ask(questions, concurrency=concurrency).requests_per_second
        theirs = {(0, 1): 0, (0, 32): 1, (2, 32): 2}.get((num_turns, concurrency))
        aim = f"an A100 with DashInfer: {published[theirs]}" if published and theirs is not None else ""
        name = f"{concurrency} at a time, {num_turns} earlier turns"
        yield Figure(name=name, value=rate, unit="requests/s", aim=aim)


STAGES: Mapping[str, Callable[[Setting], Iterator[Figure]]] = {
    "limits": limits,
    "tests": tests,
    "steps": steps,
    "sampling": sampling,
    "graphs": graphs,
    "idle": idle,
    "dashinfer": dashinfer,
    "batch": batch,
    "same": same,
    "quantization": quantization,
}
"""Stages by name, most important first."""


def _decodes(
    timed: TimedEngine, text_config: TextConfig, found: StepLimits, scale: Scale, scheme: ChosenQuantization
) -> Iterator[Figure]:
    for batch_size in scale.batches:
        weight_bytes = stored_bytes(text_config, quantization=scheme, num_tokens=batch_size)
        timed.run(batch_size, scale.context)
        ideal = decode_bytes(text_config, weight_bytes, batch=batch_size, context=scale.context)
        name = f"decode step, {batch_size} x {scale.context}"
        yield from _against(name, timed.decode(), ideal / found.read_bytes_per_second)
    timed.end()


def _against(name: str, seconds: list[float], ideal_seconds: float) -> Iterator[Figure]:
    median = statistics.median(seconds)
    yield Figure(name=name, value=1000 * median, unit="ms")
    yield Figure(name=f"{name}, of the limit", value=median / ideal_seconds, unit="times the least possible time")


def _free_device_memory() -> None:
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _tell(message: str) -> None:
    print(message, file=sys.stderr)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("stage", choices=tuple(STAGES))
    parser.add_argument("--checkpoint", type=Path, default=Path())
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    arguments = parser.parse_args()
    scale = Scale() if arguments.device == "cuda" else SMALL
    setting = Setting(checkpoint=arguments.checkpoint, device=arguments.device, scale=scale)
    for figure in STAGES[arguments.stage](setting):
        _tell(str(figure))
        print(json.dumps(asdict(figure)), flush=True)


if __name__ == "__main__":
    main()

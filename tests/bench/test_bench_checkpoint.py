"""Checkpoints for benchmarks."""

import random
from dataclasses import replace
from pathlib import Path

import pytest
from safetensors.torch import load_file

from bench.make_checkpoint import PRESETS, make_checkpoint
from bench.serving.words import COMMON, common_text
from glimpse import SamplingParams
from glimpse.engine.benchmark.costs import stored_bytes
from glimpse.engine.benchmark.steps import Kinds, measure, step_work
from glimpse.engine.benchmark.timed_engine import TimedEngine
from glimpse.engine.checkpoint.text.tokenizer import load_tokenizer
from glimpse.engine.protocol.config import EngineConfig
from glimpse.engine.worker.loading.load_engine import load_core
from glimpse.offline.llm import LLM


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiny")
    make_checkpoint(path, PRESETS["tiny"], seed=0)
    return path


def test_a_checkpoint_answers_to_the_length_that_was_asked(checkpoint: Path) -> None:
    llm = LLM(checkpoint, dtype="float32", num_threads=1, kv_cache_bytes=1 << 22)
    conversation = [{"role": "user", "content": "Where is the red house?"}]
    (output,) = llm.chat(conversation, SamplingParams(temperature=0.0, max_tokens=40))
    assert len(output.outputs[0].token_ids) == 40
    assert output.outputs[0].text.isascii()


def test_the_same_seed_writes_the_same_bytes(checkpoint: Path, tmp_path: Path) -> None:
    make_checkpoint(tmp_path, PRESETS["tiny"], seed=0)
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == {
        file.name: file.read_bytes() for file in checkpoint.iterdir()
    }


def test_safetensors_reads_what_was_written(checkpoint: Path) -> None:
    stored = load_file(checkpoint / "model.safetensors")
    assert stored["model.embed_tokens.weight"].shape == (2048, 128)
    assert stored["visual.patch_embed.proj.weight"].shape == (64, 3, 2, 14, 14)
    assert "model.layers.1.mlp.down_proj.weight" in stored


def test_a_checkpoint_with_norms_of_heads_is_computed(tmp_path: Path) -> None:
    make_checkpoint(tmp_path, replace(PRESETS["tiny"], head_norms=1, head_dim=64), seed=0)
    engine = load_core(
        EngineConfig(model_path=str(tmp_path), dtype="float32", num_threads=1),
        on_progress=lambda _stage, _fraction: None,
    )
    assert engine.model.text.head_norms
    assert (engine.model.text.head_dim, engine.model.placeholder_ids) == (64, {})
    (step,) = measure(
        TimedEngine(engine.core, engine.model, repeats=1),
        step_work(engine),
        Kinds(max_batch=1, kinds=["prefill"], prefills=[64]),
    )
    assert step.least_milliseconds > 0


def test_a_common_word_is_one_token(checkpoint: Path) -> None:
    tokenizer = load_tokenizer(checkpoint)
    text = " " + common_text(random.Random(0), 5 * len(COMMON))
    assert len(tokenizer.encode(text)) == 5 * len(COMMON)


def test_every_kind_of_step_is_timed(checkpoint: Path) -> None:
    config = EngineConfig(
        model_path=str(checkpoint),
        backend="torch",
        dtype="float32",
        prefix_caching=False,
        num_threads=1,
        max_decode_slowdown=1e6,
    )
    engine = load_core(config, on_progress=lambda _stage, _fraction: None)
    timed = TimedEngine(engine.core, engine.model, repeats=1)
    measured = list(measure(timed, step_work(engine), Kinds(max_batch=1)))
    assert [each.name for each in measured] == [
        "decode 1 x 512",
        "decode 1 x 2048",
        "decode 1 x 512 + 100 prompt tokens",
        "decode 1 x 512 + 200 prompt tokens",
        "decode 1 x 512, temperature 1",
        "prefill 512",
        "prefill 2048",
        "image 448 x 448",
        "image 1036 x 756",
    ]
    assert all(each.least_milliseconds > 0 for each in measured[:-1])
    assert not engine.core.has_work
    (alone,) = measure(timed, step_work(engine), Kinds(max_batch=1, kinds=["prefill"], prefills=[64]))
    assert alone.name == "prefill 64"


def test_a_part_of_a_prompt_is_no_mixed_step(checkpoint: Path) -> None:
    # Without a bound on time, a step takes twice the tokens of the largest before it: one decode and 15 others.
    config = EngineConfig(
        model_path=str(checkpoint), backend="torch", dtype="float32", num_threads=1, max_decode_slowdown=1e6
    )
    engine = load_core(config, on_progress=lambda _stage, _fraction: None)
    timed = TimedEngine(engine.core, engine.model, repeats=1)
    timed.run(1, 8)
    with pytest.raises(RuntimeError, match=r"^a step took 15 of 100 prompt tokens$"):
        timed.mixed(100)


def test_weights_of_four_bytes_are_counted_as_such(checkpoint: Path) -> None:
    config = EngineConfig(model_path=str(checkpoint), backend="torch", dtype="float32", num_threads=1)
    engine = load_core(config, on_progress=lambda _stage, _fraction: None)
    work = step_work(engine)
    assert work.weight_bytes(1) == 2 * stored_bytes(engine.model.text, quantization="none")
    assert work.value_bytes == 4

"""Qwen2.5-VL: logits and greedy answers match transformers, including windowed attention and video times."""

import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import vision_utils

from glimpse import SamplingParams
from glimpse.engine.checkpoint.families.qwen.qwen2_vl import MAX_SECONDS_PER_FRAME
from glimpse.engine.checkpoint.families.registry import load_model_config
from glimpse.engine.protocol.media import MediaSpan
from glimpse.engine.worker.loading.load_engine import load_model
from glimpse.engine.worker.models.encoders.varlen_segments import window_order
from glimpse.engine.worker.models.qwen_vl import layout_prompt
from glimpse.media.kind import MediaKind
from glimpse.offline.llm import LLM
from tests.checkpoints.qwen2_vl import Family, make_checkpoint
from tests.checkpoints.refusals import assert_refused, refused
from tests.engine.harness import BLOCK_SIZE, Harness, Prompt, encode_of, make_prompt
from tests.engine.levels import at_outer_levels, needs_kernels
from tests.engine.worker.models.steps import assert_same
from tests.oracles.qwen_vl import embeddings, greedy_answer, grids, load_oracle, token_types

get_vision_window_index = vision_utils.get_vision_window_index

CHECKPOINT = partial(make_checkpoint, family="qwen2_5_vl")
NUM_TOKENS = 12
CPU = torch.device("cpu")


def timed(prompt: Prompt, *mrope_time_intervals: float) -> Prompt:
    """Returns the prompt with these intervals between temporal patches of its videos."""
    steps = iter(mrope_time_intervals)
    spans = [
        replace(span, mrope_time_interval=next(steps)) if span.kind is MediaKind.VIDEO else span
        for span in prompt.spans
    ]
    return replace(prompt, spans=tuple(spans))


# Videos have no more temporal positions than height or width; see `tests.engine.worker.models.test_oracle_videos`.
PROMPTS = {
    "text": make_prompt(1, 23),
    "image": make_prompt(2, 5, (112, 84), 9),
    "images": make_prompt(3, 3, (28, 28), 1, (56, 196), 1, (140, 28), 4, (84, 112), 6),
    "video": timed(make_prompt(4, 5, (6, 140, 56), 9), 1.5),
    "among images": timed(make_prompt(5, 3, (4, 56, 168), 2, (84, 56), 1, (2, 28, 140), 4, (56, 56), 6), 4.0, 0.3),
}


def assert_agrees(harness: Harness, path: Path, prompt: Prompt, **options: list[int]) -> None:
    sequence = harness.answer(harness.begin(prompt), NUM_TOKENS, **options)
    assert_same(sequence, greedy_answer(path, prompt.token_ids, prompt.spans, prompt.images, NUM_TOKENS))


@pytest.mark.parametrize("name", ["text", "images"])
def test_yarn_lengthens_the_context(tmp_path: Path, name: str) -> None:
    path = CHECKPOINT(tmp_path / "checkpoint")
    config = json.loads((path / "config.json").read_bytes())
    config["rope_scaling"] |= {
        "type": "yarn",
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 16,
    }
    (path / "config.json").write_text(json.dumps(config))
    assert_agrees(Harness(path), path, PROMPTS[name])


@pytest.mark.parametrize("prompt", PROMPTS.values(), ids=PROMPTS.keys())
def test_answers_match_transformers(harness: Harness, checkpoint: Path, prompt: Prompt) -> None:
    assert_agrees(harness, checkpoint, prompt)
    assert_agrees(harness, checkpoint, prompt, chunks=[5, 7])


@pytest.mark.parametrize("nested_layout", [False, True])
def test_stored_layouts(tmp_path: Path, nested_layout: bool) -> None:
    path = make_checkpoint(tmp_path, seed=7, hidden=128, tied=False, nested_layout=nested_layout, family="qwen2_5_vl")
    assert_agrees(Harness(path), path, PROMPTS["image"])


def test_cached_prefix_that_ends_within_a_video(harness: Harness, checkpoint: Path) -> None:
    prompt = PROMPTS["video"]
    first = harness.answer(harness.begin(prompt), 2)
    second = harness.answer(harness.begin(prompt, cached=first, num_cached=2 * BLOCK_SIZE), NUM_TOKENS)
    expected = greedy_answer(checkpoint, prompt.token_ids, prompt.spans, prompt.images, NUM_TOKENS)
    assert second.answer == expected.token_ids


def test_answers_depend_on_the_time_between_frames(harness: Harness) -> None:
    prompt = make_prompt(6, 3, (6, 56, 84), 9)
    slow, fast = (harness.answer(harness.begin(timed(prompt, step)), 1).logits[0] for step in (1.0, 40.0))
    assert (slow - fast).abs().max() > 1e-3


@needs_kernels
@at_outer_levels
def test_native_kernels_are_as_accurate_as_torch(checkpoint: Path, level: object) -> None:
    exact, plain = Harness(checkpoint), Harness(checkpoint, torch.bfloat16)
    native = Harness(checkpoint, torch.bfloat16, level=level)  # type: ignore[arg-type]
    prompt = PROMPTS["images"]
    expected, near, found = (each.answer(each.begin(prompt), 1).logits[0] for each in (exact, plain, native))
    assert (found - expected).std() <= 1.5 * (near - expected).std()


@pytest.mark.parametrize("sides", [(28, 28), (84, 140), (112, 112), (56, 196), (168, 84)])
def test_encoder_outputs_match_transformers(checkpoint: Path, sides: tuple[int, int]) -> None:
    image = np.random.default_rng(sides).integers(0, 256, (*sides, 3), dtype=np.uint8)
    expected, _ = embeddings(checkpoint, image)
    model = load_model(checkpoint, load_model_config(checkpoint), CPU, torch.float32, lambda stage, fraction: None)
    with torch.inference_mode():
        (encoded,) = model.encode([encode_of(memoryview(image.tobytes()), (1, sides[0] // 14, sides[1] // 14))])
    assert (encoded - expected).abs().max() <= 1e-5


even = st.integers(1, 9).map(lambda tokens: 2 * tokens)
grid_lists = st.lists(st.tuples(st.integers(1, 3), even, even), min_size=1, max_size=3)


@given(grids=grid_lists, side=st.integers(1, 4))
def test_windows_match_transformers(grids: list[tuple[int, int, int]], side: int) -> None:
    order = window_order(grids, merge=2, side=side)
    tokens = order.patches.view(-1, 4)[:, 0] // 4
    assert torch.equal(order.patches[order.inverse], torch.arange(len(order.patches)))
    found = {frozenset(part.tolist()) for part in tokens.split([length // 4 for length in order.lengths])}
    index, ends = get_vision_window_index(
        torch.tensor(grids), spatial_merge_size=2, window_size=28 * side, patch_size=14
    )
    lengths = (ends[1:] - ends[:-1]) // 4
    assert found == {frozenset(part.tolist()) for part in index.split(lengths.tolist())}
    assert sorted(order.lengths) == list(order.lengths)


@given(
    sides=st.tuples(st.integers(1, 4), st.integers(2, 6), st.integers(2, 6)),
    seconds=st.floats(0, 3),
    num_text=st.integers(1, 5),
)
def test_positions_match_transformers(
    checkpoint: Path, sides: tuple[int, int, int], seconds: float, num_text: int
) -> None:
    grid_t, height, width = sides
    num_tokens = grid_t * height * width
    span = MediaSpan(
        kind=MediaKind.VIDEO,
        start=num_text,
        num_tokens=num_tokens,
        key=b"video",
        grid=(grid_t, 2 * height, 2 * width),
        mrope_time_interval=2 * float(np.float32(seconds)),
    )
    layout = layout_prompt(num_text + num_tokens, [span], spatial_merge_size=2)
    positions, _ = load_oracle(checkpoint).model.get_rope_index(
        torch.zeros(1, num_text + num_tokens, dtype=torch.long),
        token_types(num_text + num_tokens, [span]),
        video_grid_thw=grids([span], MediaKind.VIDEO),
        second_per_grid_ts=torch.tensor([seconds]),
    )
    assert layout.prompt_positions.tolist() == positions[:, 0].tolist()
    assert layout.delta == layout.prompt_positions.max() + 1 - num_text - num_tokens


def test_videos_with_different_rates_do_not_share_a_prefix(checkpoint: Path) -> None:
    llm = LLM(checkpoint, dtype="float32", device="cpu", kv_cache_bytes=8 << 20, num_threads=1)
    frames = np.random.default_rng(0).integers(0, 256, (4, 56, 84, 3), dtype=np.uint8)

    def num_cached(**options: float) -> int:
        part = {"type": "video", "video": frames, **options}
        messages = [{"role": "user", "content": [part, {"type": "text", "text": "What happens, and where, and when?"}]}]
        (output,) = llm.chat(messages, SamplingParams(temperature=0, max_tokens=2, ignore_eos=True))
        return output.num_cached_tokens

    assert num_cached() == 0
    assert num_cached() > 0
    assert num_cached(fps=2) > 0  # the default
    assert num_cached(fps=1) == 0
    assert num_cached(fps=1e-300) == 0
    assert num_cached(fps=0.5 / MAX_SECONDS_PER_FRAME) > 0


test_refuses_unsupported_vision_configs = refused(
    ({"vision_config": {"hidden_act": "gelu"}}, "vision_config.hidden_act"),
    ({"vision_config": {"window_size": 27}}, "vision_config.window_size"),
    ({"vision_config": {"rope_parameters": {"rope_theta": 5000.0}}}, "vision_config.rope_parameters"),
)


@pytest.mark.parametrize("family", ["qwen2_vl", "qwen2_5_vl"])
def test_refuses_another_activation_of_the_decoder(tmp_path: Path, family: Family) -> None:
    config = json.loads((make_checkpoint(tmp_path, family=family) / "config.json").read_text())
    assert_refused(tmp_path, {**config, "hidden_act": "gelu"}, "'hidden_act': expected 'silu', got 'gelu'")


def test_refuses_another_activation_of_qwen2_vls_encoder(tmp_path: Path) -> None:
    config = json.loads((make_checkpoint(tmp_path) / "config.json").read_text())
    config["vision_config"]["hidden_act"] = "gelu"
    assert_refused(tmp_path, config, "'vision_config.hidden_act': expected 'quick_gelu', got 'gelu'")

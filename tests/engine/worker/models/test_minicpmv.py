"""MiniCPM-V: logits and greedy answers match the reference however prompts are divided into steps."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from glimpse.engine.checkpoint.families.registry import load_model_config
from glimpse.engine.checkpoint.model_config.model import read_json
from glimpse.engine.checkpoint.text.media_inputs import read_media
from glimpse.engine.errors import CheckpointError
from glimpse.engine.protocol.media import MediaSpan
from glimpse.engine.worker.loading.load_engine import load_model
from glimpse.engine.worker.models.encoders.resampler import position_waves
from glimpse.engine.worker.models.encoders.tiles import join_patches
from glimpse.engine.worker.models.minicpmv import MiniCPMV, make_model, nearest_positions
from glimpse.media.kind import MediaKind
from glimpse.media.processing.sizing.scaled_frames import ScaledFrames, temporal_id
from glimpse.media.processing.video import make_video
from tests.checkpoints.files import write_changed_config, write_json
from tests.checkpoints.minicpmv import NUM_QUERIES, TOKEN_IDS, Version, make_minicpmv_checkpoint
from tests.engine.harness import Harness, PlacedMedium, Prompt, encode_of, prompt_with
from tests.engine.prepared_media import image_of
from tests.engine.worker.models.steps import LevelSteps, agreement, assert_same
from tests.media.images import scene
from tests.oracles.minicpmv import Frames, encode, greedy_answer, load_oracle, slices_of
from tests.oracles.minicpmv_vectors import images, load_vectors

CHECKPOINT = make_minicpmv_checkpoint
NUM_TOKENS = 8
SIZES = {(60, 60): 3, (200, 61): 4, (20, 21): 1, (37, 301): 6, (300, 300): 10}
"""(width, height) of images → slices, overviews included."""


@pytest.fixture(scope="module")
def model(checkpoint: Path) -> MiniCPMV:
    config, cpu = load_model_config(checkpoint), torch.device("cpu")
    found = load_model(checkpoint, config, cpu, torch.float32, lambda stage, fraction: None, scheme=None)
    assert isinstance(found, MiniCPMV)
    return found


def prompt_of(checkpoint: Path, seed: int, *parts: int | tuple[int, int]) -> Prompt:
    """Returns a prompt of images and random text: an integer is a number of text tokens, a pair an image's size. A mark
    stands before and after the placeholder tokens of each slice."""

    def place(_: np.random.Generator, part: tuple[int, int]) -> PlacedMedium:
        image = image_of(checkpoint, *part)
        run = [TOKEN_IDS["<slice>"], *[TOKEN_IDS["<unk>"]] * NUM_QUERIES, TOKEN_IDS["</slice>"]]
        return PlacedMedium(
            token_ids=run * SIZES[part],
            kind=MediaKind.IMAGE,
            grid=image.grid,
            content=image.pixels,
            key=image.key,
            runs=tuple((index * len(run) + 1, NUM_QUERIES) for index in range(SIZES[part])),
            source=slices_of(scene(*part)),
        )

    return prompt_with(seed, parts, place)


PARTS: dict[str, tuple[int | tuple[int, int], ...]] = {
    "text": (23,),
    "overview alone": (5, (20, 21), 9),
    "images": (3, (60, 60), 2, (37, 301), 6),
    "most slices": ((300, 300), 4, (200, 61), 1),
}


@pytest.fixture(scope="module")
def prompts(checkpoint: Path) -> dict[str, Prompt]:
    return {name: prompt_of(checkpoint, seed, *parts) for seed, (name, parts) in enumerate(PARTS.items())}


assert_agrees = agreement(greedy_answer, "sources")


class TestSteps(LevelSteps):
    agrees = staticmethod(assert_agrees)
    names = tuple(PARTS)
    divided, cached = "images", ("most slices",)
    blocks = (1, 2, 3)


@pytest.mark.parametrize("version", ["4.0", "4.5"])
def test_other_versions(tmp_path: Path, version: Version) -> None:
    path = make_minicpmv_checkpoint(tmp_path, version)
    harness = Harness(path)
    for seed, name in enumerate(PARTS):
        prompt = prompt_of(path, seed, *PARTS[name])
        assert_agrees(harness.answer(harness.begin(prompt), NUM_TOKENS), path)
        chunked = harness.answer(harness.begin(prompt), NUM_TOKENS, chunks=[7, 9])
        assert_agrees(chunked, path)


def video_prompt(path: Path, seed: int, num_frames: int, *, seconds: float | None = None) -> tuple[Prompt, Frames]:
    """Returns a prompt of text around a video, whose packs' tokens stand between marks, and the reference's frames."""
    processing = read_media(path, load_model_config(path)).videos
    assert processing is not None
    scenes = [scene(60, 40, seed * 100 + index) for index in range(num_frames)]
    times = () if seconds is None else tuple(seconds * index for index in range(num_frames))
    video = make_video(scenes, num_frames, processing, frame_seconds=times, fps=None)
    ids = list(video.grid[4:]) or [-1] * num_frames
    packed = video.grid[3] if times and len(video.grid) > 3 else 1
    packs = [ids[start : start + packed] for start in range(0, num_frames, packed)]
    mark, text = TOKEN_IDS["<slice>"], np.random.default_rng(seed).integers(0, 256, 12).tolist()
    tokens = [mark, *[TOKEN_IDS["<unk>"]] * NUM_QUERIES]
    span = MediaSpan(
        kind=MediaKind.VIDEO,
        start=5,
        num_tokens=len(packs) * len(tokens),
        runs=tuple((index * len(tokens) + 1, NUM_QUERIES) for index in range(len(packs))),
        key=video.key,
        grid=video.grid,
    )
    prompt = Prompt(token_ids=(*text[:5], *(tokens * len(packs)), *text[5:]), spans=(span,), images=(video.pixels,))
    return prompt, Frames(pixels=[slices_of(each, most=1)[0] for each in scenes], packs=packs)


def assert_video_agrees(harness: Harness, path: Path, prompt: Prompt, frames: Frames, **options: Any) -> None:
    sequence = harness.answer(harness.begin(prompt), NUM_TOKENS, **options)
    assert_same(sequence, greedy_answer(path, prompt.token_ids, [frames], NUM_TOKENS))


@pytest.mark.parametrize("num_frames", [1, 4, 20])
def test_videos(harness: Harness, checkpoint: Path, num_frames: int) -> None:
    prompt, frames = video_prompt(checkpoint, 1, num_frames, seconds=0.5)
    assert [len(pack) for pack in frames.packs] == [1] * num_frames
    assert_video_agrees(harness, checkpoint, prompt, frames)
    assert_video_agrees(harness, checkpoint, prompt, frames, chunks=[4, 2])


def test_videos_with_times_and_packs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = make_minicpmv_checkpoint(tmp_path, "4.5")
    harness = Harness(path)
    assert_video_agrees(harness, path, *video_prompt(path, 2, 3))
    prompt, frames = video_prompt(path, 3, 4, seconds=1.3)
    assert frames.packs == [[0], [13], [26], [39]]
    assert_video_agrees(harness, path, prompt, frames)
    # Published checkpoints pack more frames than fit a test.
    monkeypatch.setattr(ScaledFrames, "times", lambda _, seconds: (3, *map(temporal_id, seconds)))
    prompt, frames = video_prompt(path, 4, 23, seconds=0.4)
    assert [len(pack) for pack in frames.packs] == [*[3] * 7, 2]
    assert_video_agrees(harness, path, prompt, frames)
    assert_video_agrees(harness, path, prompt, frames, chunks=[9, 3])


def test_the_encoder_computes_what_vllm_computes(checkpoint: Path, model: MiniCPMV) -> None:
    for index, expected in load_vectors().items():
        pixels = images()[int(index)]
        rows, columns = pixels.shape[0] // 14, pixels.shape[1] // 14
        patches = pixels.reshape(rows, 14, columns, 14, 3).swapaxes(1, 2).copy()
        (ours,) = model.encode([encode_of(patches.data.cast("B"), (rows, columns, 0, 0, 0, 0))])
        assert (ours - torch.tensor(expected)).abs().max() <= 1e-4
        assert (encode(checkpoint, [pixels]) - torch.tensor(expected)).abs().max() <= 1e-4


def test_slices_beyond_a_batch_are_encoded_alike(checkpoint: Path, model: MiniCPMV) -> None:
    patches = torch.randint(0, 256, (4 + 12 * 4, 14, 14, 3), dtype=torch.uint8)
    grid = (2, 2, 3, 4, 2, 2)
    (whole,) = model.encode([encode_of(patches.numpy().data.cast("B"), grid)])
    slices = [join_patches(patches[:4], (1, 1), (2, 2)), join_patches(patches[4:], (3, 4), (2, 2))]
    expected = encode(checkpoint, list(torch.cat(slices).numpy()))
    assert (whole - expected).abs().max() <= 1e-4


def test_learned_positions_cover_slices_of_any_size() -> None:
    cpu = torch.device("cpu")
    assert nearest_positions(10, 10, 10, cpu).tolist() == list(range(100))
    assert nearest_positions(1, 5, 10, cpu).tolist() == [0, 2, 4, 6, 8]
    assert nearest_positions(2, 20, 10, cpu).tolist() == [50 * row + n // 2 for row in range(2) for n in range(20)]


def test_positions_of_keys_are_first_those_of_columns() -> None:
    waves = position_waves(2, 3, 8, torch.device("cpu"))
    assert waves.shape == (6, 8)
    column, row = torch.tensor([2.0, 0.02]), torch.tensor([1.0, 0.01])
    assert torch.allclose(waves[5], torch.cat([column.sin(), column.cos(), row.sin(), row.cos()]))


def test_tensors_have_the_names_that_were_published(checkpoint: Path) -> None:
    found = make_model(checkpoint, load_model_config(checkpoint))
    assert {name: each.shape for name, each in found.named_weights()} == {
        name: each.shape for name, each in load_oracle(checkpoint).tensors.items()
    }
    assert found.is_unused("resampler.pos_embed")
    assert found.is_unused("vpm.encoder.layers.2.mlp.fc1.weight")
    assert not found.is_unused("vpm.encoder.layers.1.mlp.fc1.weight")


def changed(tmp_path: Path, checkpoint: Path, **fields: Any) -> Path:
    (tmp_path / "tokenizer.json").write_bytes((checkpoint / "tokenizer.json").read_bytes())
    return write_changed_config(tmp_path, read_json(checkpoint / "config.json"), **fields)


def test_the_last_layer_may_be_dropped(tmp_path: Path, checkpoint: Path) -> None:
    encoder: Any = load_model_config(changed(tmp_path, checkpoint, drop_vision_last_layer=True)).encoder
    assert encoder.vit.num_layers == 1


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"version": 2.5}, "'version': expected one of 2.6, 4.0, 4.5; got 2.5"),
        ({"slice_mode": False}, "'slice_mode': expected True, got False"),
        ({"hidden_size": 100}, "'hidden_size': expected a multiple of 128, got 100"),
        (
            {"vision_config": {"model_type": "idefics2"}},
            "'vision_config.model_type': expected 'siglip', got 'idefics2'",
        ),
    ],
)
def test_refuses_other_models_by_name(tmp_path: Path, checkpoint: Path, fields: dict[str, Any], complaint: str) -> None:
    with pytest.raises(CheckpointError, match=complaint):
        load_model_config(changed(tmp_path, checkpoint, **fields))


def test_refuses_tokenizers_without_the_placeholder(tmp_path: Path, checkpoint: Path) -> None:
    write_json(changed(tmp_path, checkpoint) / "tokenizer.json", {"added_tokens": []})
    with pytest.raises(CheckpointError, match="'added_tokens': expected '<unk>' among them"):
        load_model_config(tmp_path)

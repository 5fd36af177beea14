"""Gemma 4 with audio, also beside images: features, logits and greedy answers match transformers."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import PIL.Image
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import Gemma4Processor

from glimpse import LLM, SamplingParams
from glimpse.engine.checkpoint.families.registry import family_of, load_model_config
from glimpse.engine.checkpoint.families.token_layout import LayoutContext
from glimpse.engine.checkpoint.text.media_inputs import read_media
from glimpse.engine.errors import CheckpointError
from glimpse.media.errors import MediaError
from glimpse.media.kind import MediaKind
from glimpse.media.processing.audio import AudioProcessing, audio_from_samples
from tests.checkpoints.files import write_json
from tests.checkpoints.gemma4 import PATCH, POOL, TOKEN_IDS, make_gemma4_checkpoint, make_large_gemma4_checkpoint
from tests.engine.harness import Harness, PlacedMedium, Prompt, prompt_with
from tests.engine.worker.models.steps import NativeSteps, agreement
from tests.engine.worker.models.test_gemma4_images import place as place_image
from tests.media.audio import noise, tone
from tests.oracles.gemma4 import feature_extractor, greedy_answer

CHECKPOINT = make_gemma4_checkpoint
NUM_TOKENS = 8
PROCESSING = AudioProcessing(
    sampling_rate=16_000, num_mel_bins=128, fft_size=512, hop=160, max_samples=480_000, floor=1e-3
)
Samples = npt.NDArray[np.float32]


def place_audio(samples: Samples, processing: AudioProcessing, frames_per_token: int = 1) -> PlacedMedium:
    audio = audio_from_samples(samples, processing)
    count = -(-audio.grid[2] // frames_per_token)
    return PlacedMedium(
        token_ids=[TOKEN_IDS["<|audio>"], *[TOKEN_IDS["<|audio|>"]] * count, TOKEN_IDS["<audio|>"]],
        kind=MediaKind.AUDIO,
        grid=audio.grid,
        content=audio.features,
        key=audio.key,
        runs=((1, count),),
        source=samples,
    )


def place(random: np.random.Generator, medium: Samples | tuple[int, int]) -> PlacedMedium:
    """Places audio, or an image of this many rows and columns of tokens."""
    if isinstance(medium, tuple):
        image = place_image(random, medium)
        return replace(image, source=image.content)
    return place_audio(medium, PROCESSING, frames_per_token=4)


def prompt_of(seed: int, *parts: int | tuple[int, int] | Samples) -> Prompt:
    return prompt_with(seed, parts, place, text_ids=(5, 256))


TWO = prompt_of(3, 3, noise(2, 4_001), 2, tone(440, 16_000, 0.3), 6)
PROMPTS = {
    "text": prompt_of(1, 23),
    "one": prompt_of(2, 5, noise(1, 11_000), 9),
    "two": TWO,
    "first": prompt_of(4, noise(3, 2_000), 1),
    "lengths": prompt_of(5, 2, noise(4, 161), 1, noise(5, 800), 1, noise(6, 961), 1, noise(7, 1_120), 3),
    "images": prompt_of(6, 3, (2, 3), 2, noise(8, 5_000), 4, (1, 4), noise(9, 3_000), 5),
}


assert_agrees = agreement(greedy_answer, "sources")


class TestSteps(NativeSteps):
    agrees = staticmethod(assert_agrees)
    divided, cached = "images", ("one",)
    num_tokens = NUM_TOKENS


def test_half_a_minute(harness: Harness, checkpoint: Path) -> None:
    prompt = prompt_of(6, 2, noise(9, 479_700), 3)
    assert prompt.token_ids.count(TOKEN_IDS["<|audio|>"]) == 750
    features = audio_from_samples(noise(9, 479_700), PROCESSING).features
    assert features.shape == (128, 2998)


def test_answers_depend_on_the_audio(harness: Harness) -> None:
    heard = [noise(1, 8_000), tone(200, 16_000, 0.5), tone(3_000, 16_000, 0.5), np.zeros(8_000, np.float32)]
    prompts = [prompt_of(7, 3, each, 20) for each in heard]
    logits = [harness.answer(harness.begin(prompt), 1).logits[0] for prompt in prompts]
    assert all((one - other).abs().max() > 1e-2 for index, one in enumerate(logits) for other in logits[:index])


@settings(max_examples=30)
@given(length=st.integers(161, 20_000), seed=st.integers(0, 99), gain=st.sampled_from([1e-4, 0.1, 1.0]))
def test_features_equal_the_reference_extractors(length: int, seed: int, gain: float) -> None:
    samples = noise(seed, length) * np.float32(gain)
    expected = feature_extractor()([samples], return_tensors="np")
    mask = expected["input_features_mask"][0]
    features = audio_from_samples(samples, PROCESSING).features
    assert features.shape[1] == mask.sum()
    np.testing.assert_allclose(features.T, expected["input_features"][0][mask], atol=2e-4)


def test_refuses_audio_without_a_whole_window() -> None:
    with pytest.raises(MediaError, match=r"expected audio of more than 0.01 s, got 0.01 s"):
        audio_from_samples(noise(1, 160), PROCESSING)


def test_reads_the_audio_processing_of_checkpoints_that_hear(checkpoint: Path, tmp_path: Path) -> None:
    config = load_model_config(checkpoint)
    assert config.placeholder_ids == {kind: TOKEN_IDS[f"<|{kind}|>"] for kind in ("image", "video", "audio")}
    assert read_media(checkpoint, config).audio == PROCESSING
    large = load_model_config(make_large_gemma4_checkpoint(tmp_path))
    assert "audio" not in large.placeholder_ids
    assert read_media(tmp_path, large).audio is None


def test_completes_audio_and_an_image_like_the_reference(checkpoint: Path) -> None:
    llm = LLM(checkpoint, dtype="float32", device="cpu")
    heard = [noise(2, 20_000), tone(440, 16_000, 0.2)]
    image = np.random.default_rng(1).integers(0, 256, (POOL * PATCH * 7, POOL * PATCH * 10, 3), dtype=np.uint8)
    parts: list[dict[str, Any]] = [
        {"type": "audio", "audio": (heard[0], 16_000)},
        {"type": "text", "text": "the thing"},
        {"type": "image_pil", "image_pil": PIL.Image.fromarray(image)},
        {"type": "audio", "audio": (heard[1], 16_000)},
    ]
    sampling = SamplingParams(temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True)
    (output,) = llm.chat([{"role": "user", "content": parts}], sampling)
    prompt = output.prompt_token_ids
    assert [prompt.count(TOKEN_IDS[f"<|{kind}|>"]) for kind in ("audio", "image")] == [31 + 5, 70]
    assert prompt.count(TOKEN_IDS["<|audio>"]) == prompt.count(TOKEN_IDS["<audio|>"]) == 2
    expected = greedy_answer(checkpoint, prompt, [heard[0], image, heard[1]], NUM_TOKENS)
    assert output.outputs[0].token_ids == expected.token_ids


@pytest.mark.parametrize("length", [161, 640, 641, 799, 800, 801, 1_441, 20_000, 480_000])
def test_prompts_have_as_many_tokens_as_the_reference_processor_s(checkpoint: Path, length: int) -> None:
    config = load_model_config(checkpoint)
    audio = audio_from_samples(noise(1, length), PROCESSING)
    layout = family_of(config).layout(audio, LayoutContext(model=config, encode=lambda _text: []))
    features = feature_extractor()([noise(1, length)], return_tensors="np")
    reference = SimpleNamespace(boa_token="(", audio_token="-", eoa_token=")")
    text = Gemma4Processor.replace_audio_token(reference, features, 0)  # type: ignore[arg-type]
    assert layout.pieces == ((TOKEN_IDS["<|audio>"],), text.count("-"), (TOKEN_IDS["<audio|>"],))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"attention_context_right": 2}, "'audio_config.attention_context_right': expected 0, got 2"),
        ({"attention_chunk_size": 10}, "'audio_config.attention_chunk_size': expected 12, got 10"),
        ({"hidden_act": "gelu"}, "'audio_config.hidden_act': expected 'silu', got 'gelu'"),
        ({"subsampling_conv_channels": [64, 6]}, "channels.*expected 128, got 64"),
    ],
)
def test_refuses_other_encoders(checkpoint: Path, tmp_path: Path, change: dict[str, object], message: str) -> None:
    document = json.loads((checkpoint / "config.json").read_text())
    write_json(tmp_path / "config.json", document | {"audio_config": document["audio_config"] | change})
    with pytest.raises(CheckpointError, match=message):
        load_model_config(tmp_path)


@pytest.mark.parametrize(("name", "value"), [("frame_length", 512), ("fft_overdrive", True)])
def test_refuses_other_features(checkpoint: Path, tmp_path: Path, name: str, value: object) -> None:
    document = json.loads((checkpoint / "processor_config.json").read_text())
    document["feature_extractor"][name] = value
    write_json(tmp_path / "processor_config.json", document)
    with pytest.raises(ValueError, match=rf"feature_extractor.{name}': expected \w+, got {value}"):
        read_media(tmp_path, load_model_config(checkpoint))

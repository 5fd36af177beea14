"""Gemma 4 12B, which has no encoders: features, logits and greedy answers match transformers."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glimpse.engine.checkpoint.families.registry import load_model_config
from glimpse.engine.checkpoint.model_config.model import read_json
from glimpse.engine.checkpoint.text.media_inputs import read_media
from glimpse.media.processing.audio import AudioProcessing, audio_from_samples
from tests.checkpoints.files import write_json
from tests.checkpoints.gemma4 import TOKEN_IDS, WAVE, make_unified_gemma4_checkpoint
from tests.checkpoints.refusals import assert_refused
from tests.engine.harness import PlacedMedium, Prompt, prompt_with
from tests.engine.worker.models.steps import LevelSteps, agreement
from tests.engine.worker.models.test_gemma4_audio import place_audio
from tests.engine.worker.models.test_gemma4_images import place as place_pixels
from tests.media.audio import noise
from tests.oracles.gemma4 import greedy_answer, wave_extractor

CHECKPOINT = make_unified_gemma4_checkpoint
PROCESSING = AudioProcessing(
    sampling_rate=16_000,
    num_mel_bins=WAVE,
    fft_size=WAVE,
    hop=WAVE,
    max_samples=480_000,
    pads_to_max=False,
    is_raw=True,
)


def place(random: np.random.Generator, medium: Any) -> PlacedMedium:
    """Places audio, or an image or video of this size."""
    if isinstance(medium, tuple):
        placed = place_pixels(random, medium)
        return replace(placed, source=placed.content)
    return place_audio(medium, PROCESSING)


def prompt_of(seed: int, *parts: Any) -> Prompt:
    return prompt_with(seed, parts, place, text_ids=(5, 256))


PROMPTS = {
    "text": prompt_of(1, 23),
    "pixels": prompt_of(2, 3, (3, 2), 2, (2, 1, 4), 5),
    "all": prompt_of(3, 4, noise(1, 4_000), 2, (3, 3), 1, (2, 2, 2), noise(2, WAVE), 6),
}


assert_agrees = agreement(greedy_answer, "sources")


class TestSteps(LevelSteps):
    agrees = staticmethod(assert_agrees)
    # Runs of pixels are computed whole.
    divided, sizes = "all", ([5, 8, 13, 7, 9],)
    cached, blocks = ("all",), (1,)


@settings(max_examples=20)
@given(num_samples=st.integers(1, 3_000), seed=st.integers(0, 9))
def test_features_are_the_samples_as_in_the_reference(num_samples: int, seed: int) -> None:
    samples = noise(seed, num_samples)
    audio = audio_from_samples(samples, PROCESSING)
    expected = wave_extractor()(samples, return_tensors="np")["input_features"][0]
    np.testing.assert_array_equal(audio.features.T, expected)


def test_reads_how_media_are_processed(checkpoint: Path, tmp_path: Path) -> None:
    config = load_model_config(checkpoint)
    assert config.placeholder_ids == {kind: TOKEN_IDS[f"<|{kind}|>"] for kind in ("image", "video", "audio")}
    assert config.text.layer_embeddings is None
    assert read_media(checkpoint, config).audio == PROCESSING
    document = read_json(checkpoint / "processor_config.json")
    document["feature_extractor"]["sampling_rate"] = 8000
    write_json(tmp_path / "processor_config.json", document)
    with pytest.raises(ValueError, match=r"'feature_extractor.sampling_rate': expected 16000, got 8000"):
        read_media(tmp_path, config)


def test_refuses_another_width(tmp_path: Path, checkpoint: Path) -> None:
    message = "'vision_config.output_proj_dims': expected 40, got 41"
    assert_refused(tmp_path, read_json(checkpoint / "config.json"), message, vision_config={"output_proj_dims": 41})

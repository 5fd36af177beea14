"""Qwen2-Audio: logits and greedy answers match transformers for any division into steps and cached prefixes."""

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch

from glimpse.engine.checkpoint.families.registry import load_model_config
from glimpse.engine.checkpoint.text.media_inputs import read_media
from glimpse.media.kind import MediaKind
from glimpse.media.processing.audio import audio_from_samples
from glimpse.media.processing.media_processing import MediaProcessing
from tests.checkpoints.files import write_json
from tests.checkpoints.qwen2_audio import PREPROCESSOR_CONFIG, TOKEN_IDS, make_audio_checkpoint
from tests.checkpoints.refusals import refused
from tests.engine.harness import Harness, PlacedMedium, Prompt, prompt_with
from tests.engine.levels import assert_stays_near_float32
from tests.engine.worker.models.steps import PLAIN_KERNELS, NativeSteps, agreement
from tests.media.audio import PROCESSING, noise, tone
from tests.oracles.qwen2_audio import greedy_answer

CHECKPOINT = make_audio_checkpoint
NUM_TOKENS = 12
Samples = npt.NDArray[np.float32]


def place(_: np.random.Generator, samples: Samples) -> PlacedMedium:
    audio = audio_from_samples(samples, PROCESSING)
    return PlacedMedium(
        token_ids=[TOKEN_IDS["<|AUDIO|>"]] * (audio.grid[2] // 4),
        kind=MediaKind.AUDIO,
        grid=(1, *audio.features.shape),
        content=audio.features,
        key=audio.key,
        source=samples,
    )


def prompt_of(seed: int, *parts: int | Samples) -> Prompt:
    """Returns a prompt of audio inputs and random text; an integer is a number of text tokens."""
    return prompt_with(seed, parts, place)


TEXT = prompt_of(1, 23)
ONE_AUDIO = prompt_of(2, 5, noise(1, 11_000), 9)
TWO_AUDIOS = prompt_of(3, 3, noise(2, 4_001), 2, tone(440, 16_000, 0.3), 6)
AUDIO_FIRST = prompt_of(4, noise(3, 2_000), 1)
LENGTHS = prompt_of(5, 2, noise(4, 640), 1, noise(5, 800), 1, noise(6, 960), 1, noise(7, 1_120), 1, noise(8, 1_281), 3)
LONG = prompt_of(6, 2, noise(9, 479_700), 3)
PROMPTS = {
    "text": TEXT,
    "one": ONE_AUDIO,
    "two": TWO_AUDIOS,
    "first": AUDIO_FIRST,
    "lengths": LENGTHS,
}


assert_agrees = agreement(greedy_answer, "sources")


class TestSteps(NativeSteps):
    agrees = staticmethod(assert_agrees)
    kernels = (*PLAIN_KERNELS, (torch.bfloat16, "int8", 0.1))
    divided, cached = "two", ("one",)
    num_tokens = NUM_TOKENS


def test_half_a_minute(harness: Harness, checkpoint: Path) -> None:
    assert LONG.spans[0].num_tokens == 750
    assert_agrees(harness.answer(harness.begin(LONG), 3), checkpoint)


def test_answers_depend_on_the_audio(harness: Harness) -> None:
    audio_inputs = [noise(1, 8_000), tone(200, 16_000, 0.5), tone(3_000, 16_000, 0.5), np.zeros(8_000, np.float32)]
    prompts = [prompt_of(7, 3, audio_input, 20) for audio_input in audio_inputs]
    assert len({tuple(harness.answer(harness.begin(prompt), 4).answer) for prompt in prompts}) == 4


@pytest.mark.parametrize("nested_names", [False, True])
def test_stored_layouts(tmp_path: Path, nested_names: bool) -> None:
    path = make_audio_checkpoint(tmp_path, seed=7, hidden=128, layers=3, nested_names=nested_names)
    harness = Harness(path)
    assert_agrees(harness.answer(harness.begin(ONE_AUDIO), NUM_TOKENS), path)


def test_bfloat16_stays_near_float32(checkpoint: Path) -> None:
    assert_stays_near_float32(checkpoint, PROMPTS.values(), torch.bfloat16, tolerance=0.1, levels=[None])


def test_reads_the_audio_processing_of_the_checkpoint(checkpoint: Path) -> None:
    config = load_model_config(checkpoint)
    assert config.placeholder_ids == {"audio": TOKEN_IDS["<|AUDIO|>"]}
    assert read_media(checkpoint, config) == MediaProcessing(audio=PROCESSING)


@pytest.mark.parametrize(("name", "value"), [("feature_size", 80), ("chunk_length", 10)])
def test_refuses_a_preprocessor_that_does_not_fit_the_encoder(tmp_path: Path, name: str, value: int) -> None:
    path = make_audio_checkpoint(tmp_path)
    write_json(path / "preprocessor_config.json", PREPROCESSOR_CONFIG | {name: value})
    with pytest.raises(ValueError, match=name):
        read_media(path, load_model_config(path))


test_refuses_unsupported_configurations = refused(
    ({"text_config": {"rope_scaling": {"rope_type": "yarn"}}}, "'rope_type': expected 'default', got 'yarn'"),
    ({"text_config": {"hidden_act": "gelu"}}, "'text_config.hidden_act': expected 'silu', got 'gelu'"),
    ({"audio_config": {"activation_function": "relu"}}, "activation_function': expected 'gelu', got 'relu'"),
    ({"audio_token_index": ...}, "no field 'audio_token_index'"),
)

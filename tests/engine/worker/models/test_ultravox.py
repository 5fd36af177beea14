"""Ultravox: logits and greedy answers match the reference for any division into steps and cached prefixes."""

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from glimpse.engine.checkpoint.families.registry import family_of, load_model_config
from glimpse.engine.checkpoint.families.token_layout import LayoutContext
from glimpse.engine.checkpoint.families.ultravox import MAX_CHUNKS
from glimpse.engine.checkpoint.text.media_inputs import read_media
from glimpse.media.errors import MediaError
from glimpse.media.kind import MediaKind
from glimpse.media.processing.audio import AudioProcessing, audio_from_samples
from tests.checkpoints.files import write_json
from tests.checkpoints.refusals import refused
from tests.checkpoints.ultravox import AUDIO_TOKEN_ID, make_ultravox_checkpoint
from tests.engine.harness import Harness, PlacedMedium, Prompt, prompt_with
from tests.engine.worker.models.steps import NativeSteps, agreement
from tests.media.audio import noise, tone
from tests.oracles.ultravox import audio_rows, features, greedy_answer

CHECKPOINT = make_ultravox_checkpoint
NUM_TOKENS = 8
PROCESSING = AudioProcessing(
    sampling_rate=16_000,
    num_mel_bins=80,
    fft_size=400,
    hop=160,
    max_samples=MAX_CHUNKS * 32_000,
    pads_to_max=False,
)
Samples = npt.NDArray[np.float32]


def place(_: np.random.Generator, samples: Samples) -> PlacedMedium:
    audio = audio_from_samples(samples, PROCESSING)
    chunks, rest = divmod(audio.grid[2], 200)
    return PlacedMedium(
        token_ids=[AUDIO_TOKEN_ID] * (13 * chunks + -(-rest // 16)),
        kind=MediaKind.AUDIO,
        grid=audio.grid,
        content=audio.features,
        key=audio.key,
        source=samples,
    )


def prompt_of(seed: int, *parts: int | Samples) -> Prompt:
    """Returns a prompt of audio inputs and random text; an integer is a number of text tokens."""
    return prompt_with(seed, parts, place)


PROMPTS = {
    "text": prompt_of(1, 23),
    "one": prompt_of(2, 5, noise(1, 11_000), 9),
    "two": prompt_of(3, 3, noise(2, 4_001), 2, tone(440, 16_000, 0.3), 6),
    "very short": prompt_of(4, 1, noise(3, 100), 1, noise(4, 321), 2),
    "whole chunk": prompt_of(5, 2, noise(5, 32_000), 3),
    "a frame in a second chunk": prompt_of(6, 2, noise(6, 32_001), 3),
    "three chunks": prompt_of(7, 2, noise(7, 80_500), 3),
    "the last token beyond the chunk": prompt_of(8, noise(8, 63_700), 2),
}
TWO = PROMPTS["two"]


assert_agrees = agreement(greedy_answer, "sources")


class TestSteps(NativeSteps):
    agrees = staticmethod(assert_agrees)
    divided, cached = "two", ("three chunks",)
    sizes = (1, 13)
    blocks = (1,)


@pytest.mark.parametrize(("norm_mid", "own_names"), [(False, False), (True, True)])
def test_stored_layouts(tmp_path: Path, norm_mid: bool, own_names: bool) -> None:
    plain = make_ultravox_checkpoint(tmp_path / "plain", seed=7, norm_mid=norm_mid)
    path = make_ultravox_checkpoint(
        tmp_path / "stored", seed=7, norm_mid=norm_mid, whisper_names=own_names, llama_names=own_names
    )
    harness = Harness(path)
    assert_agrees(harness.answer(harness.begin(TWO), NUM_TOKENS), plain)


def test_answers_depend_on_every_chunk(harness: Harness) -> None:
    inputs = [noise(1, 90_000) for _ in range(4)]
    for index, samples in enumerate(inputs[1:]):
        samples[32_000 * index : 32_000 * index + 8_000] = 0
    logits = [harness.answer(harness.begin(prompt_of(9, samples, 5)), 1).logits[0] for samples in inputs]
    assert all((each - logits[0]).abs().max() > 1e-3 for each in logits[1:])


@pytest.mark.parametrize("num_samples", [1, 320, 321, 2_000, 31_999, 32_001, 75_123])
def test_features_and_tokens_equal_the_references(checkpoint: Path, num_samples: int) -> None:
    samples, config = noise(num_samples, num_samples), load_model_config(checkpoint)
    audio = audio_from_samples(samples, PROCESSING)
    expected = features(checkpoint, samples).numpy()
    assert audio.features.shape == expected.shape
    np.testing.assert_allclose(audio.features, expected, atol=1e-4)
    layout = family_of(config).layout(audio, LayoutContext(model=config, encode=lambda text: []))
    assert layout.num_tokens == len(audio_rows(checkpoint, samples))


def test_reads_the_audio_processing_of_the_checkpoint(checkpoint: Path) -> None:
    config = load_model_config(checkpoint)
    assert config.placeholder_ids == {"audio": AUDIO_TOKEN_ID}
    assert not config.is_embedding_model
    assert read_media(checkpoint, config).audio == PROCESSING


@pytest.mark.parametrize("num_tokens", [5, 40, 10_000])
def test_largest_audio_has_about_as_many_tokens_and_no_more_than_the_bound(checkpoint: Path, num_tokens: int) -> None:
    config = load_model_config(checkpoint)
    medium = family_of(config).largest_medium(config, num_tokens)
    assert medium is not None
    assert medium.grid[2] == 200 * max(1, min(num_tokens // 13, MAX_CHUNKS))
    assert medium.num_bytes == 4 * 80 * medium.grid[2]


def test_refuses_empty_audio() -> None:
    with pytest.raises(MediaError, match="expected audio of more than 0 s, got 0 s"):
        audio_from_samples(np.zeros(0, np.float32), PROCESSING)


test_refuses_unsupported_configurations = refused(
    ({"text_model_id": "org/llama"}, "'text_model_id': expected the folder of 'org/llama', got none"),
    ({"projector_act": "gelu"}, "'projector_act': expected 'swiglu', got 'gelu'"),
    ({"num_projector_layers": 2}, "'num_projector_layers': expected 0, got 2"),
    ({"audio_latency_block_size": 100}, "'audio_latency_block_size': expected None, got 100"),
)


@pytest.mark.parametrize(("name", "value"), [("stack_factor", 4), ("audio_context_size", 3000)])
def test_refuses_a_processor_that_does_not_fit_the_model(tmp_path: Path, name: str, value: int) -> None:
    path = make_ultravox_checkpoint(tmp_path)
    write_json(path / "processor_config.json", {name: value})
    with pytest.raises(ValueError, match=f"'{name}': expected .* got {value}"):
        read_media(path, load_model_config(path))

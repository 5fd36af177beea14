"""Logits and greedy answers about sounds are the reference's, however their tokens are split over steps and caches."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch

from glimpse.engine.config import Quantization
from glimpse.engine.errors import CheckpointError
from glimpse.engine.model_config import load_model_config
from glimpse.engine.plan import MediaSpan
from glimpse.engine.text.media_inputs import audio_processing_of
from glimpse.media.kind import MediaKind
from glimpse.media.processing.audio import audio_from_samples
from tests.audio_checkpoints import PREPROCESSOR_CONFIG, TOKEN_IDS, make_audio_checkpoint
from tests.audio_oracle import greedy_answer
from tests.checkpoints import write_json
from tests.engine.harness import BLOCK_SIZE, Harness, Prompt, ScriptedSequence
from tests.engine.levels import LEVELS, needs_kernels
from tests.media.audio import PROCESSING, noise, tone

NUM_TOKENS = 12
Samples = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class Heard:
    """A prompt, and the sounds in it."""

    prompt: Prompt
    sounds: tuple[Samples, ...]


def hear(seed: int, *parts: int | Samples) -> Heard:
    """Random text and sounds: a number is that many text tokens."""
    random = np.random.default_rng(seed)
    token_ids: list[int] = []
    spans: list[MediaSpan] = []
    features: list[np.ndarray] = []
    for part in parts:
        if isinstance(part, int):
            token_ids += random.integers(0, 256, part).tolist()
            continue
        sound = audio_from_samples(part, PROCESSING)
        span = MediaSpan(
            kind=MediaKind.AUDIO,
            start=len(token_ids),
            num_tokens=sound.num_tokens,
            key=sound.key,
            grid_thw=(1, *sound.features.shape),
        )
        spans.append(span)
        features.append(sound.features)
        token_ids += [TOKEN_IDS["<|AUDIO|>"]] * span.num_tokens
    return Heard(
        prompt=Prompt(token_ids=tuple(token_ids), spans=tuple(spans), images=tuple(features)),
        sounds=tuple(part for part in parts if not isinstance(part, int)),
    )


TEXT = hear(1, 23)
ONE_AUDIO = hear(2, 5, noise(1, 11_000), 9)
TWO_AUDIOS = hear(3, 3, noise(2, 4_001), 2, tone(440, 16_000, 0.3), 6)
AUDIO_FIRST = hear(4, noise(3, 2_000), 1)
LENGTHS = hear(5, 2, noise(4, 640), 1, noise(5, 800), 1, noise(6, 960), 1, noise(7, 1_120), 1, noise(8, 1_281), 3)
LONG = hear(6, 2, noise(9, 479_700), 3)
PROMPTS = {
    "text": TEXT,
    "one": ONE_AUDIO,
    "two": TWO_AUDIOS,
    "first": AUDIO_FIRST,
    "lengths": LENGTHS,
}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_audio_checkpoint(tmp_path_factory.mktemp("hearing"))


@pytest.fixture(scope="module")
def harness(checkpoint: Path) -> Harness:
    return Harness(checkpoint)


def assert_agrees(sequence: ScriptedSequence, heard: Heard, path: Path) -> None:
    expected = greedy_answer(path, heard.prompt.token_ids, heard.sounds, len(sequence.answer))
    assert sequence.answer == expected.token_ids
    assert (torch.stack(sequence.logits) - expected.logits).abs().max() <= 1e-4


@pytest.mark.parametrize("heard", PROMPTS.values(), ids=PROMPTS.keys())
def test_alone(harness: Harness, checkpoint: Path, heard: Heard) -> None:
    assert_agrees(harness.answer(harness.begin(heard.prompt), NUM_TOKENS), heard, checkpoint)


def test_half_a_minute(harness: Harness, checkpoint: Path) -> None:
    assert LONG.prompt.spans[0].num_tokens == 750
    assert_agrees(harness.answer(harness.begin(LONG.prompt), 3), LONG, checkpoint)


@pytest.mark.parametrize("size", [1, 5, 13])
def test_chunked_within_audio(harness: Harness, checkpoint: Path, size: int) -> None:
    num_chunks = (len(TWO_AUDIOS.prompt.token_ids) - 1) // size
    sequence = harness.answer(harness.begin(TWO_AUDIOS.prompt), NUM_TOKENS, chunks=[size] * num_chunks)
    assert_agrees(sequence, TWO_AUDIOS, checkpoint)


def test_batched_with_others(harness: Harness, checkpoint: Path) -> None:
    sequences = [harness.begin(heard.prompt) for heard in PROMPTS.values()]
    harness.step(*((sequence, len(sequence.prompt.token_ids)) for sequence in sequences))
    for _ in range(NUM_TOKENS - 1):
        harness.step(*((sequence, 1) for sequence in sequences))
    for sequence, heard in zip(sequences, PROMPTS.values(), strict=True):
        assert_agrees(sequence, heard, checkpoint)


@pytest.mark.parametrize("num_blocks", [1, 2])
def test_cached_prefix_that_ends_within_an_audio(harness: Harness, checkpoint: Path, num_blocks: int) -> None:
    first = harness.answer(harness.begin(ONE_AUDIO.prompt), 2)
    second = harness.begin(ONE_AUDIO.prompt, cached=first, num_cached=num_blocks * BLOCK_SIZE)
    assert_agrees(harness.answer(second, NUM_TOKENS), ONE_AUDIO, checkpoint)


def test_answers_depend_on_the_audio(harness: Harness) -> None:
    sounds = [noise(1, 8_000), tone(200, 16_000, 0.5), tone(3_000, 16_000, 0.5), np.zeros(8_000, np.float32)]
    heard = [hear(7, 3, sound, 20) for sound in sounds]
    assert len({tuple(harness.answer(harness.begin(each.prompt), 4).answer) for each in heard}) == 4


@pytest.mark.parametrize("nested_names", [False, True])
def test_stored_layouts(tmp_path: Path, nested_names: bool) -> None:
    path = make_audio_checkpoint(tmp_path, seed=7, hidden=128, layers=3, nested_names=nested_names)
    harness = Harness(path)
    assert_agrees(harness.answer(harness.begin(ONE_AUDIO.prompt), NUM_TOKENS), ONE_AUDIO, path)


def test_bfloat16_stays_near_float32(checkpoint: Path) -> None:
    exact, rounded = (Harness(checkpoint, dtype) for dtype in (torch.float32, torch.bfloat16))
    for heard in PROMPTS.values():
        expected = exact.answer(exact.begin(heard.prompt), 1).logits[0]
        difference = rounded.answer(rounded.begin(heard.prompt), 1).logits[0] - expected
        assert difference.square().mean().sqrt() < 0.1 * expected.std()


@needs_kernels
@pytest.mark.parametrize("quantization", ["none", "int8"])
def test_native_kernels_stay_near_float32(checkpoint: Path, quantization: Quantization) -> None:
    exact = Harness(checkpoint)
    native = Harness(checkpoint, torch.bfloat16, level=LEVELS[-1], quantization=quantization, block_size=32)
    for heard in PROMPTS.values():
        expected = exact.answer(exact.begin(heard.prompt), 1).logits[0]
        difference = native.answer(native.begin(heard.prompt), 1).logits[0] - expected
        assert difference.square().mean().sqrt() < 0.1 * expected.std()


def test_the_checkpoint_says_what_it_takes(checkpoint: Path) -> None:
    config = load_model_config(checkpoint)
    assert config.placeholder_ids == {"audio": TOKEN_IDS["<|AUDIO|>"]}
    assert audio_processing_of(checkpoint, config) == PROCESSING


@pytest.mark.parametrize(("name", "value"), [("feature_size", 80), ("chunk_length", 10)])
def test_a_preprocessor_that_does_not_fit_the_encoder_is_named(tmp_path: Path, name: str, value: int) -> None:
    path = make_audio_checkpoint(tmp_path)
    write_json(path / "preprocessor_config.json", PREPROCESSOR_CONFIG | {name: value})
    with pytest.raises(ValueError, match=name):
        audio_processing_of(path, load_model_config(path))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"text_config": {"rope_scaling": {"rope_type": "yarn"}}}, "'rope_type': expected 'default', got 'yarn'"),
        ({"audio_config": {"activation_function": "relu"}}, "activation_function': expected 'gelu', got 'relu'"),
        ({"audio_token_index": None}, "no field 'audio_token_index'"),
    ],
)
def test_a_configuration_that_is_not_served_is_named(tmp_path: Path, change: dict[str, object], message: str) -> None:
    config = {
        "architectures": ["Qwen2AudioForConditionalGeneration"],
        "text_config": {},
        "audio_config": {
            "d_model": 32,
            "encoder_attention_heads": 2,
            "encoder_ffn_dim": 64,
            "encoder_layers": 1,
            "max_source_positions": 1500,
            "num_mel_bins": 128,
        },
        "audio_token_index": 1,
    } | change
    write_json(tmp_path / "config.json", {name: value for name, value in config.items() if value is not None})
    with pytest.raises(CheckpointError, match=message):
        load_model_config(tmp_path)

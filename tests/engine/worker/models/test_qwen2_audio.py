"""Qwen2-Audio: logits and greedy answers match transformers for any division into steps and cached prefixes."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch

from glimpse.engine.checkpoint.families.registry import load_model_config
from glimpse.engine.checkpoint.text.media_inputs import read_media
from glimpse.engine.errors import CheckpointError
from glimpse.engine.protocol.config import Quantization
from glimpse.engine.protocol.media import MediaSpan
from glimpse.media.kind import MediaKind
from glimpse.media.processing.audio import audio_from_samples
from glimpse.media.processing.media_processing import MediaProcessing
from tests.checkpoints.qwen2_audio import PREPROCESSOR_CONFIG, TOKEN_IDS, make_audio_checkpoint
from tests.checkpoints.qwen2_vl import write_json
from tests.engine.harness import BLOCK_SIZE, Harness, Prompt, ScriptedSequence
from tests.engine.levels import assert_stays_near_float32, needs_kernels
from tests.media.audio import PROCESSING, noise, tone
from tests.oracles.qwen2_audio import greedy_answer

CHECKPOINT = make_audio_checkpoint
NUM_TOKENS = 12
Samples = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class AudioPrompt:
    """A prompt with its audio inputs."""

    prompt: Prompt
    audio_inputs: tuple[Samples, ...]


def audio_prompt_of(seed: int, *parts: int | Samples) -> AudioPrompt:
    """Returns a prompt of audio inputs and random text; an integer is a number of text tokens."""
    random = np.random.default_rng(seed)
    token_ids: list[int] = []
    spans: list[MediaSpan] = []
    features: list[np.ndarray] = []
    for part in parts:
        if isinstance(part, int):
            token_ids += random.integers(0, 256, part).tolist()
            continue
        audio_input = audio_from_samples(part, PROCESSING)
        span = MediaSpan(
            kind=MediaKind.AUDIO,
            start=len(token_ids),
            num_tokens=audio_input.grid[2] // 4,
            key=audio_input.key,
            grid=(1, *audio_input.features.shape),
        )
        spans.append(span)
        features.append(audio_input.features)
        token_ids += [TOKEN_IDS["<|AUDIO|>"]] * span.num_tokens
    return AudioPrompt(
        prompt=Prompt(token_ids=tuple(token_ids), spans=tuple(spans), images=tuple(features)),
        audio_inputs=tuple(part for part in parts if not isinstance(part, int)),
    )


TEXT = audio_prompt_of(1, 23)
ONE_AUDIO = audio_prompt_of(2, 5, noise(1, 11_000), 9)
TWO_AUDIOS = audio_prompt_of(3, 3, noise(2, 4_001), 2, tone(440, 16_000, 0.3), 6)
AUDIO_FIRST = audio_prompt_of(4, noise(3, 2_000), 1)
LENGTHS = audio_prompt_of(
    5, 2, noise(4, 640), 1, noise(5, 800), 1, noise(6, 960), 1, noise(7, 1_120), 1, noise(8, 1_281), 3
)
LONG = audio_prompt_of(6, 2, noise(9, 479_700), 3)
PROMPTS = {
    "text": TEXT,
    "one": ONE_AUDIO,
    "two": TWO_AUDIOS,
    "first": AUDIO_FIRST,
    "lengths": LENGTHS,
}


def assert_agrees(sequence: ScriptedSequence, audio_prompt: AudioPrompt, path: Path) -> None:
    expected = greedy_answer(path, audio_prompt.prompt.token_ids, audio_prompt.audio_inputs, len(sequence.answer))
    assert sequence.answer == expected.token_ids
    assert (torch.stack(sequence.logits) - expected.logits).abs().max() <= 1e-4


@pytest.mark.parametrize("audio_prompt", PROMPTS.values(), ids=PROMPTS.keys())
def test_alone(harness: Harness, checkpoint: Path, audio_prompt: AudioPrompt) -> None:
    assert_agrees(harness.answer(harness.begin(audio_prompt.prompt), NUM_TOKENS), audio_prompt, checkpoint)


def test_half_a_minute(harness: Harness, checkpoint: Path) -> None:
    assert LONG.prompt.spans[0].num_tokens == 750
    assert_agrees(harness.answer(harness.begin(LONG.prompt), 3), LONG, checkpoint)


@pytest.mark.parametrize("size", [1, 5, 13])
def test_chunked_within_audio(harness: Harness, checkpoint: Path, size: int) -> None:
    num_chunks = (len(TWO_AUDIOS.prompt.token_ids) - 1) // size
    sequence = harness.answer(harness.begin(TWO_AUDIOS.prompt), NUM_TOKENS, chunks=[size] * num_chunks)
    assert_agrees(sequence, TWO_AUDIOS, checkpoint)


def test_batched_with_others(harness: Harness, checkpoint: Path) -> None:
    sequences = [harness.begin(audio_prompt.prompt) for audio_prompt in PROMPTS.values()]
    harness.step(*((sequence, len(sequence.prompt.token_ids)) for sequence in sequences))
    for _ in range(NUM_TOKENS - 1):
        harness.step(*((sequence, 1) for sequence in sequences))
    for sequence, audio_prompt in zip(sequences, PROMPTS.values(), strict=True):
        assert_agrees(sequence, audio_prompt, checkpoint)


@pytest.mark.parametrize("num_blocks", [1, 2])
def test_cached_prefix_that_ends_within_audio(harness: Harness, checkpoint: Path, num_blocks: int) -> None:
    first = harness.answer(harness.begin(ONE_AUDIO.prompt), 2)
    second = harness.begin(ONE_AUDIO.prompt, cached=first, num_cached=num_blocks * BLOCK_SIZE)
    assert_agrees(harness.answer(second, NUM_TOKENS), ONE_AUDIO, checkpoint)


def test_answers_depend_on_the_audio(harness: Harness) -> None:
    audio_inputs = [noise(1, 8_000), tone(200, 16_000, 0.5), tone(3_000, 16_000, 0.5), np.zeros(8_000, np.float32)]
    audio_prompt = [audio_prompt_of(7, 3, audio_input, 20) for audio_input in audio_inputs]
    assert len({tuple(harness.answer(harness.begin(each.prompt), 4).answer) for each in audio_prompt}) == 4


@pytest.mark.parametrize("nested_names", [False, True])
def test_stored_layouts(tmp_path: Path, nested_names: bool) -> None:
    path = make_audio_checkpoint(tmp_path, seed=7, hidden=128, layers=3, nested_names=nested_names)
    harness = Harness(path)
    assert_agrees(harness.answer(harness.begin(ONE_AUDIO.prompt), NUM_TOKENS), ONE_AUDIO, path)


def test_bfloat16_stays_near_float32(checkpoint: Path) -> None:
    exact, rounded = (Harness(checkpoint, dtype) for dtype in (torch.float32, torch.bfloat16))
    for audio_prompt in PROMPTS.values():
        expected = exact.answer(exact.begin(audio_prompt.prompt), 1).logits[0]
        difference = rounded.answer(rounded.begin(audio_prompt.prompt), 1).logits[0] - expected
        assert difference.square().mean().sqrt() < 0.1 * expected.std()


@needs_kernels
@pytest.mark.parametrize(
    ("dtype", "quantization", "tolerance"),
    [(torch.float32, "none", 1e-5), (torch.bfloat16, "none", 0.1), (torch.bfloat16, "int8", 0.1)],
)
def test_native_kernels_stay_near_float32(
    checkpoint: Path, dtype: torch.dtype, quantization: Quantization, tolerance: float
) -> None:
    assert_stays_near_float32(
        checkpoint,
        [audio.prompt for audio in PROMPTS.values()],
        dtype,
        quantization=quantization,
        tolerance=tolerance,
    )


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


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"text_config": {"rope_scaling": {"rope_type": "yarn"}}}, "'rope_type': expected 'default', got 'yarn'"),
        ({"audio_config": {"activation_function": "relu"}}, "activation_function': expected 'gelu', got 'relu'"),
        ({"audio_token_index": None}, "no field 'audio_token_index'"),
    ],
)
def test_refuses_unsupported_configurations(tmp_path: Path, change: dict[str, object], message: str) -> None:
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

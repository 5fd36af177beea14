"""Ultravox: logits and greedy answers match the reference for any division into steps and cached prefixes."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from glimpse.engine.checkpoint.families.registry import family_of, load_model_config
from glimpse.engine.checkpoint.families.token_layout import LayoutContext
from glimpse.engine.checkpoint.families.ultravox import MAX_CHUNKS
from glimpse.engine.checkpoint.text.media_inputs import read_media
from glimpse.engine.errors import CheckpointError
from glimpse.engine.protocol.media import MediaSpan
from glimpse.media.errors import MediaError
from glimpse.media.kind import MediaKind
from glimpse.media.processing.audio import AudioProcessing, audio_from_samples
from tests.checkpoints.qwen2_vl import write_json
from tests.checkpoints.ultravox import AUDIO_TOKEN_ID, make_ultravox_checkpoint
from tests.engine.harness import BLOCK_SIZE, Harness, Prompt, ScriptedSequence
from tests.engine.levels import assert_stays_near_float32, needs_kernels
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


@dataclass(frozen=True, slots=True, kw_only=True)
class AudioPrompt:
    """A prompt with its audio inputs."""

    prompt: Prompt
    audio_inputs: tuple[Samples, ...]


def prompt_of(seed: int, *parts: int | Samples) -> AudioPrompt:
    """Returns a prompt of audio inputs and random text; an integer is a number of text tokens."""
    random = np.random.default_rng(seed)
    token_ids: list[int] = []
    spans: list[MediaSpan] = []
    contents: list[np.ndarray] = []
    for part in parts:
        if isinstance(part, int):
            token_ids += random.integers(0, 256, part).tolist()
            continue
        audio = audio_from_samples(part, PROCESSING)
        chunks, rest = divmod(audio.grid[2], 200)
        num_tokens = 13 * chunks + -(-rest // 16)
        spans.append(
            MediaSpan(kind=MediaKind.AUDIO, start=len(token_ids), num_tokens=num_tokens, key=audio.key, grid=audio.grid)
        )
        contents.append(audio.features)
        token_ids += [AUDIO_TOKEN_ID] * num_tokens
    return AudioPrompt(
        prompt=Prompt(token_ids=tuple(token_ids), spans=tuple(spans), images=tuple(contents)),
        audio_inputs=tuple(part for part in parts if not isinstance(part, int)),
    )


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
TWO, THREE_CHUNKS = PROMPTS["two"], PROMPTS["three chunks"]


def assert_agrees(sequence: ScriptedSequence, audio_prompt: AudioPrompt, path: Path) -> None:
    expected = greedy_answer(path, audio_prompt.prompt.token_ids, audio_prompt.audio_inputs, len(sequence.answer))
    assert sequence.answer == expected.token_ids
    assert (torch.stack(sequence.logits) - expected.logits).abs().max() <= 1e-4


@pytest.mark.parametrize("audio_prompt", PROMPTS.values(), ids=PROMPTS.keys())
def test_alone(harness: Harness, checkpoint: Path, audio_prompt: AudioPrompt) -> None:
    assert_agrees(harness.answer(harness.begin(audio_prompt.prompt), NUM_TOKENS), audio_prompt, checkpoint)


@pytest.mark.parametrize("size", [1, 13])
def test_chunked_within_audio(harness: Harness, checkpoint: Path, size: int) -> None:
    num_chunks = (len(TWO.prompt.token_ids) - 1) // size
    sequence = harness.answer(harness.begin(TWO.prompt), NUM_TOKENS, chunks=[size] * num_chunks)
    assert_agrees(sequence, TWO, checkpoint)


def test_batched_with_others(harness: Harness, checkpoint: Path) -> None:
    sequences = [harness.begin(audio_prompt.prompt) for audio_prompt in PROMPTS.values()]
    harness.step(*((sequence, len(sequence.prompt.token_ids)) for sequence in sequences))
    for _ in range(NUM_TOKENS - 1):
        harness.step(*((sequence, 1) for sequence in sequences))
    for sequence, audio_prompt in zip(sequences, PROMPTS.values(), strict=True):
        assert_agrees(sequence, audio_prompt, checkpoint)


def test_cached_prefix_that_ends_within_audio(harness: Harness, checkpoint: Path) -> None:
    first = harness.answer(harness.begin(THREE_CHUNKS.prompt), 2)
    second = harness.begin(THREE_CHUNKS.prompt, cached=first, num_cached=BLOCK_SIZE)
    assert_agrees(harness.answer(second, NUM_TOKENS), THREE_CHUNKS, checkpoint)


@pytest.mark.parametrize(("norm_mid", "own_names"), [(False, False), (True, True)])
def test_stored_layouts(tmp_path: Path, norm_mid: bool, own_names: bool) -> None:
    plain = make_ultravox_checkpoint(tmp_path / "plain", seed=7, norm_mid=norm_mid)
    path = make_ultravox_checkpoint(
        tmp_path / "stored", seed=7, norm_mid=norm_mid, whisper_names=own_names, llama_names=own_names
    )
    harness = Harness(path)
    assert_agrees(harness.answer(harness.begin(TWO.prompt), NUM_TOKENS), TWO, plain)


@needs_kernels
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 0.1)])
def test_native_kernels_stay_near_float32(checkpoint: Path, dtype: torch.dtype, tolerance: float) -> None:
    assert_stays_near_float32(checkpoint, [audio.prompt for audio in PROMPTS.values()], dtype, tolerance=tolerance)


def test_answers_depend_on_every_chunk(harness: Harness) -> None:
    inputs = [noise(1, 90_000) for _ in range(4)]
    for index, samples in enumerate(inputs[1:]):
        samples[32_000 * index : 32_000 * index + 8_000] = 0
    logits = [harness.answer(harness.begin(prompt_of(9, samples, 5).prompt), 1).logits[0] for samples in inputs]
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


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"text_model_id": "org/llama"}, "'text_model_id': expected the folder of 'org/llama', got none"),
        ({"projector_act": "gelu"}, "'projector_act': expected 'swiglu', got 'gelu'"),
        ({"num_projector_layers": 2}, "'num_projector_layers': expected 0, got 2"),
        ({"audio_latency_block_size": 100}, "'audio_latency_block_size': expected None, got 100"),
    ],
)
def test_refuses_unsupported_configurations(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    path = make_ultravox_checkpoint(tmp_path)
    write_json(path / "config.json", json.loads((path / "config.json").read_text()) | change)
    with pytest.raises(CheckpointError, match=message):
        load_model_config(path)


@pytest.mark.parametrize(("name", "value"), [("stack_factor", 4), ("audio_context_size", 3000)])
def test_refuses_a_processor_that_does_not_fit_the_model(tmp_path: Path, name: str, value: int) -> None:
    path = make_ultravox_checkpoint(tmp_path)
    write_json(path / "processor_config.json", {name: value})
    with pytest.raises(ValueError, match=f"'{name}': expected .* got {value}"):
        read_media(path, load_model_config(path))

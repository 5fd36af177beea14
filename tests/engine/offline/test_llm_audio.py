"""Audio in the offline API: all forms, the reference's prompt and answer, and errors that name the invalid field."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from glimpse.offline.llm import LLM, InputError, SamplingParams
from tests.checkpoints.qwen2_audio import TOKEN_IDS, make_audio_checkpoint
from tests.engine.offline.audio_inputs import BASE64, PLACEHOLDER, SAMPLES, WAV
from tests.engine.offline.llm_inputs import IMAGE, image_pil, load, text, user
from tests.media.audio import noise, tone
from tests.oracles.qwen2_audio import greedy_answer

CHECKPOINT = make_audio_checkpoint
GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)


def audio(value: object) -> dict[str, Any]:
    return {"type": "audio", "audio": value}


def test_completes_two_audio_inputs_like_the_reference(llm: LLM, checkpoint: Path) -> None:
    inputs = [noise(2, 8_000), tone(440, 16_000, 0.4)]
    (output,) = llm.chat(user(audio((inputs[0], 16_000)), text("and"), audio((inputs[1], 16_000))), GREEDY)
    expected = greedy_answer(checkpoint, output.prompt_token_ids, inputs, 12)
    assert output.outputs[0].token_ids == expected.token_ids
    # 50 and 40 frames become 25 and 20 positions; two positions are one token.
    assert output.prompt_token_ids.count(TOKEN_IDS["<|AUDIO|>"]) == 12 + 10


def test_reuses_the_cached_prefix_of_an_audio_input(llm: LLM) -> None:
    messages = user(audio((noise(3, 48_000), 16_000)), text("the thing"))
    first, again = (llm.chat(messages, GREEDY)[0] for _ in range(2))
    (other,) = llm.chat(user(audio((noise(4, 48_000), 16_000)), text("the thing")), GREEDY)
    assert again.num_cached_tokens >= 64
    assert other.num_cached_tokens < 64
    assert again.outputs == first.outputs


@pytest.mark.parametrize(
    "part",
    [
        pytest.param(audio((torch.from_numpy(SAMPLES.copy()), 44_100)), id="tensor"),
        pytest.param(audio((SAMPLES.astype(np.float64)[None], 44_100.0)), id="one channel"),
        pytest.param(audio(WAV), id="file"),
        pytest.param(audio(f"data:audio/wav;base64,{BASE64}"), id="data URL"),
        pytest.param({"type": "input_audio", "input_audio": {"data": BASE64, "format": "wav"}}, id="input_audio"),
        pytest.param({"type": "audio_url", "audio_url": {"url": f"data:audio/wav;base64,{BASE64}"}}, id="audio_url"),
        pytest.param({"type": "audio_url", "audio_url": BASE64}, id="audio_url, a text"),
    ],
)
def test_accepts_audio_in_every_form(llm: LLM, part: Any) -> None:
    (expected,) = llm.chat(user(audio((SAMPLES, 44_100)), text("the")), GREEDY)
    (output,) = llm.chat(user(part, text("the")), GREEDY)
    assert output.prompt_token_ids == expected.prompt_token_ids
    assert output.outputs == expected.outputs


STEREO = np.stack([SAMPLES, SAMPLES])


@pytest.mark.parametrize(
    "array",
    [
        pytest.param(STEREO, id="torchaudio, librosa: [channels, samples]"),
        pytest.param(STEREO.T, id="soundfile: [samples, channels]"),
        pytest.param(np.stack([SAMPLES] * 16, axis=1), id="16 channels"),
        pytest.param(SAMPLES[:, None], id="one channel, last"),
    ],
)
def test_the_shorter_axis_of_an_array_is_its_channels(llm: LLM, array: Any) -> None:
    (expected,) = llm.chat(user(audio((SAMPLES, 44_100)), text("the")), GREEDY)
    (output,) = llm.chat(user(audio((array, 44_100)), text("the")), GREEDY)
    assert output.prompt_token_ids == expected.prompt_token_ids
    assert output.outputs == expected.outputs


@pytest.mark.parametrize("shape", [(17, 9_000), (9_000, 17), (2, 2)])
def test_refuses_arrays_whose_channels_are_unclear(llm: LLM, shape: tuple[int, int]) -> None:
    words = rf"expected \[channels, samples\] or \[samples, channels\] with 1 to 16.*got \[{shape[0]}, {shape[1]}\]"
    with pytest.raises(InputError, match=words):
        llm.chat(user(audio((np.zeros(shape), 16_000))), GREEDY)


@pytest.mark.parametrize("value", [(SAMPLES, 44_100), [(SAMPLES, 44_100)], WAV, [WAV]], ids=range(4))
def test_accepts_audio_of_a_prompt_as_samples_or_a_file(llm: LLM, value: Any) -> None:
    prompt = f"{PLACEHOLDER}the"
    (expected,) = llm.generate({"prompt": prompt, "multi_modal_data": {"audio": [(SAMPLES, 44_100)]}}, GREEDY)
    (output,) = llm.generate({"prompt": prompt, "multi_modal_data": {"audio": value}}, GREEDY)
    assert output.outputs == expected.outputs


REFUSED: list[Any] = [
    pytest.param(audio(SAMPLES), "content[0].audio': expected a pair (samples, rate)", id="no rate"),
    pytest.param(audio((np.zeros(9, np.int16), 16_000)), "expected an array of floats", id="whole numbers"),
    pytest.param(audio((np.zeros((2, 2, 2)), 16_000)), "expected an array of floats", id="three dimensions"),
    pytest.param(audio((SAMPLES, 44_100.5)), "expected an integer number of samples per second", id="half a sample"),
    pytest.param(audio((SAMPLES, 1)), "expected a sampling rate from 4000 to 192000 Hz, got 1", id="slow"),
    pytest.param(audio((SAMPLES[:9], 16_000)), "expected audio of more than", id="short"),
    pytest.param(audio(b"hello"), "got an unknown format", id="not audio"),
    pytest.param({"type": "audio_url", "audio_url": {}}, "audio_url.url': expected a URL", id="no URL"),
    pytest.param({"type": "audio_url", "audio_url": {"url": 5}}, "audio_url.url': expected a string", id="number"),
    pytest.param(
        {"type": "input_audio", "input_audio": {"format": "wav"}}, "input_audio.data': expected a URL", id="no data"
    ),
    pytest.param({"type": "input_audio", "input_audio": {"data": "http://a.b/c"}}, "input_audio.data", id="a URL"),
    pytest.param(image_pil(IMAGE), "does not support image input", id="an image"),
]


@pytest.mark.parametrize(("part", "words"), REFUSED)
def test_names_the_field_of_an_invalid_audio_input(llm: LLM, part: Any, words: str) -> None:
    with pytest.raises(InputError) as caught:
        llm.chat(user(part), GREEDY)
    assert words in str(caught.value)


def test_refuses_audio_for_a_model_without_audio_support(tiny_checkpoint: Path) -> None:
    with pytest.raises(InputError, match=r"messages\[0\].content\[0\].audio': the model does not support audio input"):
        load(tiny_checkpoint).chat(user(audio((SAMPLES, 44_100))), GREEDY)


def test_limits_the_number_of_audio_inputs(checkpoint: Path) -> None:
    llm = load(checkpoint, limit_mm_per_prompt={"audio": 1})
    with pytest.raises(InputError, match=r"at most 1 audio inputs \(limit_mm_per_prompt\), got 2"):
        llm.chat(user(audio((SAMPLES, 44_100)), audio(WAV)), GREEDY)

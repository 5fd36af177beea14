"""Ultravox in the offline API: the reference's answers, from audio beyond a chunk and from embeddings."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from glimpse.offline.llm import LLM, InputError, SamplingParams
from tests.checkpoints.files import write_json
from tests.checkpoints.ultravox import AUDIO_TOKEN_ID, make_ultravox_checkpoint, split_ultravox_checkpoint
from tests.engine.offline.llm_inputs import IMAGE, image_pil, load, text, user
from tests.media.audio import noise, tone
from tests.oracles.ultravox import audio_rows, greedy_answer

CHECKPOINT = make_ultravox_checkpoint
OPTIONS = {"enable_mm_embeds": True}
GREEDY = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)


def audio(samples: np.ndarray) -> dict[str, Any]:
    return {"type": "audio", "audio": (samples, 16_000)}


def test_completes_two_audio_inputs_like_the_reference(llm: LLM, checkpoint: Path) -> None:
    inputs = [noise(2, 70_000), tone(440, 16_000, 0.4)]
    (output,) = llm.chat(user(audio(inputs[0]), text("and"), audio(inputs[1])), GREEDY)
    expected = greedy_answer(checkpoint, output.prompt_token_ids, inputs, 8)
    assert output.outputs[0].token_ids == expected.token_ids
    # 438 frames are chunks of 200, 200 and 38; the tone has 40 frames. 16 frames are one token.
    assert output.prompt_token_ids.count(AUDIO_TOKEN_ID) == 13 + 13 + 3 + 3


def test_answers_from_three_folders_equal_those_from_one(checkpoint: Path, tmp_path: Path) -> None:
    path = split_ultravox_checkpoint(checkpoint, tmp_path)
    companions = {"org/llama": tmp_path / "llama", "org/whisper": str(tmp_path / "whisper")}
    samples = noise(5, 70_000)
    (output,) = load(path, companions=companions).chat(user(audio(samples), text("and")), GREEDY)
    expected = greedy_answer(checkpoint, output.prompt_token_ids, [samples], 8)
    assert output.outputs[0].token_ids == expected.token_ids


def test_answers_with_an_encoder_of_its_own_and_a_named_folder_equal_those_from_one(
    checkpoint: Path, tmp_path: Path
) -> None:
    path = split_ultravox_checkpoint(checkpoint, tmp_path, own_encoder=True)
    config = json.loads((path / "config.json").read_text())
    write_json(path / "config.json", config | {"text_model_id": str(tmp_path / "llama")})
    samples = noise(6, 30_000)
    (output,) = load(path).chat(user(audio(samples), text("and")), GREEDY)
    expected = greedy_answer(checkpoint, output.prompt_token_ids, [samples], 8)
    assert output.outputs[0].token_ids == expected.token_ids


def test_embeddings_replace_audio(llm: LLM, checkpoint: Path) -> None:
    samples = noise(4, 40_000)
    rows = audio_rows(checkpoint, samples)
    (heard,) = llm.chat(user(audio(samples), text("and")), GREEDY)
    (given,) = llm.chat(user({"type": "audio_embeds", "audio_embeds": rows}, text("and")), GREEDY)
    assert given.prompt_token_ids == heard.prompt_token_ids
    assert given.outputs[0].token_ids == heard.outputs[0].token_ids


def test_refuses_images_by_name(llm: LLM) -> None:
    with pytest.raises(InputError, match="does not support image input"):
        llm.chat(user(image_pil(IMAGE), text("and")), GREEDY)

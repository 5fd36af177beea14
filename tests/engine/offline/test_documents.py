"""What vLLM's page on multimodal inputs does offline, with media of this machine: each way works as written there."""

import base64
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pytest
import torch

from glimpse import LLM, SamplingParams
from tests.engine.offline.llm_inputs import IMAGE, OTHER_IMAGE, PLACEHOLDER, base64_png, png
from tests.media.videos import greys, video

HIDDEN_SIZE = 64
VIDEO = video(greys(20, width=56, height=56))
SHORT = SamplingParams(temperature=0.0, max_tokens=4)


@pytest.fixture(scope="module")
def llm(tiny_checkpoint: Path) -> LLM:
    return LLM(
        model=str(tiny_checkpoint),
        max_model_len=1024,
        limit_mm_per_prompt={"image": 4, "video": 1},
        mm_processor_kwargs={"min_pixels": 28 * 28, "max_pixels": 1280 * 28 * 28, "fps": 1},
        media_io_kwargs={"image": {"rgba_background_color": [0, 0, 0]}},
        enable_mm_embeds=True,
        device="cpu",
        dtype="float32",
        kv_cache_bytes=8 << 20,
        num_threads=1,
    )


def prompt(question: str, *placeholders: str) -> str:
    return f"<|im_start|>user\n{''.join(placeholders)}{question}<|im_end|>\n<|im_start|>assistant\n"


def texts(outputs: Any) -> list[str]:
    found = [output.outputs[0].text for output in outputs]
    assert all(found)
    return found


def test_single_and_batched_prompts(llm: LLM) -> None:
    ask: Mapping[str, Any] = {"prompt": prompt("What?", PLACEHOLDER), "multi_modal_data": {"image": IMAGE}}
    (alone,) = texts(llm.generate(ask, SHORT))
    other = {"prompt": prompt("Which?", PLACEHOLDER), "multi_modal_data": {"image": OTHER_IMAGE}}
    assert texts(llm.generate([ask, other], sampling_params=SHORT))[0] == alone


def test_several_images_and_the_frames_of_a_video_as_images(llm: LLM) -> None:
    pair = {"prompt": prompt("Both?", PLACEHOLDER, PLACEHOLDER), "multi_modal_data": {"image": [IMAGE, OTHER_IMAGE]}}
    frames = [PIL.Image.fromarray(frame) for frame in greys(4, width=56, height=56)]
    parts = [
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{base64_png(each)}"}} for each in frames
    ]
    message = {"role": "user", "content": [{"type": "text", "text": "Describe this set of frames."}, *parts]}
    texts(llm.generate(pair, SHORT))
    texts(llm.chat([message], SHORT))


def test_a_conversation_of_images_in_every_form(llm: LLM) -> None:
    url = f"data:image/png;base64,{base64_png(IMAGE)}"
    embeddings = {"image_embeds": torch.zeros(6, HIDDEN_SIZE), "image_grid_thw": torch.tensor([1, 4, 6])}
    conversation: list[dict[str, Any]] = [
        {"role": "system", "content": "You are a helpful assistant"},
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": "Hello! How can I assist you today?"},
        {
            "role": "user",
            "content": [
                {"type": "image_url", "image_url": {"url": url}},
                {"type": "image_pil", "image_pil": IMAGE},
                {"type": "image_embeds", "image_embeds": embeddings},
                {"type": "text", "text": "What's in these images?"},
            ],
        },
    ]
    texts(llm.chat(conversation, SHORT))


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(greys(4, width=56, height=56), id="array"),
        pytest.param(torch.from_numpy(greys(4, width=56, height=56).transpose(0, 3, 1, 2).copy()).float(), id="tensor"),
        pytest.param([torch.from_numpy(greys(4, width=56, height=56).transpose(0, 3, 1, 2)) / 255.0], id="tensors"),
        pytest.param(VIDEO, id="file"),
        pytest.param(f"data:video/mp4;base64,{base64.b64encode(VIDEO).decode()}", id="data URL"),
    ],
)
def test_videos(llm: LLM, data: Any) -> None:
    placeholder = PLACEHOLDER.replace("image", "video")
    ask = {"prompt": prompt("What happens?", placeholder), "multi_modal_data": {"video": data}}
    texts(llm.generate(ask, sampling_params=SamplingParams(temperature=0.8, top_p=0.95, max_tokens=4, seed=0)))


def test_cached_media_by_uuid_and_embeddings(llm: LLM) -> None:
    ask: dict[str, Any] = {"prompt": prompt("What?", PLACEHOLDER, PLACEHOLDER)}
    uuids = {"image": ["sku-1234-a", None]}
    first = texts(
        llm.generate(
            ask | {"multi_modal_data": {"image": [IMAGE, png(OTHER_IMAGE)]}, "multi_modal_uuids": uuids}, SHORT
        )
    )
    again = ask | {"multi_modal_data": {"image": [None, np.asarray(OTHER_IMAGE)]}, "multi_modal_uuids": uuids}
    assert texts(llm.generate(again, SHORT)) == first
    embeddings = {"image_embeds": torch.zeros(1, 6, HIDDEN_SIZE), "image_grid_thw": torch.tensor([[1, 4, 6]])}
    texts(llm.generate({"prompt": prompt("What?", PLACEHOLDER), "multi_modal_data": {"image": embeddings}}, SHORT))

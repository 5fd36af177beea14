"""Embeddings in vLLM's format from OpenAI's client through Envoy: the answer is that of the image."""

import base64
from typing import Any

import numpy as np
import pytest
import torch
from openai import BadRequestError, OpenAI
from PIL import Image

from glimpse.engine.checkpoint.location import DEFAULT_MODEL
from tests.e2e.images import ask_about as ask
from tests.e2e.images import data_url
from tests.e2e.stack import Stack
from tests.media.tensors import safetensors_file, torch_file
from tests.oracles import qwen_vl as oracle

PIXELS = np.random.default_rng(0).integers(0, 256, (112, 140, 3), dtype=np.uint8)
"""Pixels of a size that the model does not resize."""
PART = "messages[0].content[0].image_embeds"


@pytest.fixture(scope="module")
def embedded() -> tuple[torch.Tensor, torch.Tensor]:
    return oracle.embeddings(DEFAULT_MODEL, PIXELS)


def saved(tensor: torch.Tensor) -> str:
    """Does what vLLM's `tensor2base64` does."""
    return base64.b64encode(torch_file(tensor)).decode()


def safe(tensor: torch.Tensor) -> str:
    return base64.b64encode(safetensors_file(tensor)).decode()


def typed(tensor: torch.Tensor) -> dict[str, Any]:
    data = base64.b64encode(tensor.contiguous().view(torch.uint8).numpy().tobytes()).decode()
    return {"type": str(tensor.dtype).removeprefix("torch."), "shape": list(tensor.shape), "data": data}


def image_embeds(**members: Any) -> dict[str, Any]:
    return {"type": "image_embeds", "image_embeds": members}


def refusal(client: OpenAI, part: dict[str, Any]) -> tuple[str | None, str | None]:
    """The error's code and field."""
    with pytest.raises(BadRequestError) as caught:
        ask(client, part)
    return caught.value.code, caught.value.param


@pytest.mark.parametrize("write", [saved, safe, typed])
def test_embeddings_give_the_answer_of_their_image(
    client: OpenAI, embedded: tuple[torch.Tensor, torch.Tensor], write: Any
) -> None:
    embeddings, grid = embedded
    expected = ask(client, {"type": "image_url", "image_url": {"url": data_url(Image.fromarray(PIXELS))}})
    answer = ask(client, image_embeds(image_embeds=write(embeddings), image_grid_thw=write(grid)))
    assert answer.choices[0].message.content == expected.choices[0].message.content
    assert (answer.usage, expected.usage) != (None, None)
    assert getattr(answer.usage, "prompt_tokens", None) == getattr(expected.usage, "prompt_tokens", None)


def test_accepts_video_embeddings(client: OpenAI, embedded: tuple[torch.Tensor, torch.Tensor]) -> None:
    embeddings, grid = embedded
    part = {"type": "video_embeds", "video_embeds": {"video_embeds": saved(embeddings), "video_grid_thw": saved(grid)}}
    answer = ask(client, part)
    details: Any = answer.usage and answer.usage.prompt_tokens_details
    assert details.video_tokens == len(embeddings)


def test_embeddings_with_a_uuid_are_sent_once(client: OpenAI, embedded: tuple[torch.Tensor, torch.Tensor]) -> None:
    embeddings, grid = embedded
    sent = ask(client, image_embeds(image_embeds=safe(embeddings), image_grid_thw=safe(grid)) | {"uuid": "noise"})
    named = ask(client, {"type": "image_embeds", "image_embeds": None, "uuid": "noise"})
    assert named.choices[0].message.content == sent.choices[0].message.content


GOOD = torch.zeros(6, 4)
GRID = torch.tensor([[1, 4, 6]])
REFUSED: list[Any] = [
    # the fields, the code, the invalid field
    pytest.param({"image_embeds": saved(GOOD)}, "invalid_embeddings", f"{PART}.image_grid_thw", id="no grid"),
    pytest.param(
        {"image_embeds": saved(GOOD), "image_grid_thw": saved(GRID)}, "invalid_embeddings", f"{PART}.image_embeds",
        id="another model's",
    ),
    pytest.param(
        {"image_embeds": saved(GOOD.to_sparse()), "image_grid_thw": saved(GRID)}, "invalid_embeddings",
        f"{PART}.image_embeds", id="sparse",
    ),
    pytest.param(
        {"image_embeds": typed(GOOD) | {"shape": [-6, -4]}, "image_grid_thw": saved(GRID)}, "invalid_value",
        f"{PART}.image_embeds.shape[0]", id="negative",
    ),
    pytest.param(
        {"image_embeds": typed(GOOD) | {"shape": [6, 5]}, "image_grid_thw": saved(GRID)}, "invalid_embeddings",
        f"{PART}.image_embeds", id="other bytes",
    ),
    pytest.param(
        {"image_embeds": saved(GOOD), "image_sizes": saved(GRID)}, "invalid_embeddings", f"{PART}.image_sizes",
        id="another model's extras",
    ),
    pytest.param({"image_embeds": "%"}, "invalid_value", f"{PART}.image_embeds", id="no base64"),
]  # fmt: skip


@pytest.mark.parametrize(("members", "code", "param"), REFUSED)
def test_refuses_invalid_embeddings_by_field(client: OpenAI, members: dict[str, Any], code: str, param: str) -> None:
    assert refusal(client, image_embeds(**members)) == (code, param)
    assert ask(client, {"type": "text", "text": "Hello"}).choices


def test_accepts_embeddings_without_a_grid_as_a_string(client: OpenAI) -> None:
    part = {"type": "image_embeds", "image_embeds": saved(GOOD)}
    assert refusal(client, part) == ("invalid_embeddings", f"{PART}.image_grid_thw")


def test_refuses_embeddings_without_the_flag(echo_stack: Stack) -> None:
    part = image_embeds(image_embeds=saved(GOOD), image_grid_thw=saved(GRID))
    with OpenAI(base_url=echo_stack.openai_url, api_key="none", max_retries=0) as client:
        assert refusal(client, part) == ("unsupported", PART)

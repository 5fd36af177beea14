"""Embeddings in the offline API: equivalent to their media, in vLLM's forms, and errors that name the invalid field."""

from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pytest
import torch

from glimpse.offline.llm import LLM, InputError, SamplingParams
from tests.checkpoints.qwen2_audio import TOKEN_IDS, make_audio_checkpoint
from tests.engine.offline.llm_inputs import image_pil, load, text, user
from tests.media.audio import noise
from tests.media.tensors import good, good_grid
from tests.oracles import qwen2_audio as audio_oracle
from tests.oracles import qwen_vl as oracle

GREEDY = SamplingParams(temperature=0, max_tokens=12)
RANDOM = np.random.default_rng(1)
PIXELS = RANDOM.integers(0, 256, (56, 84, 3), dtype=np.uint8)
OTHER_PIXELS = RANDOM.integers(0, 256, (84, 56, 3), dtype=np.uint8)
FRAMES = RANDOM.integers(0, 256, (4, 56, 56, 3), dtype=np.uint8)
PLACEHOLDER = "<|vision_start|><|image_pad|><|vision_end|>"
VIDEO_PLACEHOLDER = "<|vision_start|><|video_pad|><|vision_end|>"
SEVERAL = f"{PLACEHOLDER}the{PLACEHOLDER} end"


@pytest.fixture(scope="module")
def llm(tiny_checkpoint: Path) -> LLM:
    return load(tiny_checkpoint, enable_mm_embeds=True)


@pytest.fixture(scope="module")
def embedded(tiny_checkpoint: Path) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Embeddings [tokens, hidden] and grid [1, 3] of each of the two images."""
    return [oracle.embeddings(tiny_checkpoint, pixels) for pixels in (PIXELS, OTHER_PIXELS)]


def image_embeds(embeddings: object, grid: object = None) -> dict[str, Any]:
    extras = {} if grid is None else {"image_grid_thw": grid}
    return {"type": "image_embeds", "image_embeds": {"image_embeds": embeddings, **extras}}


def prompt(image: object, words: str = SEVERAL) -> dict[str, Any]:
    return {"prompt": words, "multi_modal_data": {"image": image}}


def test_embeddings_of_a_prompt_are_equivalent_to_its_images(
    llm: LLM, embedded: list[tuple[torch.Tensor, torch.Tensor]]
) -> None:
    (expected,) = llm.generate(prompt([PIXELS, OTHER_PIXELS]), GREEDY)
    tensors, grids = zip(*embedded, strict=True)
    grid = torch.cat(grids)
    forms: list[dict[str, Any]] = [
        {"image_embeds": torch.cat(tensors), "image_grid_thw": grid},
        {"image_embeds": torch.stack(tensors), "image_grid_thw": grid},
        {"image_embeds": list(tensors), "image_grid_thw": grid.numpy()},
        {"image_embeds": [tensor.numpy()[None] for tensor in tensors], "image_grid_thw": grid.tolist()},
    ]
    for form, output in zip(forms, llm.generate([prompt(form) for form in forms], GREEDY), strict=True):
        assert output.prompt_token_ids == expected.prompt_token_ids, form
        assert output.outputs == expected.outputs, form


def test_embeddings_of_a_conversation_are_equivalent_to_its_image(
    llm: LLM, embedded: list[tuple[torch.Tensor, torch.Tensor]]
) -> None:
    embeddings, grid = embedded[0]
    (expected,) = llm.generate(
        prompt(PIXELS, f"<|im_start|>user\n{PLACEHOLDER}the<|im_end|>\n<|im_start|>assistant\n"), GREEDY
    )
    for part in (image_embeds(embeddings, grid), image_embeds(embeddings[None], grid[0])):
        (output,) = llm.chat(user(part, text("the")), GREEDY)
        assert output.prompt_token_ids == expected.prompt_token_ids
        assert output.outputs == expected.outputs


def test_embeddings_are_equivalent_to_their_video(llm: LLM, tiny_checkpoint: Path) -> None:
    video = {"type": "video", "video": FRAMES, "min_pixels": 784, "max_pixels": 56 * 56}
    (expected,) = llm.chat(user(video, text("the")), GREEDY)
    embeddings, grid = oracle.embeddings(tiny_checkpoint, FRAMES)
    content = {"video_embeds": embeddings, "video_grid_thw": grid}
    (output,) = llm.chat(user({"type": "video_embeds", "video_embeds": content}, text("the")), GREEDY)
    assert output.outputs == expected.outputs
    words = f"<|im_start|>user\n{VIDEO_PLACEHOLDER}the<|im_end|>\n<|im_start|>assistant\n"
    (by_prompt,) = llm.generate({"prompt": words, "multi_modal_data": {"video": content}}, GREEDY)
    assert by_prompt.outputs == expected.outputs


def test_embeddings_are_equivalent_to_their_audio(tmp_path: Path) -> None:
    path = make_audio_checkpoint(tmp_path)
    llm, samples = load(path, enable_mm_embeds=True), noise(2, 8_000)
    (expected,) = llm.chat(user({"type": "audio", "audio": (samples, 16_000)}, text("the")), GREEDY)
    embeddings = audio_oracle.embeddings(path, expected.prompt_token_ids, samples, TOKEN_IDS["<|AUDIO|>"])
    for content in (embeddings, {"audio_embeds": embeddings}, embeddings[None]):
        (output,) = llm.chat(user({"type": "audio_embeds", "audio_embeds": content}, text("the")), GREEDY)
        assert output.prompt_token_ids == expected.prompt_token_ids
        assert output.outputs == expected.outputs
    words = "<|audio_bos|><|AUDIO|><|audio_eos|>the"
    by_audio, by_embeddings = (
        llm.generate({"prompt": words, "multi_modal_data": {"audio": content}}, GREEDY)[0]
        for content in ((samples, 16_000), [embeddings])
    )
    assert by_embeddings.outputs == by_audio.outputs
    with pytest.raises(InputError, match="image_embeds': the model does not support image input"):
        llm.chat(user(image_embeds(good(), good_grid())), GREEDY)


def test_embeddings_keep_their_position_among_images(llm: LLM) -> None:
    image, embedded = image_pil(PIL.Image.fromarray(PIXELS)), image_embeds(good(), good_grid())
    orders = [[image, embedded], [embedded, image], [embedded, embedded]]
    outputs = llm.chat([user(*parts, text("the")) for parts in orders], GREEDY)
    assert len({output.outputs[0].text for output in outputs}) == 3


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_accepts_embeddings_in_half_precision(llm: LLM, dtype: torch.dtype) -> None:
    rounded = good(dtype)
    short, long = llm.chat([user(image_embeds(each, good_grid())) for each in (rounded, rounded.float())], GREEDY)
    assert short.outputs == long.outputs


def test_accepts_tensors_that_are_views(llm: LLM) -> None:
    views = [good(), good().T.contiguous().T, torch.nn.Parameter(good()), good().repeat(2, 1)[4:]]
    outputs = llm.chat([user(image_embeds(view, good_grid())) for view in views], GREEDY)
    assert [output.outputs for output in outputs] == [outputs[0].outputs] * len(views)


def test_prefix_cache_recognizes_equal_embeddings(tiny_checkpoint: Path) -> None:
    llm = load(tiny_checkpoint, enable_mm_embeds=True)

    def ask(embeddings: torch.Tensor) -> Any:
        (output,) = llm.chat(user(image_embeds(embeddings, good_grid()), text("the " * 40)), GREEDY)
        return output

    cold, warm, other = ask(good()), ask(good()), ask(-good())
    assert (cold.num_cached_tokens, other.num_cached_tokens) == (0, 0)
    assert warm.num_cached_tokens > 30
    assert warm.outputs == cold.outputs != other.outputs


EMBEDS = r"content\[0\]\.image_embeds"
REFUSED: list[Any] = [
    # embeddings, grid, error message
    pytest.param(good(), None, rf"{EMBEDS}': image_grid_thw: expected a grid", id="no grid"),
    pytest.param(good().to_sparse(), good_grid(), rf"{EMBEDS}\.image_embeds': expected a dense tensor", id="sparse"),
    pytest.param(good().to("meta"), good_grid(), rf"{EMBEDS}\.image_embeds': .*or meta one", id="meta"),
    pytest.param(torch.nn.Linear(2, 2), good_grid(), "expected a tensor or an array, got Linear", id="module"),
    pytest.param("AAAA", good_grid(), "expected a tensor or an array, got str", id="text"),
    pytest.param(None, good_grid(), "expected a tensor or an array, got NoneType", id="nothing"),
    pytest.param([], good_grid(), "expected one for each of 0 media, got 1", id="none"),
    pytest.param(np.array([object()]), good_grid(), "tensor of type .*got object", id="objects"),
    pytest.param(good().double(), good_grid(), "tensor of type .*got float64", id="doubles"),
    pytest.param(good().to(torch.complex64), good_grid(), "tensor of type .*got complex64", id="complex"),
    pytest.param(
        good().long(), good_grid(), "image_embeds: expected a tensor of type .*, got int64", id="whole numbers"
    ),
    pytest.param(good().flatten(), good_grid(), "got 1 dimensions", id="a row"),
    pytest.param(good()[None, None], good_grid(), "got 4 dimensions", id="rank 4"),
    pytest.param(torch.zeros(0, 64), good_grid(), "at least 1, got 0", id="no tokens"),
    pytest.param(good()[:, :32], good_grid(), "expected 64 values per token, got 32", id="narrow"),
    pytest.param(good()[:3], good_grid(), "expected 4 tokens for a grid of 1×4×4 patches, got 3", id="few tokens"),
    pytest.param(good() * float("nan"), good_grid(), "expected finite values", id="NaN"),
    pytest.param(good() * 1e30, good_grid(), "expected finite values from -65504 to 65504", id="large"),
    pytest.param(good(), [1.0, 4.0, 4.0], rf"{EMBEDS}\.image_grid_thw': expected .* integers", id="fractions"),
    pytest.param(good(), [[1, 4], [4]], rf"{EMBEDS}\.image_grid_thw': expected .* integers", id="ragged"),
    pytest.param(good(), [4, 4], r"image_grid_thw': expected patches in time, height and width", id="two numbers"),
    pytest.param(good(), [1, -4, -4], "in each dimension, got 1×-4×-4", id="negative"),
    pytest.param(good(), [1, 2**62, 2**62], "expected 5316911983139663491615228241121378304 tokens", id="endless"),
    pytest.param(
        good(), [[1, 4, 4], [1, 4, 8]], "expected tokens that fit the 2 grids, got 4", id="tokens do not fit the grids"
    ),
    pytest.param(
        good().repeat(2, 1), [[1, 4, 4]] * 2, "expected the embeddings of one medium, got those of 2", id="two"
    ),
]


@pytest.mark.parametrize(("embeddings", "grid", "message"), REFUSED)
def test_names_the_field_of_invalid_embeddings(llm: LLM, embeddings: object, grid: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        llm.chat(user(image_embeds(embeddings, grid)), GREEDY)


def test_requires_a_grid_for_image_embeddings(llm: LLM) -> None:
    for image in (good(), [good(), good()], good()[None]):
        with pytest.raises(InputError, match=r"multi_modal_data\.image': image_grid_thw: expected a grid"):
            llm.generate(prompt(image), GREEDY)


def test_names_fields_that_only_other_models_support(llm: LLM) -> None:
    image = {"image_embeds": good(), "image_sizes": [(56, 56)]}
    with pytest.raises(InputError, match="image_sizes: expected none, since the model needs image_grid_thw instead"):
        llm.generate(prompt(image), GREEDY)
    with pytest.raises(InputError, match="audio_embeds': the model does not support audio input"):
        llm.chat(user({"type": "audio_embeds", "audio_embeds": good()}), GREEDY)


def test_embeddings_count_towards_the_limit_of_their_media(tiny_checkpoint: Path) -> None:
    llm = load(tiny_checkpoint, limit_mm_per_prompt={"image": 1}, enable_mm_embeds=True)
    with pytest.raises(InputError, match=r"at most 1 image inputs \(limit_mm_per_prompt\), got 2"):
        llm.chat(user(image_embeds(good(), good_grid()), image_embeds(good(), good_grid())), GREEDY)


def test_refuses_embeddings_unless_they_are_enabled(tiny_checkpoint: Path) -> None:
    with pytest.raises(InputError, match=rf"{EMBEDS}': .*enable_mm_embeds=True"):
        load(tiny_checkpoint).chat(user(image_embeds(good(), good_grid())), GREEDY)

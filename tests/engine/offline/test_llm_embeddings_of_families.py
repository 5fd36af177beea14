"""Embeddings in place of media on each family: the encoder's own rows answer like the medium that they come from."""

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from glimpse.engine.worker.models.model import Model
from glimpse.offline.llm import LLM, InputError, SamplingParams
from tests.checkpoints.gemma3 import make_gemma3_checkpoint
from tests.checkpoints.idefics3 import make_idefics3_checkpoint
from tests.checkpoints.internvl import make_internvl_checkpoint, make_original_checkpoint
from tests.checkpoints.llava import (
    IMAGE_TOKEN_ID,
    make_llava_checkpoint,
    make_next_checkpoint,
    make_onevision_checkpoint,
)
from tests.checkpoints.minicpmv import make_minicpmv_checkpoint
from tests.checkpoints.minicpmv4_6 import make_minicpmv4_6_checkpoint
from tests.checkpoints.phi3v import make_phi3v_checkpoint
from tests.engine.offline.llm_inputs import image_pil, load, text, user
from tests.media.images import scene
from tests.oracles.llava import image_processor, load_oracle

GREEDY = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
IMAGE = scene(150, 60, 1)
FRAMES = [scene(60, 60, seed) for seed in range(3)]
FAMILIES: Mapping[str, Callable[[Path], Path]] = {
    "llava": make_llava_checkpoint,
    "next": make_next_checkpoint,
    "onevision": make_onevision_checkpoint,
    "phi3v": make_phi3v_checkpoint,
    "gemma3": make_gemma3_checkpoint,
    "internvl": make_internvl_checkpoint,
    "internvl_chat": lambda path: make_original_checkpoint(make_internvl_checkpoint(path / "hf"), path / "original"),
    "smolvlm": make_idefics3_checkpoint,
    "minicpmv": make_minicpmv_checkpoint,
    "minicpmv4_6": make_minicpmv4_6_checkpoint,
}
NEED_SIZE = {"smolvlm", "minicpmv", "minicpmv4_6"}


@pytest.fixture(scope="module")
def llms(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], LLM]:
    loaded: dict[str, LLM] = {}

    def get(family: str) -> LLM:
        if family not in loaded:
            loaded[family] = load(FAMILIES[family](tmp_path_factory.mktemp(family)), enable_mm_embeds=True)
        return loaded[family]

    return get


def width(family: str) -> int:
    """Returns the values of a row."""
    return 256 if family == "minicpmv" else 64


@contextmanager
def recorded_rows(monkeypatch: pytest.MonkeyPatch) -> Generator[list[torch.Tensor]]:
    """Records the encoder output of each medium that is encoded in the block."""
    rows: list[torch.Tensor] = []

    encode = Model.encode

    def record(self: Model, media: Any) -> Sequence[torch.Tensor]:
        outputs = encode(self, media)
        rows.extend(each.clone() for each in outputs)
        return outputs

    with monkeypatch.context() as patch:
        patch.setattr(Model, "encode", record)
        yield rows


def image_embeds(rows: object, **extras: object) -> dict[str, Any]:
    return {"type": "image_embeds", "image_embeds": {"image_embeds": rows, **extras} if extras else rows}


def rows_of(llm: LLM, part: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> tuple[Any, torch.Tensor]:
    """Returns the answer about a medium, and the encoder's output for it."""
    with recorded_rows(monkeypatch) as rows:
        (expected,) = llm.chat(user(text("the"), part, text("in")), GREEDY)
    assert len(rows) == 1
    return expected, rows[0]


@pytest.mark.parametrize("family", FAMILIES)
def test_embeddings_answer_like_their_image(
    family: str, llms: Callable[[str], LLM], monkeypatch: pytest.MonkeyPatch
) -> None:
    llm = llms(family)
    expected, rows = rows_of(llm, image_pil(IMAGE), monkeypatch)
    forms = [
        image_embeds(rows, image_sizes=[IMAGE.size]),
        image_embeds(rows[None], image_sizes=torch.tensor(IMAGE.size)),
    ]
    if family not in NEED_SIZE:
        forms += [image_embeds(rows), image_embeds(rows[None])]
    for form in forms:
        (output,) = llm.chat(user(text("the"), form, text("in")), GREEDY)
        assert output.prompt_token_ids == expected.prompt_token_ids
        assert output.outputs == expected.outputs
    # Random weights may well choose the same tokens.
    others = [user(text("the"), image_embeds(each, image_sizes=[IMAGE.size]), text("in")) for each in (rows, -rows)]
    first, other = llm.chat(others, SamplingParams(temperature=0, max_tokens=1, logprobs=1))
    assert first.outputs != other.outputs


@pytest.mark.parametrize("family", ["onevision", "internvl", "minicpmv"])
def test_embeddings_answer_like_their_video(
    family: str, llms: Callable[[str], LLM], monkeypatch: pytest.MonkeyPatch
) -> None:
    llm = llms(family)
    expected, rows = rows_of(llm, {"type": "video", "video": FRAMES}, monkeypatch)
    part = {"type": "video_embeds", "video_embeds": rows}
    (output,) = llm.chat(user(text("the"), part, text("in")), GREEDY)
    assert (output.prompt_token_ids, output.outputs) == (expected.prompt_token_ids, expected.outputs)


def test_an_image_that_is_not_cut_needs_no_size(llms: Callable[[str], LLM], monkeypatch: pytest.MonkeyPatch) -> None:
    llm = llms("minicpmv")
    expected, rows = rows_of(llm, image_pil(scene(8, 8, 3)), monkeypatch)
    (output,) = llm.chat(user(text("the"), image_embeds(rows), text("in")), GREEDY)
    assert (output.prompt_token_ids, output.outputs) == (expected.prompt_token_ids, expected.outputs)


def test_embeddings_of_several_images_of_a_prompt(llms: Callable[[str], LLM], monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM's forms: one tensor of all, a list, and with sizes for slices."""
    images = [scene(150, 60, 7), scene(40, 40, 8)]
    for family, placeholder, extras in (
        ("llava", "<image>", {}),
        ("minicpmv", "(<image>./</image>)", {"image_sizes": [image.size for image in images]}),
    ):
        prompt, llm = f"USER: {placeholder}{placeholder}\nthe\nASSISTANT:", llms(family)
        with recorded_rows(monkeypatch) as rows:
            (expected,) = llm.generate({"prompt": prompt, "multi_modal_data": {"image": images}}, GREEDY)
        forms: list[Any] = [{"image_embeds": rows, **extras}]
        if family == "llava":
            forms += [rows, torch.stack(rows), {"image_embeds": torch.stack(rows)}]
        for form in forms:
            (output,) = llm.generate({"prompt": prompt, "multi_modal_data": {"image": form}}, GREEDY)
            assert (output.prompt_token_ids, output.outputs) == (expected.prompt_token_ids, expected.outputs)


def test_the_features_of_transformers_are_the_rows_of_an_image(
    llms: Callable[[str], LLM], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, image = make_llava_checkpoint(tmp_path), scene(90, 70, 9)
    pixels = image_processor(path)(image, return_tensors="pt")["pixel_values"]
    with torch.no_grad():
        features = torch.stack(list(load_oracle(path).get_image_features(pixel_values=pixels).pooler_output))
    _, rows = rows_of(llms("llava"), image_pil(image), monkeypatch)
    torch.testing.assert_close(features[0], rows, atol=1e-4, rtol=0)
    prompt = {"prompt": "USER: <image>\nthe\nASSISTANT:", "multi_modal_data": {"image": features}}
    (output,) = llms("llava").generate(prompt, GREEDY)
    assert features.shape == (1, 16, 64)
    assert output.prompt_token_ids.count(IMAGE_TOKEN_ID) == 16


@pytest.mark.parametrize(
    ("family", "num_rows", "complaint"),
    [
        ("llava", 15, "image_embeds: expected the 16 tokens of an image, got 15"),
        ("gemma3", 8, "image_embeds: expected the 9 tokens of an image, got 8"),
        ("internvl", 5, "image_embeds: expected 4 tokens for each tile, got 5"),
        ("internvl", 8, "image_embeds: expected 4 tokens for each tile: one, or several and an overview, got 8"),
        (
            "phi3v",
            3,
            "image_embeds: expected the tokens of an image's tiles, overview and separators, such as 13, 17, 21",
        ),
        ("next", 16, "image_embeds: expected at least 17 tokens"),
        ("onevision", 9, "image_embeds: expected at least 10 tokens"),
        ("smolvlm", 3, "image_embeds: expected 4 tokens for each tile, got 3"),
        ("smolvlm", 8, "image_sizes: expected the width and height of the image, which decide where its 8 tokens go"),
        ("minicpmv", 5, "image_embeds: expected 4 tokens for each slice, got 5"),
        ("minicpmv", 8, "image_sizes: expected the width and height of the image, which decide where its 8 tokens go"),
    ],
)
def test_refuses_other_numbers_of_rows_by_the_expected_one(
    family: str, num_rows: int, complaint: str, llms: Callable[[str], LLM]
) -> None:
    with pytest.raises(InputError, match=complaint):
        llms(family).chat(user(image_embeds(torch.zeros(num_rows, width(family)))), GREEDY)


def test_refuses_rows_that_an_image_of_this_size_does_not_have(llms: Callable[[str], LLM]) -> None:
    for sizes, complaint in (
        ([(300, 60)], r"image_embeds: expected \d+ tokens for an image of 300×60 pixels, got 4"),
        ([(100_000, 1)], "image_sizes: expected an aspect ratio of at most 200:1"),
        ([(0, 1)], "image_sizes: expected an image of at least 1×1 pixels, got 0×1"),
        ([(1, 2, 3)], r"image_sizes.*expected width and height in pixels of each medium, int64 \[media, 2\]"),
        ([(1, 2), (3, 4)], "image_sizes.*expected one for each of 1 media, got 2"),
    ):
        with pytest.raises(InputError, match=complaint):
            llms("minicpmv").chat(user(image_embeds(torch.zeros(4, width("minicpmv")), image_sizes=sizes)), GREEDY)


@pytest.mark.parametrize(("family", "num_rows"), [("onevision", 3), ("internvl", 5), ("minicpmv", 5)])
def test_refuses_rows_that_no_frames_have(family: str, num_rows: int, llms: Callable[[str], LLM]) -> None:
    part = {"type": "video_embeds", "video_embeds": torch.zeros(num_rows, width(family))}
    with pytest.raises(InputError, match=r"video_embeds: expected \d+ tokens for each (pack of )?frame"):
        llms(family).chat(user(part), GREEDY)


def test_embeddings_of_videos_with_times_in_their_prompt_are_refused(llms: Callable[[str], LLM]) -> None:
    part = {"type": "video_embeds", "video_embeds": torch.zeros(4, 64)}
    with pytest.raises(InputError, match="the model does not accept embeddings of videos"):
        llms("smolvlm").chat(user(part), GREEDY)

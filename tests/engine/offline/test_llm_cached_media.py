"""Media uuids in the offline API: a medium that was passed once can be passed by reference, in every form."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from glimpse.media.errors import MediaErrorCode
from glimpse.offline.llm import LLM, InputError, SamplingParams
from tests.checkpoints.qwen2_audio import make_audio_checkpoint
from tests.engine.offline.audio_inputs import BASE64, SAMPLES, WAV
from tests.engine.offline.audio_inputs import PLACEHOLDER as AUDIO_PLACEHOLDER
from tests.engine.offline.llm_inputs import IMAGE, OTHER_IMAGE, PIXELS, PLACEHOLDER, base64_png, load, png, text, user
from tests.engine.offline.video_inputs import FRAMES, IMAGES, SMALL
from tests.engine.offline.video_inputs import PLACEHOLDER as VIDEO_PLACEHOLDER
from tests.media.tensors import good, good_grid

GREEDY = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
URL = f"data:image/png;base64,{base64_png(IMAGE)}"
EMBEDS = {"image_embeds": good(), "image_grid_thw": good_grid()}


@pytest.fixture(scope="module")
def llm(tiny_checkpoint: Path) -> LLM:
    return load(tiny_checkpoint, enable_mm_embeds=True)


@pytest.fixture(scope="module")
def audio_llm(tmp_path_factory: pytest.TempPathFactory) -> LLM:
    return load(make_audio_checkpoint(tmp_path_factory.mktemp("audio")))


def part(name: str, value: object, uuid: str | None = None, **options: Any) -> dict[str, Any]:
    return {"type": name, name: value, **({} if uuid is None else {"uuid": uuid}), **options}


def refused(asking: Callable[[], Any]) -> str:
    with pytest.raises(InputError) as caught:
        asking()
    assert caught.value.code is MediaErrorCode.NOT_CACHED
    return str(caught.value)


@pytest.mark.parametrize(
    ("name", "value", "empty", "options"),
    [
        pytest.param("image_pil", IMAGE, None, {}, id="PIL"),
        pytest.param("image_url", URL, None, {}, id="URL"),
        pytest.param("image_url", {"url": URL}, {"url": None}, {}, id="URL in a dict"),
        pytest.param("image_embeds", EMBEDS, None, {}, id="embeddings"),
        pytest.param("image_embeds", EMBEDS, {"image_embeds": None}, {}, id="embeddings in a dict"),
        pytest.param("video", FRAMES, None, SMALL, id="array"),
        pytest.param("video", [png(image) for image in IMAGES], None, SMALL, id="files"),
        pytest.param("video", FRAMES, None, SMALL | {"num_frames": 2}, id="some frames of an array"),
        pytest.param("video_url", {"url": [URL, URL], **SMALL}, {"url": None, **SMALL}, {}, id="URLs of frames"),
    ],
)
def test_a_content_part_with_a_uuid_may_be_left_out_later(
    llm: LLM, request: pytest.FixtureRequest, name: str, value: Any, empty: Any, options: dict[str, Any]
) -> None:
    uuid = request.node.name
    conversations = [user(part(name, content, uuid, **options), text("the")) for content in (value, empty)]
    assert "no " in refused(lambda: llm.chat(conversations[1], GREEDY))
    sent, left_out = (llm.chat(conversation, GREEDY)[0] for conversation in conversations)
    assert left_out.prompt_token_ids == sent.prompt_token_ids
    assert left_out.outputs == sent.outputs


@pytest.mark.parametrize(
    ("name", "value"),
    [("audio", (SAMPLES, 44_100)), ("audio", WAV), ("audio_url", {"url": BASE64}), ("input_audio", {"data": BASE64})],
)
def test_audio_with_a_uuid_may_be_left_out_later(audio_llm: LLM, name: str, value: Any) -> None:
    uuid = f"{name} of {type(value)}"
    sent, left_out = (audio_llm.chat(user(part(name, content, uuid)), GREEDY)[0] for content in (value, None))
    assert left_out.prompt_token_ids == sent.prompt_token_ids
    assert left_out.outputs == sent.outputs


@pytest.mark.parametrize(
    ("prompt", "data", "uuids", "left_out"),
    [
        (PLACEHOLDER, {"image": PIXELS}, {"image": "pixels"}, {"image": None}),
        (PLACEHOLDER, {"image": [IMAGE]}, {"image": ["image"]}, {"image": [None]}),
        (PLACEHOLDER * 2, {"image": [IMAGE, OTHER_IMAGE]}, {"image": ["a", "b"]}, {}),
        (
            PLACEHOLDER * 2,
            {"image": [IMAGE, OTHER_IMAGE]},
            {"image": ["c", None]},
            {"image": [None, OTHER_IMAGE]},
        ),
        (
            VIDEO_PLACEHOLDER + PLACEHOLDER,
            {"image": png(IMAGE), "video": FRAMES},
            {"image": "d", "video": ["e"]},
            {"image": None, "video": None},
        ),
        (PLACEHOLDER, {"image": EMBEDS}, {"image": "embeddings"}, {"image": {"image_embeds": None}}),
    ],
)
def test_accepts_the_uuids_of_a_prompt_as_in_vllm(
    llm: LLM, prompt: str, data: dict[str, Any], uuids: dict[str, Any], left_out: dict[str, Any]
) -> None:
    asked = [{"prompt": prompt, "multi_modal_data": media, "multi_modal_uuids": uuids} for media in (data, left_out)]
    assert "multi_modal_data" in refused(lambda: llm.generate(asked[1], GREEDY))
    sent, again = (llm.generate(each, GREEDY)[0] for each in asked)
    assert again.prompt_token_ids == sent.prompt_token_ids
    assert again.outputs == sent.outputs


def test_accepts_the_uuid_of_a_prompt_s_audio(audio_llm: LLM) -> None:
    sent, again = (
        audio_llm.generate(
            {"prompt": AUDIO_PLACEHOLDER, "multi_modal_data": {"audio": audio}, "multi_modal_uuids": {"audio": "x"}},
            GREEDY,
        )[0]
        for audio in ((SAMPLES, 44_100), None)
    )
    assert again.outputs == sent.outputs


def test_a_reference_may_precede_its_medium_in_a_batch(llm: LLM) -> None:
    batch = [user(part("image_pil", image, "batch"), text("the")) for image in (None, IMAGE, None)]
    outputs = llm.chat(batch, GREEDY)
    assert [output.outputs for output in outputs] == [outputs[1].outputs] * 3


def test_a_uuid_refers_to_the_medium_passed_last(llm: LLM) -> None:
    forms = [part("image_pil", IMAGE, "cat"), part("image_url", base64_png(OTHER_IMAGE), "cat")]
    for form in (*forms, forms[0]):
        (sent,) = llm.chat(user(form), GREEDY)
        (left_out,) = llm.chat(user(part("image_pil", None, "cat")), GREEDY)
        assert left_out.outputs == sent.outputs


def test_a_cached_file_can_be_resized_differently(llm: LLM) -> None:
    llm.chat(user(part("image_url", URL, "sizes")), GREEDY)
    (small,) = llm.chat(user(part("image_url", {"url": None, "max_pixels": 56 * 56}, "sizes")), GREEDY)
    (expected,) = llm.chat(user(part("image_url", {"url": URL, "max_pixels": 56 * 56})), GREEDY)
    assert small.outputs == expected.outputs
    llm.chat(user(part("image_pil", IMAGE, "made")), GREEDY)
    small_made = part("image_url", {"url": None, "max_pixels": 56 * 56}, "made")
    assert "the cache has no image" in refused(lambda: llm.chat(user(small_made), GREEDY))


def test_uuids_are_separate_for_each_kind_of_media(llm: LLM) -> None:
    llm.chat(user(part("image_pil", IMAGE, "kind")), GREEDY)
    for name in ("video", "image_embeds"):
        assert "kind" not in refused(lambda name=name: llm.chat(user(part(name, None, "kind")), GREEDY))


def test_uuids_have_no_effect_without_a_cache(tiny_checkpoint: Path) -> None:
    llm = load(tiny_checkpoint, media_cache_bytes=0)
    assert llm.chat(user(part("image_pil", IMAGE, "cat")), GREEDY)
    assert "media_cache_bytes" in refused(lambda: llm.chat(user(part("image_pil", None, "cat")), GREEDY))

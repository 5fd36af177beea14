"""Videos in the offline API: all forms, among images, in batches, and errors that name the invalid field."""

import base64
from io import BytesIO
from pathlib import Path
from typing import Any

import PIL.Image
import pytest
import torch

from glimpse.offline.llm import LLM, InputError, SamplingParams
from tests.engine.offline.llm_inputs import IMAGE, image_pil, load, png, text, user
from tests.engine.offline.video_inputs import FRAMES, IMAGES, PLACEHOLDER, SMALL
from tests.media.images import animation
from tests.media.videos import greys, video

GREEDY = SamplingParams(temperature=0, max_tokens=12)
URLS = [f"data:image/png;base64,{base64.b64encode(png(image)).decode()}" for image in IMAGES]


def video_part(frames: object = FRAMES, **options: Any) -> dict[str, Any]:
    return {"type": "video", "video": frames, **SMALL, **options}


def video_url(url: object, **options: Any) -> dict[str, Any]:
    return {"type": "video_url", "video_url": {"url": url, **SMALL, **options}}


@pytest.mark.parametrize(
    "part",
    [
        pytest.param(video_part(torch.from_numpy(FRAMES.copy())), id="tensor"),
        pytest.param(video_part(torch.from_numpy(FRAMES).permute(0, 3, 1, 2).float()), id="as process_vision_info"),
        pytest.param(video_part(torch.from_numpy(FRAMES).permute(0, 3, 1, 2) / 255), id="floats to 1"),
        pytest.param(video_part([frame.transpose(2, 0, 1) for frame in FRAMES]), id="arrays, channels first"),
        pytest.param(video_part(list(FRAMES)), id="arrays"),
        pytest.param(video_part(IMAGES), id="PIL"),
        pytest.param(video_part([png(image) for image in IMAGES]), id="files"),
        pytest.param(video_part(URLS), id="data URLs"),
        pytest.param(video_url(URLS), id="video_url, a list"),
        pytest.param(
            video_url("data:video/jpeg;base64," + ",".join(url.partition(",")[2] for url in URLS)), id="video_url, one"
        ),
    ],
)
def test_accepts_a_video_in_every_form(llm: LLM, part: Any) -> None:
    (expected,) = llm.chat(user(video_part(), text("the")), GREEDY)
    (output,) = llm.chat(user(part, text("the")), GREEDY)
    assert output.prompt_token_ids == expected.prompt_token_ids
    assert output.outputs == expected.outputs


AS_MADE_FOR_QWEN = torch.from_numpy(FRAMES.transpose(0, 3, 1, 2).copy()).float()
"""The frames as `process_vision_info` returns them."""


@pytest.mark.parametrize(
    "value",
    [FRAMES, [FRAMES], IMAGES, [IMAGES], tuple(IMAGES), AS_MADE_FOR_QWEN, [AS_MADE_FOR_QWEN], AS_MADE_FOR_QWEN.numpy()],
    ids=range(8),
)
def test_accepts_a_prompt_s_video_as_an_array_or_a_list(llm: LLM, value: Any) -> None:
    prompt = f"{PLACEHOLDER}the"
    (output,) = llm.generate({"prompt": prompt, "multi_modal_data": {"video": value}}, GREEDY)
    (as_bytes,) = llm.generate(
        {"prompt": prompt, "multi_modal_data": {"video": [[png(image) for image in IMAGES]]}}, GREEDY
    )
    assert output.outputs == as_bytes.outputs


@pytest.mark.parametrize("as_url", [False, True])
def test_samples_frames_of_a_file(llm: LLM, as_url: bool) -> None:
    data = video(greys(20, width=56, height=56))
    url = f"data:video/mp4;base64,{base64.b64encode(data).decode()}"

    def length(**options: Any) -> int:
        part = video_url(url, **options) if as_url else video_part(data, **options)
        (output,) = llm.chat(user(part), SamplingParams(temperature=0, max_tokens=1))
        return len(output.prompt_token_ids)

    assert length(fps=5) - length() == 4 * (10 - 4) // 2
    assert length(num_frames=8) - length(num_frames=8, max_frames=4) == 4 * (8 - 4) // 2
    assert length(num_frames=8) == length(num_frames=8, start_seconds=1, end_seconds=1.8)


def test_videos_and_images_keep_their_positions(llm: LLM) -> None:
    other = video_part(255 - FRAMES)
    orders = [
        [video_part(), image_pil(IMAGE), other],
        [other, image_pil(IMAGE), video_part()],
        [image_pil(IMAGE), video_part(), other],
    ]
    outputs = llm.chat([user(*parts, text("the")) for parts in orders], GREEDY)
    assert len({output.outputs[0].text for output in outputs}) == 3
    alone = [llm.chat(user(*parts, text("the")), GREEDY)[0].outputs for parts in orders]
    assert [output.outputs for output in outputs] == alone


def test_placeholders_locate_images_and_videos_of_a_prompt(llm: LLM) -> None:
    by_chat = llm.chat(user(video_part(), image_pil(IMAGE)), GREEDY)[0].prompt_token_ids
    prompt = (
        f"<|im_start|>user\n{PLACEHOLDER}<|vision_start|><|image_pad|><|vision_end|><|im_end|>\n<|im_start|>assistant\n"
    )
    media = {"image": IMAGE, "video": FRAMES}
    (output,) = llm.generate({"prompt": prompt, "multi_modal_data": media}, GREEDY)
    # The frames are enlarged here because `multi_modal_data` has no options.
    assert len(output.prompt_token_ids) > len(by_chat)
    assert [token for token in output.prompt_token_ids if token in (277, 278)] == sorted(
        (token for token in output.prompt_token_ids if token in (277, 278)), reverse=True
    )


def test_reuses_the_cached_prefix_of_a_video(tiny_checkpoint: Path) -> None:
    llm = load(tiny_checkpoint)
    conversation = user(video_part(), text("the " * 40))
    (cold,), (warm,) = llm.chat(conversation, GREEDY), llm.chat(conversation, GREEDY)
    (other,) = llm.chat(user(video_part(255 - FRAMES), text("the " * 40)), GREEDY)
    assert cold.num_cached_tokens == 0
    assert warm.num_cached_tokens > other.num_cached_tokens
    assert warm.outputs == cold.outputs != other.outputs


@pytest.mark.parametrize(
    ("part", "message"),
    [
        (
            video_part(5),
            r"content\[0\]\.video': expected an array, a tensor, a list of frames, bytes or a URL, got int",
        ),
        (video_part(None), r"content\[0\]\.video\.url': expected a URL, the bytes of a file, an upload, or the uuid"),
        (video_part([]), r"content\[0\]\.video': expected from 1 to 4096 elements, got 0"),
        (video_part([IMAGES[0], "x"]), r"content\[0\]\.video\[1\]': expected a PIL image"),
        (
            video_part([IMAGES[0], IMAGE]),
            r"content\[0\]\.video': expected frames of one size, got 56×56 pixels for frame 0",
        ),
        (
            video_part(FRAMES[0]),
            r"floats, \[frames, height, width\] with 3 or 4 channels, last or first, got uint8 \[56, 56, 3\]",
        ),
        (video_part(FRAMES - 127.5), r"video': expected floats from 0 to 255 or from 0 to 1, got -127.5 to 127.5"),
        (video_part(torch.zeros(2, 28, 28, 3).long()), r"video': expected an array of uint8 or floats"),
        (video_part(torch.full((2, 28, 28, 3), float("nan"))), r"video': expected floats from 0 to 255"),
        (video_part(b"hello"), r"content\[0\]\.video': expected a video .*, got an unknown format"),
        (video_part(video(greys(4))[:500]), r"content\[0\]\.video': the video is corrupt"),
        (video_part(start_seconds=1), r"content\[0\]\.start_seconds': expected a video file"),
        (video_part(b"x", fps=2, num_frames=4), r"content\[0\]\.num_frames': expected either 'fps' or"),
        (video_part(num_frames=2.5), r"content\[0\]\.num_frames': expected an integer"),
        (video_part(fps="2"), r"content\[0\]\.fps': expected a number"),
        (video_part(max_frame=2), r"content\[0\]\.max_frame': unknown field; did you mean 'max_frames'"),
        (video_url(5), r"content\[0\]\.video_url\.url': expected a string or an array"),
        (video_url("http://127.0.0.1/x.mp4"), r"content\[0\]\.video_url': "),
        (video_url("file:///x.mp4"), r"content\[0\]\.video_url': this server does not read file: URLs"),
        (
            video_url([URLS[0], "ftp://x"]),
            r"content\[0\]\.video_url\.url\[1\]\.url': expected an http, https or data URL, got ftp:",
        ),
    ],
)
def test_names_the_field_of_an_invalid_video(llm: LLM, part: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        llm.chat(user(part), GREEDY)


def test_limits_the_number_of_videos(tiny_checkpoint: Path) -> None:
    llm = load(tiny_checkpoint, limit_mm_per_prompt={"video": 1})
    assert llm.chat(user(video_part(), image_pil(IMAGE), image_pil(IMAGE)), GREEDY)
    with pytest.raises(InputError, match=r"at most 1 video inputs \(limit_mm_per_prompt\), got 2"):
        llm.chat(user(video_part(), video_part()), GREEDY)


@pytest.mark.parametrize("file_format", ["GIF", "WEBP", "PNG"])
def test_an_animation_is_a_video_and_not_a_still_image(llm: LLM, file_format: str) -> None:
    data = animation(greys(4), file_format)
    (expected,) = llm.chat(user(video_part(video(greys(4)))), GREEDY)
    url = f"data:image/{file_format.lower()};base64,{base64.b64encode(data).decode()}"
    for part in (video_url(url), video_part(data)):
        (output,) = llm.chat(user(part), GREEDY)
        assert output.prompt_token_ids == expected.prompt_token_ids
    opened = PIL.Image.open(BytesIO(data))
    for part in ({"type": "image_url", "image_url": url}, image_pil(opened), video_part([opened, opened])):
        with pytest.raises(InputError, match="expected a still image, got an animated"):
            llm.chat(user(part), GREEDY)
    assert llm.chat(user(image_pil(opened.copy())), GREEDY)

"""Tests for a server with Qwen3-VL: both APIs answer images and videos like the reference."""

import base64
import io
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import PIL.Image

from glimpse.v1 import chat_pb2, chat_pb2_grpc, content_pb2
from tests.checkpoints.qwen2_vl import CHAT_TEMPLATE
from tests.checkpoints.qwen3_vl import make_qwen3_vl_checkpoint
from tests.checkpoints.tokenizer import make_tokenizer
from tests.e2e.stack import Stack
from tests.engine.checkpoint.text.reference import reference_tokenizer
from tests.media.videos import greys, video
from tests.oracles.qwen3_vl import answer, encode, spans_of, write_media
from tests.server.families.second_answers import check_second_answers
from tests.server.requests import ask_in_json, image_part, image_url, request, user, video_part

CHECKPOINT = partial(make_qwen3_vl_checkpoint, tied=False)
ARCHITECTURES = ("Qwen3VLForConditionalGeneration",)
Chat = chat_pb2_grpc.ChatServiceStub
RANDOM = np.random.default_rng(5)
IMAGE = RANDOM.integers(0, 256, (64, 96, 3), dtype=np.uint8)
FRAMES = RANDOM.integers(0, 256, (4, 64, 96, 3), dtype=np.uint8)
SECONDS = [0, 0.5, 1, 1.5]
NUM_TOKENS = 8


def png(pixels: np.ndarray) -> bytes:
    file = io.BytesIO()
    PIL.Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def frames_part(**options: Any) -> content_pb2.ContentPart:
    frames = content_pb2.FrameList(frames=[content_pb2.MediaSource(data=png(frame)) for frame in FRAMES])
    return content_pb2.ContentPart(video=content_pb2.VideoPart(frames=frames, **options))


def test_both_apis_answer_images_and_videos_like_the_reference(channel: grpc.Channel, checkpoint: Path) -> None:
    content = [{"type": "image"}, {"type": "text", "text": "then:"}, {"type": "video"}, {"type": "text", "text": "?"}]
    rendered = reference_tokenizer(make_tokenizer()).apply_chat_template(
        [{"role": "user", "content": content}], chat_template=CHAT_TEMPLATE, add_generation_prompt=True, tokenize=False
    )
    prompt = encode(make_tokenizer(), write_media(str(rendered), [(IMAGE, []), (FRAMES, SECONDS)]))
    expected = answer(checkpoint, prompt, [IMAGE, FRAMES], NUM_TOKENS).token_ids

    wire = request(user(image_part(png(IMAGE)), "then:", frames_part(fps=2), "?"), ignore_eos=True)
    typed = Chat(channel).CreateChatCompletion(wire)
    assert typed.choices[0].message.content == make_tokenizer().decode(expected)
    assert typed.usage.prompt_tokens == len(prompt)
    details = typed.usage.prompt_tokens_details
    _, span = spans_of(prompt, [IMAGE, FRAMES])
    assert (details.image_tokens, details.video_tokens) == (6, span.num_tokens + 2)  # and the marks around them

    frames = ",".join(base64.b64encode(png(pixels)).decode() for pixels in FRAMES)
    parts = [
        image_url(png(IMAGE)),
        {"type": "text", "text": "then:"},
        {"type": "video_url", "video_url": {"url": f"data:video/jpeg;base64,{frames}", "fps": 2}},
        {"type": "text", "text": "?"},
    ]
    rest = ask_in_json(channel, *parts, ignore_eos=True)
    assert rest["choices"][0]["message"]["content"] == typed.choices[0].message.content
    assert rest["usage"]["prompt_tokens_details"]["cached_tokens"] > 0


def test_samples_two_frames_of_a_file_in_a_second_and_counts_their_times(channel: grpc.Channel) -> None:
    file = video(greys(30, width=64, height=64))  # three seconds
    counted = Chat(channel).CountTokens(chat_pb2.CountTokensRequest(messages=[user(video_part(file), "What?")]))
    assert counted.videos[0].num_frames == 6
    stamps = ["<0.2 seconds>", "<1.5 seconds>", "<2.6 seconds>"]
    frames = "".join(f"{stamp}<|vision_start|>{4 * '<|video_pad|>'}<|vision_end|>" for stamp in stamps)
    text = f"<|im_start|>user\n{frames}What?<|im_end|>\n<|im_start|>assistant\n"
    assert counted.prompt_tokens == len(encode(make_tokenizer(), text))


def test_second_answer_is_identical_and_comes_from_the_prefix_cache(stack: Stack, checkpoint: Path) -> None:
    check_second_answers(stack, checkpoint, *ARCHITECTURES, "image", "video")

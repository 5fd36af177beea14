"""Prompts of Qwen3-VL have the token ids of the reference, with frames of videos after the text of their times."""

import math
from collections.abc import Sequence

import numpy as np
import pytest

from glimpse.engine.checkpoint.families.qwen.qwen3_vl import MAX_SECONDS, patch_seconds
from glimpse.engine.checkpoint.families.reading.chatml import QWEN3_VL_TEMPLATE
from glimpse.engine.checkpoint.families.registry import load_model_config
from glimpse.engine.checkpoint.model_config.model import ModelConfig
from glimpse.engine.checkpoint.text.conversation import (
    ChatMessage,
    MediaSlot,
    TemplateOptions,
    ToolCall,
    ToolDefinition,
)
from glimpse.engine.checkpoint.text.media_inputs import MediaLayouts, media_inputs
from glimpse.engine.checkpoint.text.prompt import PromptBuilder
from glimpse.engine.checkpoint.text.reasoning.formats import find_reasoning_format
from glimpse.engine.checkpoint.text.template import ChatTemplate, ChatTemplates
from glimpse.engine.checkpoint.text.tokenizer import Tokenizer
from glimpse.engine.checkpoint.text.tools import FORMATS, find_format
from glimpse.engine.protocol.media import MediaSpan
from glimpse.media.kind import MediaKind
from glimpse.media.processing.image import Image
from glimpse.media.processing.sizing.placement import ImagePlacement, ImageSource
from glimpse.media.processing.sizing.smart_resize import SmartResize
from glimpse.media.processing.video import Video
from tests.checkpoints.qwen3_5 import TEMPLATE as QWEN3_5_TEMPLATE
from tests.checkpoints.qwen3_vl import make_qwen3_vl_checkpoint
from tests.checkpoints.tokenizer import make_tokenizer
from tests.engine.checkpoint.text.conversations import user
from tests.engine.checkpoint.text.reference import reference_messages, reference_tokenizer, reference_tool
from tests.oracles.qwen3_vl import encode, spans_of, write_media

RAW = make_tokenizer()
TOKENIZER = Tokenizer(RAW)
IMAGE, VIDEO = MediaSlot(kind=MediaKind.IMAGE), MediaSlot(kind=MediaKind.VIDEO)
LOOK = ToolDefinition(name="look", description=None, parameters='{"type": "object", "properties": {}}', strict=False)
CALL = ToolCall(id="1", name="look", arguments='{"at": ["the", 1]}')
BUILDERS = {
    template: PromptBuilder(
        tokenizer=TOKENIZER,
        templates=ChatTemplates(default=ChatTemplate(template, {})),
        placeholder_ids={MediaKind.IMAGE: TOKENIZER.encode("<|image_pad|>")[0], MediaKind.VIDEO: 278},
    )
    for template in (QWEN3_VL_TEMPLATE, QWEN3_5_TEMPLATE)
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> ModelConfig:
    return load_model_config(make_qwen3_vl_checkpoint(tmp_path_factory.mktemp("checkpoint")))


def image(height: int, width: int) -> Image:
    pixels = np.zeros((height, width, 3), np.uint8)
    placement = ImagePlacement(
        source=ImageSource(width=width, height=height), plan=SmartResize(patch_size=16).plan(height, width)
    )
    return Image(pixels=pixels, grid=(1, height // 16, width // 16), key=bytes(32), placement=placement)


def video(num_frames: int, height: int, width: int, seconds: Sequence[float] = ()) -> Video:
    pixels = np.zeros((num_frames, height, width, 3), np.uint8)
    grid = (-(-num_frames // 2), height // 16, width // 16)
    return Video(pixels=pixels, grid=grid, key=bytes(32), frame_seconds=tuple(seconds), fps=None)


WIDE, TALL, SMALL = image(32, 96), image(96, 64), image(32, 32)
SHORT = video(4, 64, 32, (0, 0.5, 1, 1.5))
ODD = video(5, 32, 32, (0.0, 0.04, 10.0, 99.96, 100.04))
ONE = video(1, 32, 64, (3.25,))

CONVERSATIONS: dict[str, tuple[list[ChatMessage], list[Image | Video]]] = {
    "a question": ([user("What is the?")], []),
    "a system message": ([ChatMessage(role="system", content=("Be brief.",)), user("Hi")], []),
    "an image": ([user(IMAGE, "What is it?")], [WIDE]),
    "images among texts": ([user("the ", IMAGE, "and", IMAGE, " in", IMAGE)], [WIDE, TALL, SMALL]),
    "an image in each turn": (
        [user(IMAGE), ChatMessage(role="assistant", content=("the",)), user("on", IMAGE)],
        [SMALL, TALL],
    ),
    "a video": ([user(VIDEO, "What happens?")], [SHORT]),
    "a text that runs into a time": ([user("this:", VIDEO, "> the"), user(" <", VIDEO)], [ODD, SHORT]),
    "a video of one frame": ([user("\n", VIDEO, "\n")], [ONE]),
    "videos among images": ([user(IMAGE, VIDEO, IMAGE, VIDEO, "?")], [SMALL, SHORT, WIDE, ODD]),
    "videos side by side": ([user(VIDEO, VIDEO)], [SHORT, ONE]),
    "a media result of a tool": (
        [
            user("the", IMAGE),
            ChatMessage(role="assistant", content=("in",), tool_calls=(CALL,)),
            ChatMessage(role="tool", content=("on ", VIDEO), tool_call_id="1"),
            ChatMessage(role="tool", content=("is",), tool_call_id="2"),
            user("and?"),
        ],
        [TALL, SHORT],
    ),
}


def reference_ids(
    template: str, messages: list[ChatMessage], media: list[Image | Video], tools: list[ToolDefinition]
) -> list[int]:
    rendered = reference_tokenizer(RAW).apply_chat_template(
        reference_messages(messages),
        chat_template=template,
        tools=[reference_tool(tool) for tool in tools] or None,
        add_generation_prompt=True,
        tokenize=False,
    )
    seconds = [medium.frame_seconds if isinstance(medium, Video) else () for medium in media]
    pixels = [medium.pixels for medium in media]
    return encode(RAW, write_media(str(rendered), list(zip(pixels, seconds, strict=True))))


@pytest.mark.parametrize("template", BUILDERS, ids=["qwen3_vl", "qwen3_5"])
@pytest.mark.parametrize("tools", [[], [LOOK]], ids=["no tools", "tools"])
@pytest.mark.parametrize(("messages", "media"), CONVERSATIONS.values(), ids=CONVERSATIONS.keys())
def test_prompt_has_the_token_ids_of_the_reference(
    model: ModelConfig,
    messages: list[ChatMessage],
    media: list[Image | Video],
    tools: list[ToolDefinition],
    template: str,
) -> None:
    layouts = MediaLayouts(model, TOKENIZER).of(media)
    prompt = BUILDERS[template].chat(messages, layouts, TemplateOptions(tools=tuple(tools)))
    assert prompt.token_ids == reference_ids(template, messages, media, tools)
    expected = spans_of(prompt.token_ids, [medium.pixels for medium in media])
    for made, span in zip(media_inputs(media, layouts, prompt.starts), expected, strict=True):
        assert (made.span.kind, made.span.grid) == (span.kind, span.grid)
        assert _places(made.span) == _places(span)


def _places(span: MediaSpan) -> list[tuple[int, int]]:
    return [(span.start + offset, length) for offset, length in span.runs]


def test_finds_the_tool_calls_and_the_reasoning_of_qwen3_5() -> None:
    assert find_format(QWEN3_5_TEMPLATE) is FORMATS["qwen3_coder"]
    reasoning = find_reasoning_format(QWEN3_5_TEMPLATE)
    assert reasoning is not None
    found: list[bool | None] = []
    for options in ({}, {"enable_thinking": False}):
        template_options = TemplateOptions(template_kwargs=options)
        prompt = BUILDERS[QWEN3_5_TEMPLATE].chat([user("Hi")], [], template_options)
        tags = reasoning.tags_after(prompt.token_ids, TOKENIZER)
        found.append(None if tags is None else tags.is_open)
    assert found == [True, None]


def test_times_of_frames_without_times_are_half_a_second_apart() -> None:
    assert patch_seconds(video(5, 32, 32), 2) == [0.25, 1.25, 2.0]


def test_times_are_bounded() -> None:
    assert patch_seconds(video(3, 32, 32, (0, 1e300, math.inf)), 2) == [MAX_SECONDS / 2, MAX_SECONDS]


def test_prompts_of_token_ids_have_times_too(model: ModelConfig) -> None:
    layouts = MediaLayouts(model, TOKENIZER).of([SHORT])
    placeholder = TOKENIZER.encode("<|vision_start|><|video_pad|><|vision_end|>")
    frames = "<0.2 seconds><|vision_start|><|video_pad|><|video_pad|><|vision_end|>"
    frames += "<1.2 seconds><|vision_start|><|video_pad|><|video_pad|><|vision_end|>"
    assert BUILDERS[QWEN3_VL_TEMPLATE].expand([1, *placeholder, 2], layouts).token_ids == [
        1,
        *TOKENIZER.encode(frames),
        2,
    ]

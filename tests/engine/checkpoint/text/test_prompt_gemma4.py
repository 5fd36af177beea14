"""Prompts and pixels of Gemma 4, with videos: equal to the reference processor's."""

import json
import re
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import PIL.Image
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer, Gemma4Processor, models

from glimpse.engine.checkpoint.families.registry import family_of, load_model_config
from glimpse.engine.checkpoint.text.conversation import (
    ChatMessage,
    MediaSlot,
    TemplateOptions,
    ToolCall,
    ToolDefinition,
)
from glimpse.engine.checkpoint.text.media_inputs import MediaLayouts, media_inputs
from glimpse.engine.checkpoint.text.prompt import load_prompt_builder
from glimpse.engine.checkpoint.text.reasoning import find_reasoning_format
from glimpse.engine.checkpoint.text.tools import find_format, tag_ids
from glimpse.media.errors import MediaError, MediaOptionError
from glimpse.media.kind import MediaKind
from glimpse.media.processing.frame_sampling import CountSampling
from glimpse.media.processing.image import Image, ImageProcessing, prepare_image
from glimpse.media.processing.media_processing import MediaProcessing
from glimpse.media.processing.sizing.patches.budget_frames import BudgetFrames
from glimpse.media.processing.sizing.patches.patch_budget import BUDGETS, PatchBudget, budget_size
from glimpse.media.processing.video import Video, make_video
from tests.checkpoints.files import write_json
from tests.checkpoints.gemma4 import PATCH, POOL, TOKEN_IDS, make_gemma4_checkpoint
from tests.oracles.gemma4 import image_processor

get_aspect_ratio_preserving_size = models.gemma4.image_processing_pil_gemma4.get_aspect_ratio_preserving_size

CHECKPOINT = make_gemma4_checkpoint
SLOTS = {kind: MediaSlot(kind=kind) for kind in (MediaKind.IMAGE, MediaKind.VIDEO)}
SECONDS = (0.0, 59.96, 61.5)


def processing_of(checkpoint: Path) -> MediaProcessing:
    config = load_model_config(checkpoint)
    return family_of(config).read_media(checkpoint, config)


def images_of(checkpoint: Path) -> ImageProcessing:
    images = processing_of(checkpoint).images
    assert images is not None
    return images


def drawn(height: int, width: int, seed: int) -> PIL.Image.Image:
    return PIL.Image.fromarray(np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8))


def prepared(checkpoint: Path, height: int, width: int, seed: int = 0) -> tuple[PIL.Image.Image, Image]:
    source = drawn(height, width, seed)
    return source, prepare_image(source, images_of(checkpoint))


def filmed(checkpoint: Path, height: int, width: int, seconds: Sequence[float]) -> tuple[list[PIL.Image.Image], Video]:
    """Returns the frames of a video and what becomes of them."""
    frames, videos = [drawn(height, width, seed) for seed in range(3)], processing_of(checkpoint).videos
    assert videos is not None
    return frames, make_video(frames, 3, videos, frame_seconds=tuple(seconds), fps=None)


@settings(max_examples=20)
@given(height=st.integers(1, 200), width=st.integers(1, 200), seed=st.integers(0, 99))
def test_pixels_equal_the_reference_processors(checkpoint: Path, height: int, width: int, seed: int) -> None:
    source, image = prepared(checkpoint, height, width, seed)
    expected = image_processor()(source, return_tensors="np")
    rows, columns = image.grid[1:]
    patches = image.pixels.reshape(rows, PATCH, columns, PATCH, 3).swapaxes(1, 2).reshape(rows * columns, -1)
    found = (expected["pixel_values"][0] * 255).round().astype(np.uint8)
    np.testing.assert_array_equal(found[: rows * columns], patches)
    assert not found[rows * columns :].any()
    assert expected["num_soft_tokens_per_image"][0] == rows * columns // POOL**2


@settings(max_examples=10)
@given(height=st.integers(1, 200), width=st.integers(1, 200))
def test_frames_become_what_images_become(checkpoint: Path, height: int, width: int) -> None:
    frames, video = filmed(checkpoint, height, width, SECONDS)
    images = [prepare_image(frame, images_of(checkpoint)) for frame in frames]
    assert video.grid == (3, *images[0].grid[1:])
    np.testing.assert_array_equal(video.pixels, np.stack([image.pixels for image in images]))


@given(height=st.integers(1, 5000), width=st.integers(1, 5000), budget=st.sampled_from(BUDGETS))
def test_sizes_equal_the_reference_processors(height: int, width: int, budget: int) -> None:
    if max(height, width) <= 200 * min(height, width):
        expected = get_aspect_ratio_preserving_size(height, width, 16, budget * 9, 3)
        assert budget_size(height, width, factor=48, max_tokens=budget) == expected


@settings(max_examples=20)
@given(
    turns=st.lists(
        st.lists(
            st.text("the an\n0:", min_size=1, max_size=9) | st.sampled_from([*SLOTS.values()]), min_size=1, max_size=4
        )
        .map(tuple)
        .filter(lambda each: len(each) == 1 or any(isinstance(part, MediaSlot) for part in each)),
        min_size=1,
        max_size=3,
    ),
    seconds=st.sampled_from([(), SECONDS]),
)
def test_prompts_equal_the_reference_processors(
    checkpoint: Path, turns: list[tuple[str | MediaSlot, ...]], seconds: tuple[float, ...]
) -> None:
    """The reference processor replaces each `<|image|>` and `<|video|>` of the text by its tokens."""
    config = load_model_config(checkpoint)
    media = {
        MediaKind.IMAGE: prepared(checkpoint, 40, 30)[1],
        MediaKind.VIDEO: filmed(checkpoint, 20, 30, seconds)[1],
    }
    roles = ["user" if index % 2 == 0 else "assistant" for index in range(len(turns))]
    messages = [ChatMessage(role=role, content=content) for role, content in zip(roles, turns, strict=True)]
    conversation = [
        {
            "role": message.role,
            "content": [
                {"type": str(each.kind)} if isinstance(each, MediaSlot) else {"type": "text", "text": each}
                for each in message.content
            ],
        }
        for message in messages
    ]
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    text = tokenizer.apply_chat_template(conversation, add_generation_prompt=True, tokenize=False)
    written = {f"<|{kind}|>": reference_text(medium) for kind, medium in media.items()}
    pieces = [written.get(piece, piece) for piece in re.split(r"(<\|image\|>|<\|video\|>)", text)]
    expected = tokenizer("".join(pieces), add_special_tokens=False)["input_ids"]
    builder = load_prompt_builder(checkpoint, config)
    slots = [each for message in messages for each in message.content if isinstance(each, MediaSlot)]
    layouts = MediaLayouts(config, builder.tokenizer).of([media[slot.kind] for slot in slots])
    prompt = builder.chat(messages, layouts)
    assert prompt.token_ids == expected
    for made, slot in zip(
        media_inputs([media[slot.kind] for slot in slots], layouts, prompt.starts), slots, strict=True
    ):
        runs = [prompt.token_ids[made.span.start + first :][:length] for first, length in made.span.runs]
        assert {*chain.from_iterable(runs)} == {TOKEN_IDS[f"<|{slot.kind}|>"]}
        assert sum(map(len, runs)) == np.prod(made.span.grid) // POOL**2


def reference_text(medium: Image | Video) -> str:
    """Returns what the reference processor writes for a medium."""
    own: Any = SimpleNamespace(
        boi_token="<|image>", eoi_token="<image|>", image_token="<|image|>", video_token="<|video|>"
    )
    num_tokens = [medium.grid[1] * medium.grid[2] // POOL**2]
    if isinstance(medium, Image):
        return Gemma4Processor.replace_image_token(own, {"num_soft_tokens_per_image": num_tokens}, 0)
    times = medium.frame_seconds or [index / 24 for index in range(len(medium.pixels))]
    metadata = [SimpleNamespace(fps=1, timestamps=times)]
    return Gemma4Processor.replace_video_token(
        own, {"num_soft_tokens_per_video": num_tokens, "video_metadata": metadata}, 0
    )


LOOK = ToolDefinition(
    name="look",
    description='Looks at <|"|>.',
    parameters='{"type": "object", "properties": {"at": {"type": "string"}, "Num": {"type": "integer"}}}',
    strict=False,
)
CALL = ToolCall(id="c1", name="look", arguments='{"at": "the <|turn> <|\\"|>", "Num": [1, true, null, {"a": "b"}]}')
OTHER = ToolCall(id="c2", name="look", arguments="{}")
USER = ChatMessage(role="user", content=("the thing",))
CALLED = ChatMessage(role="assistant", content=(), reasoning="So\nthen.", tool_calls=(CALL, OTHER))
RESULTS = [ChatMessage(role="tool", content=(f"a {each.id}",), tool_call_id=each.id) for each in (OTHER, CALL)]
SYSTEM = ChatMessage(role="system", content=("Be brief.",))
ANSWER = ChatMessage(role="assistant", content=("an end",))


@pytest.mark.parametrize("enable_thinking", [None, False, True])
@pytest.mark.parametrize("tools", [[], [LOOK]], ids=["no tools", "tools"])
@pytest.mark.parametrize(
    "messages",
    [[USER], [SYSTEM, USER], [USER, CALLED, *RESULTS], [SYSTEM, USER, CALLED, *RESULTS, ANSWER, USER]],
    ids=["user", "system", "results", "answered"],
)
def test_prompts_with_tools_equal_the_reference_renderer_s(
    checkpoint: Path, messages: list[ChatMessage], tools: list[ToolDefinition], enable_thinking: bool | None
) -> None:
    """What clients write is no special token, so these are spelled differently there: only there the ids may differ."""
    variables = {} if enable_thinking is None else {"enable_thinking": enable_thinking}
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    values: list[dict[str, Any]] = [
        {
            "role": each.role,
            "content": "".join(map(str, each.content)),
            "reasoning_content": each.reasoning,
            "tool_call_id": each.tool_call_id,
            "tool_calls": [
                {"id": call.id, "function": {"name": call.name, "arguments": json.loads(call.arguments)}}
                for call in each.tool_calls
            ],
        }
        for each in messages
    ]
    functions = [
        {"function": {"name": each.name, "description": each.description, "parameters": json.loads(each.parameters)}}
        for each in tools
    ]
    expected = tokenizer.apply_chat_template(
        values, tools=functions or None, add_generation_prompt=True, tokenize=False, **variables
    )
    builder = load_prompt_builder(checkpoint, load_model_config(checkpoint))
    prompt = builder.chat(messages, [], TemplateOptions(template_kwargs=variables, tools=tuple(tools)))
    assert builder.tokenizer.decode(prompt.token_ids, skip_special=False) == expected
    marks = sum(prompt.token_ids.count(TOKEN_IDS[token]) for token in ("<|turn>", '<|"|>'))
    foreign = len(tools) + (CALLED in messages) * 2
    assert marks == expected.count("<|turn>") + expected.count('<|"|>') - foreign


def test_the_formats_of_tools_and_reasoning_are_found(checkpoint: Path) -> None:
    config = load_model_config(checkpoint)
    builder = load_prompt_builder(checkpoint, config)
    source = builder.templates.default.source
    tool_format, reasoning = find_format(source), find_reasoning_format(source)
    assert tool_format is not None
    assert reasoning is not None
    assert (tool_format.name, reasoning.name) == ("gemma4", "gemma4")
    assert tag_ids(tool_format, builder.tokenizer) == {tag: TOKEN_IDS[tag] for tag in tool_format.tags}
    for enable_thinking in (False, True):
        options = TemplateOptions(template_kwargs={"enable_thinking": enable_thinking})
        tags = reasoning.tags_after(builder.chat([USER], [], options).token_ids, builder.tokenizer)
        assert (tags is not None) == enable_thinking
    assert config.eos_token_ids == (1, TOKEN_IDS["<turn|>"], TOKEN_IDS["<|tool_response>"])


@pytest.mark.parametrize(
    ("max_pixels", "expected"),
    [(161_280, 70), (322_559, 70), (645_120, 280), (700_000, 280), (1_290_240, 560), (9_000_000, 1120)],
)
def test_a_bound_on_pixels_chooses_a_budget_of_tokens(max_pixels: int, expected: int) -> None:
    assert PatchBudget().with_bounds(min_pixels=None, max_pixels=max_pixels).max_tokens == expected


def test_low_detail_is_the_smallest_budget() -> None:
    assert PatchBudget().low_detail().max_tokens == 70


@pytest.mark.parametrize(
    ("bounds", "message"),
    [
        ({"min_pixels": 1000, "max_pixels": None}, "expected none, since images fill a budget, got 1000"),
        ({"min_pixels": None, "max_pixels": 1000}, "expected at least 161280, the model's smallest images, got 1000"),
    ],
)
def test_refuses_bounds_without_a_budget(bounds: dict[str, int | None], message: str) -> None:
    with pytest.raises(MediaOptionError, match=message):
        PatchBudget().with_bounds(**bounds)


@pytest.mark.parametrize(
    ("part", "changes", "message"),
    [
        ("image", {"max_soft_tokens": 100}, "image_processor.max_soft_tokens': expected one of .*, got 100"),
        ("image", {"resample": 2}, r"'resample': expected 3 \(bicubic\), got 2"),
        ("image", {"patch_size": 16}, "image_processor.patch_size': expected 4, got 16"),
        ("image", {"do_normalize": True}, "image_processor.do_normalize': expected False, got True"),
        ("image", {"rescale_factor": 1.0}, "image_processor.rescale_factor': expected 1/255, got 1.0"),
        ("video", {"image_mean": [0.5] * 3}, r"video_processor.image_mean': expected \[0, 0, 0\], got \[0.5"),
        ("video", {"num_frames": -1}, "'num_frames': expected a positive integer, got -1"),
    ],
)
def test_refuses_other_processing(
    checkpoint: Path, tmp_path: Path, part: str, changes: dict[str, Any], message: str
) -> None:
    document = json.loads((checkpoint / "processor_config.json").read_text())
    document[f"{part}_processor"] |= changes
    write_json(tmp_path / "processor_config.json", document)
    config = load_model_config(checkpoint)
    with pytest.raises(ValueError, match=message):
        family_of(config).read_media(tmp_path, config)


def test_reads_the_processing_of_images_and_videos_from_files_of_their_own(checkpoint: Path, tmp_path: Path) -> None:
    document = json.loads((checkpoint / "processor_config.json").read_text())
    write_json(tmp_path / "preprocessor_config.json", document["image_processor"])
    write_json(tmp_path / "video_preprocessor_config.json", document["video_processor"] | {"num_frames": 7})
    config = load_model_config(checkpoint)
    found = family_of(config).read_media(tmp_path, config)
    assert found.images == images_of(checkpoint)
    assert found.videos is not None
    assert found.videos.sampling == CountSampling(num_frames=7)


def test_bounds_of_videos_are_on_each_frame() -> None:
    frames = BudgetFrames(images=PatchBudget(max_tokens=70))
    assert frames.plan(318, 480, 640).resized == (336, 432)
    assert frames.fits(318, 336, 432)
    larger = frames.with_bounds(min_pixels=None, max_pixels=700_000, total_pixels=None)
    assert larger.plan(1, 480, 640).resized == PatchBudget(max_tokens=280).plan(480, 640).views[0].resized
    with pytest.raises(MediaError, match="expected at most 353 frames of this shape, got 354"):
        frames.plan(354, 480, 640)
    assert not frames.fits(354, 336, 432)
    with pytest.raises(MediaOptionError, match=r"expected none, since each frame fills a budget .*, got 5"):
        frames.with_bounds(min_pixels=None, max_pixels=None, total_pixels=5)

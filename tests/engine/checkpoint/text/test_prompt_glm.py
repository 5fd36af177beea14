"""Prompts of GLM-4.1V and GLM-4.6V have the token ids of the reference, with times after the frames of videos."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer as RawTokenizer
from transformers import Glm4vProcessor, Glm46VProcessor

from glimpse.engine.checkpoint.families.registry import family_of, load_model_config
from glimpse.engine.checkpoint.model_config.model import ModelConfig, read_json
from glimpse.engine.checkpoint.text.conversation import ChatMessage, TemplateOptions, ToolCall, ToolDefinition
from glimpse.engine.checkpoint.text.media_inputs import MediaLayouts, media_inputs
from glimpse.engine.checkpoint.text.prompt import PromptBuilder, load_prompt_builder
from glimpse.engine.checkpoint.text.reasoning.formats import REASONING_FORMATS, find_reasoning_format
from glimpse.engine.checkpoint.text.tools import FORMATS, find_format
from glimpse.media.kind import MediaKind
from glimpse.media.processing.frame_sampling import ClockSampling, DurationSampling
from glimpse.media.processing.image import Image
from glimpse.media.processing.sizing.placement import ImagePlacement, ImageSource
from glimpse.media.processing.sizing.smart_resize import SmartResize
from glimpse.media.processing.video import Video
from tests.checkpoints.files import write_json
from tests.checkpoints.glm import TOKEN_IDS, make_glm4v_checkpoint
from tests.engine.checkpoint.text.conversations import IMAGE, IMAGE_CONVERSATIONS, VIDEO, assistant, user
from tests.engine.checkpoint.text.reference import reference_messages, reference_tokenizer, reference_tool
from tests.oracles.glm4v import write_media

PROCESSORS = {"Glm4v": Glm4vProcessor, "Glm46V": Glm46VProcessor}
LOOK = ToolDefinition(name="look", description=None, parameters='{"type": "object", "properties": {}}', strict=False)
CALL = ToolCall(id="1", name="look", arguments='{"at": "the", "num": 1}')


def image(height: int, width: int) -> Image:
    plan = SmartResize().plan(height, width)
    placement = ImagePlacement(source=ImageSource(width=width, height=height), plan=plan)
    pixels = np.zeros((height, width, 3), np.uint8)
    return Image(pixels=pixels, grid=(1, height // 14, width // 14), key=bytes(32), placement=placement)


def video(num_frames: int, height: int, width: int, seconds: Sequence[float] = ()) -> Video:
    pixels = np.zeros((num_frames, height, width, 3), np.uint8)
    grid = (-(-num_frames // 2), height // 14, width // 14)
    return Video(pixels=pixels, grid=grid, key=bytes(32), frame_seconds=tuple(seconds), fps=None)


SHORT = video(4, 56, 28, (0, 0.5, 1.25, 1.5))
ODD = video(5, 28, 28, (0.0, 0.04, 10.96, 99.96, 100.04))
ONE = video(1, 28, 56, (3.25,))
VIDEO_CONVERSATIONS: Mapping[str, tuple[list[ChatMessage], list[Video]]] = {
    "a video": ([user(VIDEO, "What happens?")], [SHORT]),
    "a text that runs into a time": ([user("this:", VIDEO, "9 the"), user(" 1", VIDEO)], [ODD, SHORT]),
    "videos among images": ([user(IMAGE, VIDEO, IMAGE, VIDEO, "?")], [SHORT, ODD]),
    "videos side by side": ([user(VIDEO, VIDEO)], [SHORT, ONE]),
}
TOOL_CONVERSATION = [
    user("the", IMAGE),
    ChatMessage(role="assistant", content=("in",), tool_calls=(CALL,)),
    ChatMessage(role="tool", content=("on ", VIDEO), tool_call_id="1"),
    ChatMessage(role="tool", content=("is",), tool_call_id="2"),
    assistant("I see."),
    user("and?"),
]
CONVERSATIONS = {**{name: (each, list[Video]()) for name, each in IMAGE_CONVERSATIONS.items()}, **VIDEO_CONVERSATIONS}


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    kind: str
    path: Path
    model: ModelConfig
    builder: PromptBuilder


@pytest.fixture(scope="module", params=PROCESSORS)
def glm(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    path = make_glm4v_checkpoint(tmp_path_factory.mktemp("checkpoint"), kind=request.param)
    model = load_model_config(path)
    return Checkpoint(kind=request.param, path=path, model=model, builder=load_prompt_builder(path, model))


@pytest.mark.parametrize(("messages", "videos"), CONVERSATIONS.values(), ids=CONVERSATIONS.keys())
def test_prompt_has_the_token_ids_of_the_reference(
    glm: Checkpoint, messages: list[ChatMessage], videos: list[Video]
) -> None:
    check_prompt(glm, messages, videos, [])


@pytest.mark.parametrize("glm", ["Glm46V"], indirect=True)
def test_prompt_has_the_tools_and_calls_of_the_reference(glm: Checkpoint) -> None:
    check_prompt(glm, TOOL_CONVERSATION, [SHORT], [LOOK])


def check_prompt(
    glm: Checkpoint, messages: list[ChatMessage], videos: list[Video], tools: list[ToolDefinition]
) -> None:
    slots = [part for message in messages for part in message.content if not isinstance(part, str)]
    images, waiting = [image(28, 84), image(84, 56), image(28, 28)], iter(videos)
    media: list[Image | Video] = [images.pop() if slot.kind is MediaKind.IMAGE else next(waiting) for slot in slots]
    layouts = MediaLayouts(glm.model, glm.builder.tokenizer).of(media)
    prompt = glm.builder.chat(messages, layouts, TemplateOptions(tools=tuple(tools)))
    tokenizer = reference_tokenizer(RawTokenizer.from_file(str(glm.path / "tokenizer.json")))
    rendered = tokenizer.apply_chat_template(
        reference_messages(messages),
        chat_template=read_json(glm.path / "tokenizer_config.json")["chat_template"],
        tools=[reference_tool(tool) for tool in tools] or None,
        add_generation_prompt=True,
        tokenize=False,
    )
    seen = [(each.pixels, each.frame_seconds if isinstance(each, Video) else ()) for each in media]
    assert prompt.token_ids == tokenizer(write_media(str(rendered), seen, PROCESSORS[glm.kind]))["input_ids"]
    for made, medium in zip(media_inputs(media, layouts, prompt.starts), media, strict=True):
        places = [made.span.start + offset + each for offset, length in made.span.runs for each in range(length)]
        assert {prompt.token_ids[place] for place in places} == {TOKEN_IDS["<|image|>"]}
        assert len(places) == np.prod(medium.grid) // 4


def test_finds_reasoning_and_calls(glm: Checkpoint) -> None:
    template = glm.builder.templates.default.source
    of_family = family_of(glm.model).reasoning
    assert find_reasoning_format(template, of_family=of_family) is REASONING_FORMATS["glm45"]
    assert find_format(template) is (None if glm.kind == "Glm4v" else FORMATS["glm45"])


def test_processor_of_glm_4_6v_tells_it_from_glm_4_1v(glm: Checkpoint, tmp_path: Path) -> None:
    config = read_json(glm.path / "config.json") | {"architectures": ["Glm4vForConditionalGeneration"]}
    write_json(tmp_path / "config.json", config)
    assert load_model_config(tmp_path).architecture == "Glm4vForConditionalGeneration"
    write_json(tmp_path / "preprocessor_config.json", json.loads((glm.path / "preprocessor_config.json").read_text()))
    found = load_model_config(tmp_path)
    assert found.architecture == f"{glm.kind}ForConditionalGeneration"
    videos = family_of(found).read_media(tmp_path, found).videos
    assert videos is not None
    assert isinstance(videos.sampling, ClockSampling if glm.kind == "Glm4v" else DurationSampling)

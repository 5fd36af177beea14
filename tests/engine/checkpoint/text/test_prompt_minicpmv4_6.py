"""Prompts of MiniCPM-V 4.6: the token ids of the reference, with numbered images in slices and frames of videos."""

from pathlib import Path

import pytest
from tokenizers import Tokenizer as RawTokenizer

from glimpse.engine.checkpoint.families.registry import load_model_config
from glimpse.engine.checkpoint.model_config.model import read_json
from glimpse.engine.checkpoint.text.conversation import ChatMessage, TemplateOptions, ToolCall, ToolDefinition
from glimpse.engine.checkpoint.text.media_inputs import MediaLayouts, media_inputs
from glimpse.engine.checkpoint.text.prompt import PromptBuilder
from glimpse.engine.checkpoint.text.reasoning.formats import REASONING_FORMATS, find_reasoning_format
from glimpse.engine.checkpoint.text.tools import FORMATS, find_format
from glimpse.media.kind import MediaKind
from glimpse.media.medium import Medium
from glimpse.media.processing.video import make_video
from tests.checkpoints.minicpmv4_6 import TOKEN_IDS, make_minicpmv4_6_checkpoint
from tests.engine.checkpoint.text.conversations import IMAGE, IMAGE_CONVERSATIONS, VIDEO, assistant, user
from tests.engine.checkpoint.text.reference import reference_messages, reference_tokenizer, reference_tool
from tests.engine.prepared_media import image_of, slots, video_processing
from tests.media.images import scene
from tests.oracles.minicpmv4_6 import write_media

CHECKPOINT = make_minicpmv4_6_checkpoint
SIZES = [(60, 60), (200, 61)]
"""(width, height) of the images of a conversation."""
LENGTHS = [3, 1]
"""Frames of its videos."""
LOOK = ToolDefinition(name="look", description=None, parameters='{"type": "object", "properties": {}}', strict=False)
CALL = ToolCall(id="1", name="look", arguments='{"at": "the", "num": 1}')
CONVERSATIONS: dict[str, list[ChatMessage]] = {
    **IMAGE_CONVERSATIONS,
    "videos among images": [user(IMAGE, VIDEO, IMAGE, "?"), assistant("A."), user(VIDEO)],
    "tools": [
        user("the", IMAGE),
        ChatMessage(role="assistant", content=("in",), tool_calls=(CALL,)),
        ChatMessage(role="tool", content=("on", IMAGE), tool_call_id="1"),
    ],
}


@pytest.mark.parametrize("name", CONVERSATIONS)
def test_prompts_have_the_token_ids_of_the_reference(checkpoint: Path, builder: PromptBuilder, name: str) -> None:
    messages, tools = CONVERSATIONS[name], [LOOK] if name == "tools" else []
    sizes, lengths, media = iter(SIZES), iter(LENGTHS), list[Medium]()
    for slot in slots(messages):
        if slot.kind is MediaKind.IMAGE:
            media.append(image_of(checkpoint, *next(sizes)))
        else:
            frames = [scene(90, 40)] * next(lengths)
            media.append(make_video(frames, len(frames), video_processing(checkpoint), frame_seconds=(), fps=None))
    layouts = MediaLayouts(load_model_config(checkpoint), builder.tokenizer).of(media)
    prompt = builder.chat(messages, layouts, TemplateOptions(tools=tuple(tools)))
    tokenizer = reference_tokenizer(RawTokenizer.from_file(str(checkpoint / "tokenizer.json")))
    rendered = tokenizer.apply_chat_template(
        reference_messages(messages),
        chat_template=read_json(checkpoint / "tokenizer_config.json")["chat_template"],
        tools=[reference_tool(tool) for tool in tools] or None,
        add_generation_prompt=True,
        tokenize=False,
    )
    videos = [each.grid for each in media if each.kind is MediaKind.VIDEO]
    images = [scene(*size) for size in SIZES[: len(media) - len(videos)]]
    assert prompt.token_ids == tokenizer(write_media(str(rendered), images, videos))["input_ids"]
    for made in media_inputs(media, layouts, prompt.starts):
        places = [made.span.start + offset + each for offset, length in made.span.runs for each in range(length)]
        assert {prompt.token_ids[place] for place in places} == {TOKEN_IDS[f"<|{made.span.kind.value}_pad|>"]}


def test_finds_reasoning_and_calls(builder: PromptBuilder) -> None:
    template = builder.templates.default.source
    assert find_reasoning_format(template) is REASONING_FORMATS["qwen3"]
    assert find_format(template) is FORMATS["qwen3_coder"]

"""Prompts of LFM2-VL have the token ids of the reference: tiles after their places, tools, and calls as Python."""

from pathlib import Path

import pytest
from tokenizers import Tokenizer as RawTokenizer

from glimpse.engine.checkpoint.families.registry import load_model_config
from glimpse.engine.checkpoint.model_config.model import ModelConfig, read_json
from glimpse.engine.checkpoint.text.conversation import ChatMessage, TemplateOptions, ToolCall, ToolDefinition
from glimpse.engine.checkpoint.text.media_inputs import MediaLayouts, read_media
from glimpse.engine.checkpoint.text.prompt import PromptBuilder, load_prompt_builder
from glimpse.engine.checkpoint.text.tools import FORMATS, find_format
from glimpse.media.processing.image import Image, ImageProcessing, prepare_image
from tests.checkpoints.lfm2 import TEMPLATE, TOKEN_IDS, make_lfm2_vl_checkpoint
from tests.engine.checkpoint.text.conversations import IMAGE, IMAGE_CONVERSATIONS, assistant, user
from tests.engine.checkpoint.text.reference import reference_messages, reference_tokenizer, reference_tool
from tests.media.images import scene
from tests.oracles.lfm2 import text_of

CHECKPOINT = make_lfm2_vl_checkpoint
LOOK = ToolDefinition(name="look", description=None, parameters='{"type": "object", "properties": {}}', strict=False)
CALLS = (
    ToolCall(id="1", name="look", arguments='{"at": "the", "num": 1}'),
    ToolCall(id="2", name="look", arguments='{"in": [true, {"a": null}]}'),
)
TOOL_CONVERSATION = [
    user("the", IMAGE),
    ChatMessage(role="assistant", content=("in",), tool_calls=CALLS),
    ChatMessage(role="tool", content=("on ", IMAGE), tool_call_id="1"),
    ChatMessage(role="tool", content=("is",), tool_call_id="2"),
    assistant("<think>Hm.</think>I see."),
    user("and?"),
]
SIZES = ((40, 30), (300, 90), (100, 170))
"""Images that are not cut, and that become a row and a column of tiles."""


@pytest.fixture(scope="module")
def model(checkpoint: Path) -> ModelConfig:
    return load_model_config(checkpoint)


@pytest.fixture(scope="module")
def builder(checkpoint: Path, model: ModelConfig) -> PromptBuilder:
    return load_prompt_builder(checkpoint, model)


@pytest.fixture(scope="module")
def images(checkpoint: Path, model: ModelConfig) -> list[Image]:
    processing = read_media(checkpoint, model).images or ImageProcessing()
    return [prepare_image(scene(*size), processing) for size in SIZES]


@pytest.mark.parametrize(
    ("messages", "tools"),
    [*((messages, ()) for messages in IMAGE_CONVERSATIONS.values()), (TOOL_CONVERSATION, (LOOK,))],
    ids=[*IMAGE_CONVERSATIONS, "tools"],
)
def test_prompt_has_the_token_ids_of_the_reference(
    checkpoint: Path,
    model: ModelConfig,
    builder: PromptBuilder,
    images: list[Image],
    messages: list[ChatMessage],
    tools: tuple[ToolDefinition, ...],
) -> None:
    count = sum(not isinstance(part, str) for message in messages for part in message.content)
    media = [images[index % len(images)] for index in range(count)]
    layouts = MediaLayouts(model, builder.tokenizer).of(media)
    prompt = builder.chat(messages, layouts, TemplateOptions(tools=tools))
    tokens = read_json(checkpoint / "tokenizer_config.json")
    tokenizer = reference_tokenizer(
        RawTokenizer.from_file(str(checkpoint / "tokenizer.json")), bos_token=tokens["bos_token"]
    )
    text = tokenizer.apply_chat_template(
        reference_messages(messages),
        chat_template=tokens["chat_template"],
        tools=[reference_tool(tool) for tool in tools] or None,
        add_generation_prompt=True,
        tokenize=False,
    )
    first, *others = str(text).split("<image>")
    written = "".join(text_of(image.grid) + after for image, after in zip(media, others, strict=True))
    assert prompt.token_ids == tokenizer(first + written)["input_ids"]
    assert prompt.token_ids.count(TOKEN_IDS["<image>"]) == sum(_num_tokens(image.grid) for image in media)


def _num_tokens(grid: tuple[int, ...]) -> int:
    rows, columns, side, own_rows, own_columns = grid
    return (rows * columns * side**2 + own_rows * own_columns) // 4


def test_format_of_calls_is_detected() -> None:
    assert find_format(TEMPLATE) is FORMATS["lfm2"]

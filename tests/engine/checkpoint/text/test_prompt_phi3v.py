"""Prompts of Phi-3.5-vision: texts between images are encoded one by one, and numbered tags stand for images."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from glimpse.engine.checkpoint.families.registry import load_model_config
from glimpse.engine.checkpoint.families.token_layout import one_run
from glimpse.engine.checkpoint.text.conversation import ChatMessage
from glimpse.engine.checkpoint.text.media_inputs import MediaLayouts
from glimpse.engine.checkpoint.text.prompt import Prompt, PromptBuilder, load_prompt_builder
from glimpse.engine.errors import TemplateError
from glimpse.media.kind import MediaKind
from tests.checkpoints.phi3v import MAX_TILES, PLACEHOLDER_ID, SIDE, make_phi3v_checkpoint
from tests.engine.checkpoint.text.conversations import IMAGE, IMAGE_CONVERSATIONS, assistant, user
from tests.engine.checkpoint.text.reference import reference_messages
from tests.engine.prepared_media import image_of
from tests.media.images import scene
from tests.oracles.phi3v import Tiles, prompt_ids, tagged_ids, tiles_of

CHECKPOINT = make_phi3v_checkpoint
SIZES = ((60, 60), (400, 31), (17, 300), (2, 1), (56, 56))
CONVERSATIONS = {
    **IMAGE_CONVERSATIONS,
    "texts": [user("a", " b", "c")],
    "spaces": [user(" a ", IMAGE, " b ", IMAGE, "\n\nc")],
    "many images": [user(IMAGE, "1", IMAGE, IMAGE), assistant("2"), user(IMAGE, IMAGE, "3")],
    "answer last": [user(IMAGE, "And?"), assistant("A cat.")],
}


def tiles(sizes: Sequence[tuple[int, int]]) -> list[Tiles]:
    return [tiles_of(scene(*size), side=SIDE, most=MAX_TILES) for size in sizes]


@pytest.mark.parametrize("messages", CONVERSATIONS.values(), ids=CONVERSATIONS.keys())
def test_prompts_have_the_token_ids_of_the_reference(
    checkpoint: Path, builder: PromptBuilder, messages: list[ChatMessage]
) -> None:
    sizes = SIZES[: sum(part == IMAGE for message in messages for part in message.content)]
    layouts = MediaLayouts(load_model_config(checkpoint), builder.tokenizer).of(
        [image_of(checkpoint, *size) for size in sizes]
    )
    prompt = builder.chat(messages, layouts)
    assert prompt.token_ids == prompt_ids(checkpoint, reference_messages(messages), tiles(sizes), side=SIDE)
    starts = [index for index in range(len(prompt.token_ids)) if is_first(prompt, index)]
    assert prompt.starts == starts


def is_first(prompt: Prompt, index: int) -> bool:
    """Whether the first token of an image stands there. `<s>` stands between any two images."""
    return prompt.token_ids[index] == PLACEHOLDER_ID and prompt.token_ids[index - 1] != PLACEHOLDER_ID


def test_each_text_between_images_starts_as_a_text(builder: PromptBuilder) -> None:
    prompt = builder.chat([user(IMAGE, IMAGE, "the")], [one_run(MediaKind.IMAGE, 2)] * 2)
    assert prompt.token_ids.count(1) == 3
    assert [prompt.token_ids[start + 2] for start in prompt.starts] == [1, 1]


@pytest.mark.parametrize(
    "text",
    ["<|user|>\n<|image_1|>\nthe<|image_2|> in<|end|>\n", "<|image_1|><|image_2|>", "the <|image_1|>a<|image_2|>\n"],
)
def test_raw_texts_have_numbered_tags(checkpoint: Path, builder: PromptBuilder, text: str) -> None:
    sizes = SIZES[:2]
    layouts = MediaLayouts(load_model_config(checkpoint), builder.tokenizer).of(
        [image_of(checkpoint, *size) for size in sizes]
    )
    expected = tagged_ids(checkpoint, text, tiles(sizes), side=SIDE)
    assert builder.text(text, layouts).token_ids == expected
    assert builder.whole_text(text, layouts).token_ids == expected
    without_start = builder.whole_text(text, layouts, add_special_tokens=False).token_ids
    assert without_start == [token_id for token_id in expected if token_id != 1]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("<|image_2|> in", r"expected the tags of media to be numbered in order: <\|image_1\|>, got <\|image_2\|>"),
        ("<|image_1|> <|image_1|>", r"numbered in order: <\|image_2\|>, got <\|image_1\|>"),
        ("<|image_01|>", r"numbered in order: <\|image_1\|>, got <\|image_01\|>"),
        ("in", "one placeholder for each image input, got 0 for 1"),
        ("<|image_1|><|image_2|>", "one placeholder for each image input, got 2 for 1"),
    ],
)
def test_other_numbers_are_refused(builder: PromptBuilder, text: str, complaint: str) -> None:
    with pytest.raises(TemplateError, match=complaint):
        builder.text(text, [one_run(MediaKind.IMAGE, 2)])


def test_the_placeholder_token_may_stand_in_for_a_tag(builder: PromptBuilder) -> None:
    layouts = [one_run(MediaKind.IMAGE, 2)]
    assert builder.text("the <|image|> in", layouts) == builder.text("the <|image_1|> in", layouts)
    placeholder = builder.tokenizer.added_id("<|image|>")
    assert builder.expand([1, placeholder, 5], layouts).token_ids == [1, PLACEHOLDER_ID, PLACEHOLDER_ID, 5]


def test_a_template_of_parts_may_write_numbered_tags(checkpoint: Path, tmp_path: Path, builder: PromptBuilder) -> None:
    template = tmp_path / "template.jinja"
    template.write_text(
        "{%- set ns = namespace(number=0) %}{%- for part in messages[0].content %}"
        "{%- if part.type == 'text' %}{{- part.text }}{%- else %}{%- set ns.number = ns.number + 1 %}"
        "{{- '<|image_' ~ ns.number ~ '|> ' }}{%- endif %}{%- endfor %}"
    )
    of_parts = load_prompt_builder(checkpoint, load_model_config(checkpoint), str(template))
    layouts = [one_run(MediaKind.IMAGE, 2)] * 2
    prompt = of_parts.chat([user(IMAGE, "the", IMAGE)], layouts)
    assert prompt == builder.text("<|image_1|> the<|image_2|> ", layouts)


@pytest.mark.parametrize("text", ["<|image_1|>", "a <|image_7|> b", "<|image|>", "<|image_"])
def test_clients_cannot_write_tags(builder: PromptBuilder, text: str) -> None:
    prompt = builder.chat([user(text, IMAGE, "1|>")], [one_run(MediaKind.IMAGE, 2)])
    assert prompt.token_ids.count(PLACEHOLDER_ID) == 2
    assert prompt.token_ids.count(builder.tokenizer.added_id("<|image|>")) == 0
    assert text in builder.tokenizer.decode(prompt.token_ids[: prompt.starts[0]], skip_special=False)

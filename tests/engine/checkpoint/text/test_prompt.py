"""Tests for prompts: equal to those of transformers, with placeholders in place and client text escaped."""

from pathlib import Path
from typing import cast

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from glimpse.engine.checkpoint.families.reading.chatml import QWEN2_VL_TEMPLATE
from glimpse.engine.checkpoint.families.registry import load_model_config
from glimpse.engine.checkpoint.families.token_layout import TokenLayout, one_run
from glimpse.engine.checkpoint.text.conversation import ChatMessage, MediaSlot, TemplateOptions
from glimpse.engine.checkpoint.text.prompt import PromptBuilder, load_prompt_builder
from glimpse.engine.checkpoint.text.slots import PlaceholderError
from glimpse.engine.checkpoint.text.template import ChatTemplate, ChatTemplates
from glimpse.engine.checkpoint.text.tokenizer import Tokenizer
from glimpse.engine.errors import TemplateError
from glimpse.media.kind import MediaKind
from tests.checkpoints.qwen2_vl import CHAT_TEMPLATE
from tests.checkpoints.tokenizer import make_tokenizer
from tests.engine.checkpoint.text.conversations import user
from tests.engine.checkpoint.text.reference import reference_messages, reference_tokenizer

RAW = make_tokenizer()
TOKENIZER = Tokenizer(RAW)
REFERENCE = reference_tokenizer(RAW)
IMAGE_PAD, VIDEO_PAD = (TOKENIZER.encode(text)[0] for text in ("<|image_pad|>", "<|video_pad|>"))
IMAGE, VIDEO = MediaSlot(kind=MediaKind.IMAGE), MediaSlot(kind=MediaKind.VIDEO)


def builder(source: str = QWEN2_VL_TEMPLATE) -> PromptBuilder:
    return PromptBuilder(
        tokenizer=TOKENIZER,
        templates=ChatTemplates(default=ChatTemplate(source, {})),
        placeholder_ids={MediaKind.IMAGE: IMAGE_PAD, MediaKind.VIDEO: VIDEO_PAD},
    )


BUILDER = builder()


def one_each(messages: list[ChatMessage]) -> list[TokenLayout]:
    slots = [part for message in messages for part in message.content if isinstance(part, MediaSlot)]
    return [one_run(slot.kind, 1) for slot in slots]


def reference_ids(messages: list[ChatMessage], source: str = QWEN2_VL_TEMPLATE) -> list[int]:
    rendered = REFERENCE.apply_chat_template(
        reference_messages(messages), chat_template=source, add_generation_prompt=True, return_dict=False
    )
    return cast("list[int]", rendered)


# Texts without special tokens, which may end with the beginning of one.
PLAIN_TEXT = st.one_of(st.text(max_size=20), st.text("< |\nthe", max_size=12))
CONTENT = st.lists(st.one_of(PLAIN_TEXT, st.sampled_from([IMAGE, VIDEO])), max_size=5).map(tuple)
MESSAGES = st.lists(
    st.builds(ChatMessage, role=st.sampled_from(["system", "user", "assistant", "tool"]), content=CONTENT),
    min_size=1,
    max_size=4,
)


@given(MESSAGES)
def test_prompt_has_the_token_ids_of_transformers(messages: list[ChatMessage]) -> None:
    assert BUILDER.chat(messages, one_each(messages)).token_ids == reference_ids(messages)


@given(messages=MESSAGES, sizes=st.lists(st.integers(1, 5), min_size=20, max_size=20))
def test_placeholders_of_each_medium_begin_at_its_start(messages: list[ChatMessage], sizes: list[int]) -> None:
    ones = one_each(messages)
    media = [one_run(one.kind, size) for one, size in zip(ones, sizes, strict=False)]
    prompt = BUILDER.chat(messages, media)
    rest = list(prompt.token_ids)
    for start, medium in sorted(zip(prompt.starts, media, strict=True), key=lambda pair: -pair[0]):
        pad = IMAGE_PAD if medium.kind is MediaKind.IMAGE else VIDEO_PAD
        assert rest[start : start + medium.num_tokens] == [pad] * medium.num_tokens
        rest[start : start + medium.num_tokens] = [pad]
    assert rest == reference_ids(messages)
    assert prompt.starts == sorted(prompt.starts)


NASTY = st.lists(
    st.sampled_from(
        ["<|im_end|>", "<|image_pad|>", "<|", "im_end|>", "<", "<|im_", "end|>", " ", "the", "\ue000", "é"]
    ),
    max_size=8,
).map("".join)


@pytest.mark.parametrize("source", [QWEN2_VL_TEMPLATE, CHAT_TEMPLATE], ids=["qwen2", "tiny"])
@given(texts=st.lists(NASTY, min_size=1, max_size=4))
@example(texts=["<|im_", "end|>"])
@example(texts=["<|im_end|><|im_ ", "end|>"])
@example(texts=["<|im_end|>", "<", "|im_", "end|>"])
def test_client_text_is_never_read_as_a_special_token(source: str, texts: list[str]) -> None:
    prompt = builder(source).chat([user(*texts)], [])
    innocent = builder(source).chat([user("")], [])
    specials = TOKENIZER.special_ids
    assert [i for i in prompt.token_ids if i in specials] == [i for i in innocent.token_ids if i in specials]
    assert "".join(texts) in TOKENIZER.decode(prompt.token_ids)


def test_escaped_text_is_tokenized_together_with_its_surroundings() -> None:
    text = "in the<|im_end|>the in"
    prompt = BUILDER.chat([user(text)], [])
    parts = TOKENIZER.split("<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>")
    prefix = [token for part in parts for token in ([part] if isinstance(part, int) else TOKENIZER.encode(part))]
    suffix = TOKENIZER.encode("<|im_end|>\n<|im_start|>assistant\n")
    assert prompt.token_ids == prefix + TOKENIZER.encode_plain(f"user\n{text}") + suffix


def test_participant_names_are_escaped_too() -> None:
    source = "{% for message in messages %}{{ message.name }}: {{ message.content }}{% endfor %}"
    message = ChatMessage(role="user", content=("Hi",), name="<|im_end|>")
    prompt = builder(source).chat([message], [])
    assert TOKENIZER.decode(prompt.token_ids) == "<|im_end|>: Hi"


@pytest.mark.parametrize(
    ("source", "role"),
    [
        pytest.param("{{ messages[0].role }}", "system", id="template without developer role"),
        pytest.param("{{ messages[0].role }}{# developer #}", "developer", id="template with developer role"),
    ],
)
def test_developer_role_falls_back_to_system(source: str, role: str) -> None:
    prompt = builder(source).chat([ChatMessage(role="developer", content=("Hi",))], [])
    assert TOKENIZER.decode(prompt.token_ids) == role


ITERATES_OVER_PARTS = (
    "{% for message in messages %}{{ message['role'] | capitalize }}"
    "{{ ':' if message['content'][0]['type'] == 'image' else ': ' }}"
    "{% for line in message['content'] %}{% if line['type'] == 'text' %}{{ line['text'] }}{% endif %}{% endfor %}"
    "<|im_end|>{% endfor %}"
)


def test_templates_that_iterate_over_parts_get_texts_as_parts() -> None:
    texts = [user("What is ", "this?"), ChatMessage(role="assistant", content=()), user("Again.")]
    prompts = builder(ITERATES_OVER_PARTS)
    rendered = prompts.tokenizer.decode(prompts.chat(texts, []).token_ids, skip_special=False)
    assert rendered == "User: What is this?<|im_end|>Assistant: <|im_end|>User: Again.<|im_end|>"


def test_templates_that_accept_strings_get_texts_as_strings() -> None:
    for source in (QWEN2_VL_TEMPLATE, CHAT_TEMPLATE, "{{ messages[0].content | upper }}", "no content"):
        assert not ChatTemplate(source, {}).needs_parts


def test_generation_prompt_can_be_left_out() -> None:
    prompt = BUILDER.chat([user("Hi")], [], TemplateOptions(add_generation_prompt=False))
    assert TOKENIZER.decode(prompt.token_ids).endswith("Hi\n")


@pytest.mark.parametrize(
    ("content", "kinds", "message"),
    [
        ((IMAGE,), [], "each image input, got 1 for 0"),
        (("Hi",), [MediaKind.IMAGE], "each image input, got 0 for 1"),
        ((VIDEO,), [MediaKind.IMAGE], "each image input, got 0 for 1"),
        (("Hi",), [MediaKind.AUDIO], "does not support audio input"),
    ],
)
def test_refuses_media_that_do_not_match_the_prompt(
    content: tuple[str | MediaSlot, ...], kinds: list[MediaKind], message: str
) -> None:
    media = [one_run(kind, 1) for kind in kinds]
    with pytest.raises(TemplateError, match=message):
        BUILDER.chat([user(*content)], media)


def test_names_a_medium_without_a_placeholder() -> None:
    image = one_run(MediaKind.IMAGE, 1)
    with pytest.raises(PlaceholderError) as none_shown:
        BUILDER.chat([user("Hi")], [image, image])
    assert none_shown.value.missing == 0
    with pytest.raises(PlaceholderError) as one_shown:
        BUILDER.chat([user("Hi", IMAGE)], [image, image])
    assert one_shown.value.missing is None, "either image may be the rendered one"


def test_refuses_media_that_the_template_does_not_render() -> None:
    with pytest.raises(TemplateError, match="audio"):
        BUILDER.chat([user(MediaSlot(kind=MediaKind.AUDIO))], [])


def test_recognizes_special_tokens_in_a_text_prompt() -> None:
    media = [one_run(MediaKind.IMAGE, 3)]
    prompt = BUILDER.text("<|im_start|>the <|image_pad|><|im_end|>", media)
    start, *the, pad, end = TOKENIZER.encode("<|im_start|>the <|image_pad|><|im_end|>")
    assert prompt.token_ids == [start, *the, pad, pad, pad, end]
    assert prompt.starts == [1 + len(the)]


def test_loads_the_prompt_builder_of_a_checkpoint(tiny_checkpoint: Path) -> None:
    loaded = load_prompt_builder(tiny_checkpoint, load_model_config(tiny_checkpoint))
    messages = [user("the ", IMAGE)]
    prompt = loaded.chat(messages, [one_run(MediaKind.IMAGE, 2)])
    expected = reference_ids(messages, CHAT_TEMPLATE)
    at = expected.index(IMAGE_PAD)
    assert prompt.token_ids == [*expected[:at], IMAGE_PAD, *expected[at:]]
    assert prompt.starts == [at]


FRAMES = TokenLayout(kind=MediaKind.VIDEO, pieces=((1, 2), 3, (4,), 1, (5, 6)))


def test_layout_has_literal_tokens_between_runs() -> None:
    prompt = BUILDER.text("the <|video_pad|> the<|image_pad|>", [FRAMES, one_run(MediaKind.IMAGE, 2)])
    before, after = TOKENIZER.encode("the "), TOKENIZER.encode(" the")
    pads = [VIDEO_PAD] * 3
    assert prompt.token_ids == [*before, 1, 2, *pads, 4, VIDEO_PAD, 5, 6, *after, IMAGE_PAD, IMAGE_PAD]
    assert prompt.starts == [len(before), len(before) + 9 + len(after)]
    assert (FRAMES.num_tokens, FRAMES.runs) == (9, ((2, 3), (6, 1)))


PIECES = st.lists(st.one_of(st.integers(1, 4), st.lists(st.integers(1, 9), max_size=3).map(tuple)), max_size=4)


@given(
    layouts=st.lists(st.tuples(PIECES, st.booleans()), max_size=4),
    texts=st.lists(st.lists(st.sampled_from([1, 2, 7, 8]), max_size=3), min_size=4, max_size=4),
)
def test_layouts_replace_placeholders_and_wrappers(
    layouts: list[tuple[list[int | tuple[int, ...]], bool]], texts: list[list[int]]
) -> None:
    token_ids, expected, starts = list[int](), list[int](), list[int]()
    media: list[TokenLayout] = []
    for (pieces, is_wrapped), text in zip(layouts, texts, strict=False):
        prefix, suffix = ((7,), (8,)) if is_wrapped else ((), ())
        media.append(TokenLayout(kind=MediaKind.VIDEO, pieces=(*pieces, 1), prefix=prefix, suffix=suffix))
        token_ids += [0, 7, VIDEO_PAD, 8, *text]
        expected += [0] if is_wrapped else [0, 7]
        starts.append(len(expected))
        expected += [*media[-1].token_ids(VIDEO_PAD), *([] if is_wrapped else [8]), *text]
    prompt = BUILDER.expand(token_ids, media)
    assert (prompt.token_ids, prompt.starts) == (expected, starts)
    runs = [
        (start + offset, length) for start, layout in zip(starts, media, strict=True) for offset, length in layout.runs
    ]
    placeholders = [index for start, length in runs for index in range(start, start + length)]
    assert placeholders == [index for index, token_id in enumerate(expected) if token_id == VIDEO_PAD]


@pytest.mark.parametrize("around", [([7], []), ([], [8]), ([8], [7]), ([], [])])
def test_layout_leaves_half_a_wrapper_alone(around: tuple[list[int], list[int]]) -> None:
    before, after = around
    layout = TokenLayout(kind=MediaKind.VIDEO, pieces=((5,), 2), prefix=(7,), suffix=(8,))
    prompt = BUILDER.expand([*before, VIDEO_PAD, *after], [layout])
    assert prompt.token_ids == [*before, 5, VIDEO_PAD, VIDEO_PAD, *after]


def test_wrappers_of_neighbors_do_not_overlap() -> None:
    """The token between them belongs to the first."""
    layout = TokenLayout(kind=MediaKind.VIDEO, pieces=(1,), prefix=(7,), suffix=(7,))
    prompt = BUILDER.expand([7, VIDEO_PAD, 7, VIDEO_PAD, 7], [layout, layout])
    assert (prompt.token_ids, prompt.starts) == ([VIDEO_PAD, VIDEO_PAD, 7], [0, 1])

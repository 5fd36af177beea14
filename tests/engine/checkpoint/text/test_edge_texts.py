"""Texts at the edges of media are encoded with the text around them; placeholders may be none of the tokenizer's."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glimpse.engine.checkpoint.families.token_layout import TokenLayout
from glimpse.engine.checkpoint.text.conversation import ChatMessage, MediaSlot
from glimpse.engine.checkpoint.text.prompt import Prompt, PromptBuilder
from glimpse.engine.checkpoint.text.slots import PlaceholderError
from glimpse.engine.checkpoint.text.template import ChatTemplate, ChatTemplates
from glimpse.engine.checkpoint.text.tokenizer import Tokenizer, load_tokenizer
from glimpse.media.kind import MediaKind
from tests.checkpoints.qwen2_vl import CHAT_TEMPLATE
from tests.checkpoints.tokenizer import make_tokenizer

TEMPLATE = (
    "{% for message in messages %}{{ message.role }}: {% if message.content is string %}{{ message.content }}"
    "{% else %}{% for part in message.content %}{{ part.text if part.type == 'text' else '<' + part.type + '>' }}"
    "{% endfor %}{% endif %}<|im_end|>{% endfor %}"
)
VIDEO = MediaSlot(kind=MediaKind.VIDEO)
TEXT = st.text("the in\n<a", max_size=6)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """Knows `<video>`, which is none of its vocabulary's tokens."""
    folder = tmp_path_factory.mktemp("tokenizer")
    make_tokenizer().save(str(folder / "tokenizer.json"))
    return load_tokenizer(folder, markers=["<video>", "<|im_end|>"])


def builder(tokenizer: Tokenizer) -> PromptBuilder:
    return PromptBuilder(
        tokenizer=tokenizer,
        templates=ChatTemplates(default=ChatTemplate(TEMPLATE, {})),
        placeholder_ids={MediaKind.VIDEO: tokenizer.added_id("<video>")},
        run_ids={MediaKind.VIDEO: tokenizer.added_id("<|image_pad|>")},
    )


def layout_of(tokenizer: Tokenizer, *, leading: str, trailing: str) -> TokenLayout:
    pieces = (tuple(tokenizer.encode("<|vision_start|>")), 3, tuple(tokenizer.encode("<|vision_end|>")))
    return TokenLayout(kind=MediaKind.VIDEO, pieces=pieces, leading=leading, trailing=trailing)


SPELLING = "<|vision_start|><|image_pad|><|image_pad|><|image_pad|><|vision_end|>"


def assert_spells(tokenizer: Tokenizer, prompt: Prompt, text: str) -> None:
    assert prompt.token_ids == tokenizer.encode(text)
    start = tokenizer.added_id("<|vision_start|>")
    assert prompt.starts == [index for index, token_id in enumerate(prompt.token_ids) if token_id == start]


@given(before=TEXT, leading=TEXT, trailing=TEXT, after=TEXT)
def test_texts_at_the_edges_share_tokens_with_the_text_around_them(
    tokenizer: Tokenizer, before: str, leading: str, trailing: str, after: str
) -> None:
    media = [layout_of(tokenizer, leading=leading, trailing=trailing), layout_of(tokenizer, leading="", trailing="in")]
    message = ChatMessage(role="user", content=(before, VIDEO, after, VIDEO))
    expected = f"user: {before}{leading}{SPELLING}{trailing}{after}{SPELLING}in<|im_end|>"
    assert_spells(tokenizer, builder(tokenizer).chat([message], media), expected)
    assert_spells(
        tokenizer,
        builder(tokenizer).text(f"{before}<video>{after}<video>", media),
        f"{before}{leading}{SPELLING}{trailing}{after}{SPELLING}in",
    )


def test_texts_at_the_edges_stand_outside_the_wrapper(tokenizer: Tokenizer) -> None:
    wrapper = {"prefix": (tokenizer.added_id("<|im_start|>"),), "suffix": (tokenizer.added_id("<|endoftext|>"),)}
    media = [replace(layout_of(tokenizer, leading=" the", trailing="in "), **wrapper)]
    prompts = builder(tokenizer)
    wrapped = prompts.text("on<|im_start|><video><|endoftext|>on", media)
    assert_spells(tokenizer, wrapped, f"on the{SPELLING}in on")
    assert_spells(tokenizer, prompts.text("on<|im_start|><video>on", media), f"on<|im_start|> the{SPELLING}in on")


def test_texts_at_the_edges_are_encoded_alone_in_prompts_of_token_ids(tokenizer: Tokenizer) -> None:
    media = [layout_of(tokenizer, leading="he", trailing="in")]
    t, marker = tokenizer.encode("t"), tokenizer.added_id("<video>")
    prompt = builder(tokenizer).expand([*t, marker, *t], media)
    parts = ("t", "he", SPELLING, "in", "t")
    assert prompt.token_ids == [token_id for part in parts for token_id in tokenizer.encode(part)]
    assert prompt.token_ids[prompt.starts[0]] == tokenizer.added_id("<|vision_start|>")


def test_client_text_is_no_placeholder_of_a_medium(tokenizer: Tokenizer) -> None:
    media = [layout_of(tokenizer, leading="the ", trailing="")]
    message = ChatMessage(role="user", content=("<video>", VIDEO))
    prompt = builder(tokenizer).chat([message], media)
    assert tokenizer.decode(prompt.token_ids, skip_special=False) == f"user: <video>the {SPELLING}<|im_end|>"
    with pytest.raises(PlaceholderError, match="got 2 for 1"):
        builder(tokenizer).text("<video><video>", media)


def test_conversations_with_videos_may_have_their_own_template(tokenizer: Tokenizer) -> None:
    prompts = PromptBuilder(
        tokenizer=tokenizer,
        templates=ChatTemplates(default=ChatTemplate(CHAT_TEMPLATE, {}), video=ChatTemplate(TEMPLATE, {})),
        placeholder_ids={MediaKind.VIDEO: tokenizer.added_id("<video>")},
    )
    media = [TokenLayout(kind=MediaKind.VIDEO, pieces=(1,))]
    with_video = prompts.chat([ChatMessage(role="user", content=(VIDEO,))], media)
    without = prompts.chat([ChatMessage(role="user", content=("in",))], [])
    assert tokenizer.decode(with_video.token_ids, skip_special=False) == "user: <video><|im_end|>"
    assert tokenizer.decode(without.token_ids, skip_special=False).startswith("<|im_start|>user\nin")


def test_markers_are_added_where_the_tokenizer_has_no_such_token(tokenizer: Tokenizer, tmp_path: Path) -> None:
    make_tokenizer().save(str(tmp_path / "tokenizer.json"))
    plain = load_tokenizer(tmp_path)
    assert tokenizer.added_id("<video>") == plain.vocab_size
    assert tokenizer.added_id("<|im_end|>") == plain.added_id("<|im_end|>")
    with pytest.raises(KeyError):
        plain.added_id("<video>")
    assert [load_tokenizer(tmp_path, markers=["in"]).added_id("in")] == plain.encode("in")

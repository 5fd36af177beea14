"""Chat templates that take the content of a message as one text, on every family: media stand in it at their places."""

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from tokenizers import Tokenizer as LibraryTokenizer

from glimpse.engine.checkpoint.families.registry import load_model_config
from glimpse.engine.checkpoint.families.token_layout import one_run
from glimpse.engine.checkpoint.text.conversation import ChatMessage, MediaSlot
from glimpse.engine.checkpoint.text.prompt import PromptBuilder, load_prompt_builder
from glimpse.engine.checkpoint.text.slots import PlaceholderError
from glimpse.engine.errors import TemplateError
from glimpse.media.kind import MediaKind
from tests.checkpoints.gemma3 import make_gemma3_checkpoint
from tests.checkpoints.idefics3 import make_idefics3_checkpoint
from tests.checkpoints.internvl import make_internvl_checkpoint, make_original_checkpoint
from tests.checkpoints.llava import make_llava_checkpoint, make_next_checkpoint, make_onevision_checkpoint
from tests.checkpoints.minicpmv import make_minicpmv_checkpoint
from tests.checkpoints.phi3v import make_phi3v_checkpoint
from tests.checkpoints.qwen2_audio import make_audio_checkpoint
from tests.checkpoints.qwen2_vl import make_checkpoint
from tests.checkpoints.qwen3_vl import make_qwen3_vl_checkpoint
from tests.checkpoints.ultravox import make_ultravox_checkpoint
from tests.engine.checkpoint.text.conversations import IMAGE, VIDEO, assistant, system, user

AUDIO = MediaSlot(kind=MediaKind.AUDIO)
VICUNA = """\
{{- bos_token }}
{%- if messages[0]['role'] == 'system' -%}
{{ messages[0]['content'] + '\\n' }}
{%- set messages = messages[1:] -%}
{%- endif -%}
{%- for message in messages -%}
{%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}
{{ raise_exception('roles must alternate') }}
{%- endif -%}
{%- if message['role'] == 'user' -%}
{{ 'USER: ' + message['content'] + '\\n' }}
{%- elif message['role'] == 'assistant' -%}
{{ 'ASSISTANT: ' + message['content'] + '\\n' }}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{ 'ASSISTANT:' }}
{%- endif -%}
"""
"""The form of vLLM's template for LLaVA-1.5."""
CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
TRIMS = "{% for message in messages %}{{ message.content | trim }}{% endfor %}"
"""Renders a list of parts as its Python code."""

FAMILIES: Mapping[str, Callable[[Path], Path]] = {
    "qwen2_vl": make_checkpoint,
    "qwen3_vl": make_qwen3_vl_checkpoint,
    "llava": make_llava_checkpoint,
    "next": make_next_checkpoint,
    "onevision": make_onevision_checkpoint,
    "phi3v": make_phi3v_checkpoint,
    "minicpmv": make_minicpmv_checkpoint,
    "internvl": make_internvl_checkpoint,
    "internvl_chat": lambda path: make_original_checkpoint(make_internvl_checkpoint(path / "hf"), path / "original"),
    "gemma3": make_gemma3_checkpoint,
    "smolvlm": make_idefics3_checkpoint,
    "qwen2_audio": make_audio_checkpoint,
    "ultravox": make_ultravox_checkpoint,
}
IN_A_LINE = {
    "qwen2_vl": "The<|vision_start|><|image_pad|><|vision_end|>in",
    "qwen3_vl": "The<|vision_start|><|image_pad|><|vision_end|>in",
    "gemma3": "The<start_of_image>in",
    "smolvlm": "The<image>in",
    "llava": "The\n<image>\nin",
    "next": "The\n<image>\nin",
    "onevision": "The\n<image>\nin",
    "phi3v": "The\n<|image_1|>\nin",
    "minicpmv": "The\n(<image>./</image>)\nin",
    "internvl": "The\n<IMG_CONTEXT>\nin",
    "internvl_chat": "The\n<image>\nin",
    "qwen2_audio": "The\nAudio 1: <|audio_bos|><|AUDIO|><|audio_eos|>\nin",
    "ultravox": "The\n<|audio|>\nin",
}
"""Family → the text of the parts "The", a medium, and "in"."""


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    made: dict[str, Path] = {}

    def get(family: str) -> Path:
        if family not in made:
            made[family] = FAMILIES[family](tmp_path_factory.mktemp(family))
        return made[family]

    return get


@pytest.fixture
def with_template(checkpoints: Callable[[str], Path], tmp_path: Path) -> Callable[[str, str], PromptBuilder]:
    def load(family: str, template: str) -> PromptBuilder:
        (tmp_path / "template.jinja").write_text(template)
        path = checkpoints(family)
        return load_prompt_builder(path, load_model_config(path), str(tmp_path / "template.jinja"))

    return load


@pytest.mark.parametrize("template", [VICUNA, TRIMS], ids=["Vicuna", "trims"])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_medium_stands_in_the_text_as_the_family_writes_it(
    family: str, template: str, with_template: Callable[[str, str], PromptBuilder]
) -> None:
    builder = with_template(family, template)
    slot = IMAGE if family not in ("qwen2_audio", "ultravox") else AUDIO
    text = IN_A_LINE[family] if template == TRIMS else f"Go.\nUSER: {IN_A_LINE[family]}\nASSISTANT:"
    messages = [user("The", slot, "in")] if template == TRIMS else [system("Go."), user("The", slot, "in")]
    layouts = [one_run(slot.kind, 3)]
    assert builder.chat(messages, layouts) == builder.text(text, layouts)


@pytest.mark.parametrize(
    ("family", "text"),
    [
        ("phi3v", "<|image_1|>\nin\n<|image_2|>\nASSISTANT: the\nUSER: an\n<|image_3|>"),
        ("internvl_chat", "<image>\nin\n<image>\nASSISTANT: the\nUSER: an\n<image>"),
        ("smolvlm", "<image>in<image>\nASSISTANT: the\nUSER: an<image>"),
    ],
)
def test_several_images_of_a_conversation_keep_their_order_and_numbers(
    family: str, text: str, with_template: Callable[[str, str], PromptBuilder]
) -> None:
    builder = with_template(family, VICUNA)
    messages = [user(IMAGE, "in", IMAGE), assistant("the"), user("an", IMAGE)]
    layouts = [one_run(MediaKind.IMAGE, size) for size in (1, 2, 3)]
    assert builder.chat(messages, layouts) == builder.text(f"USER: {text}\nASSISTANT:", layouts)


def test_vllms_template_for_llava_gives_the_tokens_that_its_text_has(
    checkpoints: Callable[[str], Path], with_template: Callable[[str, str], PromptBuilder]
) -> None:
    """The oracle is the tokenizers library: an image is as many placeholders as the encoder has rows."""
    library = LibraryTokenizer.from_file(str(checkpoints("llava") / "tokenizer.json"))
    messages = [user(IMAGE, "What's in this image?"), assistant("the"), user("an")]
    expected = f"USER: {'<image>' * 16}\nWhat's in this image?\nASSISTANT: the\nUSER: an\nASSISTANT:"
    prompt = with_template("llava", VICUNA).chat(messages, [one_run(MediaKind.IMAGE, 16)])
    assert prompt.token_ids == library.encode(expected).ids


@pytest.mark.parametrize("slot", [IMAGE, VIDEO], ids=["image", "video"])
def test_chatml_of_texts_equals_qwens_own_template_of_parts(
    slot: MediaSlot, checkpoints: Callable[[str], Path], with_template: Callable[[str, str], PromptBuilder]
) -> None:
    path = checkpoints("qwen2_vl")
    messages = [system("Go."), user("the", slot, "in", slot), assistant("an"), user("the")]
    layouts = [one_run(slot.kind, 2)] * 2
    own = load_prompt_builder(path, load_model_config(path))
    assert with_template("qwen2_vl", CHATML).chat(messages, layouts) == own.chat(messages, layouts)


@pytest.mark.parametrize("family", ["qwen2_vl", "llava", "phi3v", "minicpmv"])
def test_client_text_beside_media_is_never_read_as_a_special_token(
    family: str, with_template: Callable[[str, str], PromptBuilder]
) -> None:
    builder = with_template(family, VICUNA)
    placeholders = [
        text.replace("{}", "1") for text in ("<image>", "<|image_1|>", "<|image_pad|>", "(<image>./</image>)")
    ]
    for text in (*placeholders, "<|image_", "<|vision_start|>"):
        prompt = builder.chat([user(text, IMAGE, "1|>" + text)], [one_run(MediaKind.IMAGE, 2)])
        innocent = builder.chat([user("in", IMAGE, "in")], [one_run(MediaKind.IMAGE, 2)])
        specials = builder.tokenizer.special_ids
        assert [i for i in prompt.token_ids if i in specials] == [i for i in innocent.token_ids if i in specials]


BOTH = (
    "{% for message in messages %}{% if message.content is string %}{{ message.content }}{% else %}"
    "{% for part in message.content %}{{ part.text if part.type == 'text' else SLOT }}{% endfor %}"
    "{% endif %}{% endfor %}"
)


def test_a_template_of_both_forms_that_shows_media_gets_parts(
    with_template: Callable[[str, str], PromptBuilder],
) -> None:
    builder = with_template("qwen2_vl", BOTH.replace("SLOT", "'the <|image_pad|>.'"))
    layouts = [one_run(MediaKind.IMAGE, 2)]
    assert builder.chat([user("in", IMAGE)], layouts) == builder.text("inthe <|image_pad|>.", layouts)


def test_a_template_of_both_forms_that_shows_no_media_gets_texts(
    with_template: Callable[[str, str], PromptBuilder],
) -> None:
    builder = with_template("llava", BOTH.replace("SLOT", "''"))
    layouts = [one_run(MediaKind.IMAGE, 2)]
    assert builder.chat([user("in", IMAGE)], layouts) == builder.text("in\n<image>", layouts)


def test_a_template_that_wants_a_system_message_is_understood(
    with_template: Callable[[str, str], PromptBuilder],
) -> None:
    wants = "{% if messages[0].role != 'system' %}{{ raise_exception('no system message') }}{% endif %}"
    builder = with_template("llava", wants + VICUNA)
    layouts = [one_run(MediaKind.IMAGE, 2)]
    assert builder.chat([system("Go."), user(IMAGE)], layouts) == builder.text(
        "Go.\nUSER: <image>\nASSISTANT:", layouts
    )
    with pytest.raises(TemplateError, match="no system message"):
        builder.chat([user(IMAGE)], layouts)


@pytest.mark.parametrize(
    ("family", "remedy"),
    [
        ("qwen2_vl", "got 0 for 2; write <|vision_start|><|image_pad|><|vision_end|> once for each"),
        ("llava", "got 0 for 2; write <image> once for each"),
        ("minicpmv", "got 0 for 2; write (<image>./</image>) once for each"),
        ("phi3v", "got 0 for 2; write <|image_1|>, <|image_2|> and so on, once for each"),
    ],
)
def test_an_error_about_a_raw_prompt_says_what_to_write(
    family: str, remedy: str, checkpoints: Callable[[str], Path]
) -> None:
    path = checkpoints(family)
    builder = load_prompt_builder(path, load_model_config(path))
    layouts = [one_run(MediaKind.IMAGE, 2)] * 2
    raw = "USER: <photo><photo>\nDescribe the differences.\nASSISTANT:"
    for build in (builder.text, builder.whole_text):
        with pytest.raises(PlaceholderError) as refused:
            build(raw, layouts)
        assert str(refused.value) == f"expected one placeholder for each image input, {remedy}"


def test_a_conversation_of_texts_alone_is_unchanged(with_template: Callable[[str, str], PromptBuilder]) -> None:
    message = ChatMessage(role="user", content=("the", " in"))
    builder = with_template("llava", VICUNA)
    assert builder.chat([message], []) == builder.text("USER: the in\nASSISTANT:", [])

"""Tokenizers in SentencePiece's way, as of Llama 2, Phi-3 and Gemma 3: they agree with the tokenizers library."""

from pathlib import Path
from typing import Any

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors
from transformers import TokenizersBackend

from glimpse.engine.checkpoint.text.conversation import ChatMessage
from glimpse.engine.checkpoint.text.prompt import PromptBuilder
from glimpse.engine.checkpoint.text.template import ChatTemplate, ChatTemplates
from glimpse.engine.checkpoint.text.tokenizer import Detokenizer, Tokenizer, load_tokenizer
from glimpse.engine.errors import CheckpointError
from glimpse.media.kind import MediaKind
from tests.checkpoints.files import write_json

SPECIAL = ("<unk>", "<s>", "</s>", "<|user|>", "<|end|>")
MERGES = ("▁ t", "h e", "▁t he", "i n", "a n", "▁ a", "▁ ▁")
TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}<|user|>\n{{ message.content }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}Answer:{% endif %}"
)


def make_sentencepiece(*, prepends: str) -> tokenizers.Tokenizer:
    """Returns a BPE with bytes as fallback.

    Args:
        prepends: a space comes before each piece between added tokens ("each", as in Llama 2 and Phi-3) or before the
            first alone ("first", as in later conversions of the same vocabularies), or before none ("none", as in
            Gemma 3).
    """
    tokens = [*SPECIAL, *(f"<0x{byte:02X}>" for byte in range(256)), "▁", *"abcdefghijklmnopqrstuvwxyz.:A"]
    tokens += [merge.replace(" ", "") for merge in MERGES]
    vocab = {token: index for index, token in enumerate(tokens)}
    pairs = [(left, right) for left, right in (merge.split(" ") for merge in MERGES)]
    model = models.BPE(vocab=vocab, merges=pairs, unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    tokenizer = tokenizers.Tokenizer(model)
    if prepends == "each":
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    elif prepends == "first":
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    else:
        tokenizer.normalizer = normalizers.Replace(" ", "▁")
        tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    steps: list[Any] = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    if prepends != "none":
        steps.append(decoders.Strip(" ", 1, 0))
    tokenizer.decoder = decoders.Sequence(steps)
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    tokenizer.add_special_tokens(
        [AddedToken(token, special=True, normalized=False, rstrip=token == "<|user|>") for token in SPECIAL]
    )
    return tokenizer


def saved(folder: Path, reference: tokenizers.Tokenizer) -> Tokenizer:
    reference.save(str(folder / "tokenizer.json"))
    return load_tokenizer(folder)


REFERENCES = {prepends: make_sentencepiece(prepends=prepends) for prepends in ("each", "first", "none")}


Pair = tuple[Tokenizer, tokenizers.Tokenizer]
"""A tokenizer and the library's."""


@pytest.fixture(scope="module", params=["each", "first", "none"])
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    reference = REFERENCES[request.param]
    return saved(tmp_path_factory.mktemp("tokenizer"), reference), reference


@given(text=st.text())
def test_encodes_and_decodes_like_the_library(pair: Pair, text: str) -> None:
    tokenizer, reference = pair
    token_ids = reference.encode(text, add_special_tokens=False).ids
    assert tokenizer.encode(text) == token_ids
    assert tokenizer.decode(token_ids) == reference.decode(token_ids)


@given(token_ids=st.lists(st.integers(0, REFERENCES["each"].get_vocab_size() - 1), max_size=40))
def test_an_answer_keeps_its_first_space(pair: Pair, token_ids: list[int]) -> None:
    tokenizer, _ = pair
    detokenizer = Detokenizer(tokenizer)
    shown = "".join(detokenizer.feed([token_id]) for token_id in token_ids) + detokenizer.finish()
    decoded = tokenizer.decode(token_ids)
    assert shown in (decoded, f" {decoded}")


def test_raw_texts_start_with_the_tokenizers_own_token(pair: Pair) -> None:
    tokenizer, reference = pair
    assert tokenizer.with_prefix(tokenizer.encode("the an")) == reference.encode("the an").ids
    marked = reference.encode("<s>the an", add_special_tokens=False).ids
    assert tokenizer.with_prefix(tokenizer.encode("<s>the an")) == marked


@pytest.mark.parametrize("stored", [None, "<s> $A", "$A </s>"])
@pytest.mark.parametrize(
    "flags",
    [
        {},
        {"add_bos_token": True, "add_eos_token": False},
        {"add_bos_token": False, "add_eos_token": False},
        {"add_bos_token": True, "add_eos_token": True},
        {"add_bos_token": False, "add_eos_token": True},
    ],
    ids=str,
)
def test_llamas_flags_take_precedence_over_what_the_tokenizer_has_stored(
    tmp_path: Path, flags: dict[str, bool], stored: str | None
) -> None:
    reference = make_sentencepiece(prepends="first")
    tokens: Any = {"special_tokens": [("<s>", 1), ("</s>", 2)]}
    reference.post_processor = processors.TemplateProcessing(single=stored or "$A", **tokens)
    config = {"tokenizer_class": "LlamaTokenizer", "bos_token": "<s>", "eos_token": {"content": "</s>"}, **flags}
    write_json(tmp_path / "tokenizer_config.json", config)
    tokenizer = saved(tmp_path, reference)
    theirs: Any = TokenizersBackend(bos_token="<s>", eos_token="</s>", tokenizer_object=reference, **flags)
    expected = theirs("the an").input_ids if flags else reference.encode("the an").ids
    words = [token_id for token_id in expected if token_id > 2]
    assert tokenizer.encode("the an") == words
    assert tokenizer.with_suffix(tokenizer.with_prefix(words)) == expected


@pytest.mark.parametrize("tokenizer_class", [None, "PreTrainedTokenizerFast", "Qwen2Tokenizer"])
def test_other_tokenizers_keep_what_they_have_stored(tmp_path: Path, tokenizer_class: str | None) -> None:
    reference = make_sentencepiece(prepends="first")
    write_json(
        tmp_path / "tokenizer_config.json",
        {"tokenizer_class": tokenizer_class, "bos_token": "<s>", "add_bos_token": False},
    )
    assert saved(tmp_path, reference).with_prefix([20]) == [1, 20]


@pytest.mark.parametrize("text", ["the an", "", "  two", "a <|end|> b", "é\n</s>"])
def test_prompts_equal_the_librarys_and_client_text_is_never_special(pair: Pair, text: str) -> None:
    tokenizer, reference = pair
    builder = PromptBuilder(
        tokenizer=tokenizer,
        templates=ChatTemplates(default=ChatTemplate(TEMPLATE, {"bos_token": "<s>"})),
        placeholder_ids={},
    )
    prompt = builder.chat([ChatMessage(role="user", content=(text,))], [])
    if not any(token in text for token in SPECIAL):
        rendered = f"<s><|user|>\n{text}<|end|>\nAnswer:"
        assert prompt.token_ids == reference.encode(rendered, add_special_tokens=False).ids
    special = [token_id for token_id in prompt.token_ids if token_id in tokenizer.special_ids]
    assert special == [1, 3, 4]
    assert text.strip() in tokenizer.decode(prompt.token_ids)


@pytest.mark.parametrize(("template", "num_added"), [(TEMPLATE, 0), (TEMPLATE.removeprefix("{{ bos_token }}"), 1)])
def test_chats_of_models_with_media_start_with_the_tokenizers_own_token(
    pair: Pair, template: str, num_added: int
) -> None:
    messages = [ChatMessage(role="user", content=("the an",))]
    text_model, media_model = (
        PromptBuilder(
            tokenizer=pair[0],
            templates=ChatTemplates(default=ChatTemplate(template, {"bos_token": "<s>"})),
            placeholder_ids=placeholder_ids,
        )
        for placeholder_ids in ({}, {MediaKind.IMAGE: 2})
    )
    token_ids = text_model.chat(messages, []).token_ids
    assert media_model.chat(messages, []).token_ids == [1] * num_added + token_ids
    assert media_model.chat(messages, []).token_ids.count(1) == 1


def test_refuses_other_kinds_of_tokenizers(tmp_path: Path) -> None:
    other = tokenizers.Tokenizer(models.WordLevel({"a": 0}, unk_token="a"))
    with pytest.raises(CheckpointError, match="SentencePiece"):
        saved(tmp_path, other)

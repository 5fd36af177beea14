"""The offline API: all forms of prompts and images, batches, and errors that name the invalid field."""

import json
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pytest

from glimpse.dialect.options import descriptor_of
from glimpse.engine.core.core import Core
from glimpse.engine.errors import EngineError, EngineErrorCode
from glimpse.engine.protocol.messages import FinishReason, Step
from glimpse.offline.llm import LLM, InputError, SamplingParams, StructuredOutputsParams
from glimpse.server.call.context import CallContext
from glimpse.server.codec.document import DecodeError
from glimpse.server.dialects.openai import OPENAI
from glimpse.server.errors import InvalidRequest
from glimpse.server.parse.chat import parse_chat
from glimpse.v1 import chat_pb2
from tests.checkpoints.tokenizer import PLAIN_TOKENS, SPECIAL_TOKENS
from tests.engine.offline.llm_inputs import (
    IMAGE,
    OTHER_IMAGE,
    PIXELS,
    PLACEHOLDER,
    base64_png,
    image_pil,
    load,
    png,
    text,
    user,
)
from tests.media.videos import greys
from tests.server.codec.decoding import rest_failure
from tests.server.parse.served import MODEL

GREEDY = SamplingParams(temperature=0, max_tokens=12)
START, END = (len(PLAIN_TOKENS) + SPECIAL_TOKENS.index(tag) for tag in ("<|im_start|>", "<|im_end|>"))


def test_a_conversation_equals_its_rendered_prompt(llm: LLM) -> None:
    (chat,) = llm.chat([{"role": "user", "content": "the end"}], GREEDY)
    (by_text,) = llm.generate("<|im_start|>user\nthe end<|im_end|>\n<|im_start|>assistant\n", GREEDY)
    (by_ids,) = llm.generate({"prompt_token_ids": chat.prompt_token_ids}, GREEDY)
    assert chat.prompt_token_ids == by_text.prompt_token_ids == by_ids.prompt_token_ids
    assert chat.outputs == by_text.outputs == by_ids.outputs
    assert len(chat.outputs[0].token_ids) == 12
    assert chat.outputs[0].finish_reason is FinishReason.LENGTH


@pytest.mark.parametrize(
    "image",
    [
        pytest.param(IMAGE, id="PIL"),
        pytest.param(PIXELS, id="array"),
        pytest.param(PIXELS.transpose(2, 0, 1), id="array, channels first"),
        pytest.param(PIXELS.astype("float32"), id="floats to 255"),
        pytest.param(PIXELS.transpose(2, 0, 1) / 255, id="floats to 1, channels first"),
        pytest.param([PIXELS], id="list"),
        pytest.param(png(IMAGE), id="bytes"),
        pytest.param(base64_png(IMAGE), id="base64"),
        pytest.param(f"data:image/png;base64,{base64_png(IMAGE)}", id="data URL"),
    ],
)
def test_accepts_an_image_in_every_form(llm: LLM, image: Any) -> None:
    (expected,) = llm.chat(user(image_pil(IMAGE), text("the")), GREEDY)
    prompt = f"<|im_start|>user\n{PLACEHOLDER}the<|im_end|>\n<|im_start|>assistant\n"
    (output,) = llm.generate({"prompt": prompt, "multi_modal_data": {"image": image}}, GREEDY)
    assert output.prompt_token_ids == expected.prompt_token_ids
    assert output.outputs == expected.outputs


def test_special_tokens_in_text_are_not_an_image(llm: LLM) -> None:
    alone, with_image = llm.chat([user(text(PLACEHOLDER)), user(text(PLACEHOLDER), image_pil(IMAGE))], GREEDY)
    assert alone.prompt_token_ids.count(277) == 0
    assert with_image.prompt_token_ids.count(277) == 6


def test_uses_a_custom_chat_template(tiny_checkpoint: Path, tmp_path: Path) -> None:
    (tmp_path / "own.jinja").write_text("the end")
    llm = load(tiny_checkpoint, chat_template=str(tmp_path / "own.jinja"))
    (chat,), (plain,) = llm.chat(user(text("hello")), GREEDY), llm.generate("the end", GREEDY)
    assert chat.prompt_token_ids == plain.prompt_token_ids


def test_an_image_url_part_may_have_pixel_bounds(llm: LLM) -> None:
    url = f"data:image/png;base64,{base64_png(IMAGE)}"
    plain, small = (
        {"type": "image_url", "image_url": url},
        {"type": "image_url", "image_url": {"url": url, "max_pixels": 56 * 56}},
    )
    lengths = [len(output.prompt_token_ids) for output in llm.chat([user(plain), user(small)], GREEDY)]
    assert lengths[1] < lengths[0]


def test_a_batch_returns_the_outputs_of_single_prompts_in_order(llm: LLM) -> None:
    conversations = [
        user(image_pil(IMAGE), text("the image")),
        user(text("on and on")),
        user(image_pil(OTHER_IMAGE), text("the image")),
        user(image_pil(OTHER_IMAGE), text("and"), image_pil(IMAGE)),
    ]
    batch = llm.chat(conversations, GREEDY)
    alone = [llm.chat(conversation, GREEDY)[0] for conversation in conversations]
    assert [output.outputs for output in batch] == [output.outputs for output in alone]
    assert len({output.outputs[0].text for output in batch}) == len(batch)


def test_each_prompt_may_have_its_own_sampling_parameters(llm: LLM) -> None:
    lengths = [SamplingParams(temperature=0, max_tokens=count) for count in (1, 5)]
    outputs = llm.generate(["the", "the"], lengths)
    assert [len(output.outputs[0].token_ids) for output in outputs] == [1, 5]


def test_scores_the_tokens_of_prompts(llm: LLM) -> None:
    (answered,) = llm.generate("the end", SamplingParams(temperature=0, max_tokens=4, ignore_eos=True, logprobs=2))
    prompt = {"prompt_token_ids": answered.prompt_token_ids + answered.outputs[0].token_ids}
    (scored,) = llm.generate(prompt, SamplingParams(max_tokens=1, prompt_logprobs=2))
    assert scored.prompt_logprobs is not None
    assert len(scored.prompt_logprobs) == len(scored.prompt_token_ids)
    own = scored.prompt_logprobs[len(answered.prompt_token_ids) :]
    assert answered.outputs[0].logprobs is not None
    assert [token.logprob for token in own] == pytest.approx(
        [token.logprob for token in answered.outputs[0].logprobs], abs=1e-4
    )
    assert {token.rank for token in own} == {1}
    assert answered.prompt_logprobs is None


@pytest.mark.parametrize("length", [1, 17], ids=["a token that none follows", "one left for the last step"])
def test_a_step_may_have_no_token_to_score_whatever_the_type_of_the_model(tiny_checkpoint: Path, length: int) -> None:
    small = LLM(tiny_checkpoint, dtype="bfloat16", device="cpu", num_threads=1, max_model_len=64, max_batch_tokens=16)
    (scored,) = small.generate({"prompt_token_ids": [20] * length}, SamplingParams(max_tokens=1, prompt_logprobs=1))
    assert scored.prompt_logprobs is not None
    assert len(scored.prompt_logprobs) == length


def test_an_answer_may_be_kept_from_tokens_and_words(llm: LLM) -> None:
    (free,) = llm.generate("the", GREEDY)
    letters = tuple({letter for letter in free.outputs[0].text if letter.isalpha()})
    (banned,) = llm.generate("the", SamplingParams(temperature=0, max_tokens=12, bad_words=letters))
    assert banned.outputs[0].text != free.outputs[0].text
    allowed = tuple(free.outputs[0].token_ids[:2])
    (limited,) = llm.generate("the", SamplingParams(temperature=0, max_tokens=12, allowed_token_ids=allowed))
    assert set(limited.outputs[0].token_ids) <= set(allowed)


def test_a_prompt_may_have_several_completions(llm: LLM) -> None:
    drawn = SamplingParams(n=3, seed=5, temperature=2, max_tokens=12, ignore_eos=True)
    first, second = llm.generate(["the", {"prompt": PLACEHOLDER, "multi_modal_data": {"image": IMAGE}}], drawn)
    for output in (first, second):
        assert [completion.index for completion in output.outputs] == [0, 1, 2]
        assert len({completion.text for completion in output.outputs}) == 3
    (alone,) = llm.generate("the", SamplingParams(seed=6, temperature=2, max_tokens=12, ignore_eos=True))
    assert alone.outputs[0].token_ids == first.outputs[1].token_ids
    (greedy,) = llm.chat(user(text("the")), SamplingParams(n=2, temperature=0, max_tokens=4, stop=("x",)))
    assert greedy.outputs[0].token_ids == greedy.outputs[1].token_ids


def test_a_seed_of_the_model_makes_sampling_repeatable(tiny_checkpoint: Path) -> None:
    drawn = SamplingParams(temperature=2, max_tokens=12, ignore_eos=True)
    first, again, other = (load(tiny_checkpoint, seed=seed).generate(["the"] * 2, drawn) for seed in (1, 1, 2))
    texts = [[output.outputs[0].text for output in outputs] for outputs in (first, again, other)]
    assert texts[0] == texts[1] != texts[2]
    assert texts[0][0] != texts[0][1], "each prompt has a seed of its own"


def test_reuses_a_cached_prefix(tiny_checkpoint: Path) -> None:
    llm = load(tiny_checkpoint)
    conversation = user(image_pil(IMAGE), text("the " * 40))
    (cold,), (warm,) = llm.chat(conversation, GREEDY), llm.chat(conversation, GREEDY)
    assert cold.num_cached_tokens == 0
    assert warm.num_cached_tokens > 0
    assert warm.outputs == cold.outputs


def test_a_stop_string_ends_the_completion(llm: LLM) -> None:
    (whole,) = llm.generate("the", GREEDY)
    answer = whole.outputs[0].text
    stop = answer[4:6]
    (cut,) = llm.generate("the", SamplingParams(temperature=0, max_tokens=12, stop=[stop]))
    assert llm.generate("the", SamplingParams(temperature=0, max_tokens=12, stop=stop))[0].outputs == cut.outputs
    assert cut.outputs[0].text == answer[: answer.index(stop)]
    assert cut.outputs[0].finish_reason is FinishReason.STOP
    including = SamplingParams(temperature=0, max_tokens=12, stop=(stop,), include_stop_str_in_output=True)
    assert llm.generate("the", including)[0].outputs[0].text == answer[: answer.index(stop)] + stop
    assert len(cut.outputs[0].token_ids) < len(whole.outputs[0].token_ids)
    late = SamplingParams(temperature=0, max_tokens=12, min_tokens=len(cut.outputs[0].token_ids), stop=stop)
    assert len(llm.generate("the", late)[0].outputs[0].token_ids) > late.min_tokens, "min_tokens comes first"
    (after,) = llm.generate("the", GREEDY)
    assert after.outputs == whole.outputs


def test_answers_in_every_form_of_sampling_parameters(llm: LLM) -> None:
    (whole,) = llm.generate("the", GREEDY)
    open_end = SamplingParams(temperature=0, max_tokens=None, ignore_eos=True, top_k=-1)
    (answer,) = llm.generate({"prompt_token_ids": [5] * 1000}, open_end)
    assert len(answer.outputs[0].token_ids) == 24, "the rest of the context window"
    params: Any = llm.get_default_sampling_params()
    params.temperature, params.max_tokens = 0, 12
    assert llm.generate("the", params)[0].outputs == whole.outputs
    assert llm.get_default_sampling_params() != params
    ended = SamplingParams(temperature=0, max_tokens=2, allowed_token_ids=[END], skip_special_tokens=False)
    assert [output.outputs[0].text for output in llm.generate(["the"] * 2, [ended, replace(ended, stop="x")])] == [
        ""
    ] * 2
    special = SamplingParams(temperature=0, max_tokens=2, allowed_token_ids=[START], skip_special_tokens=False)
    hidden = SamplingParams(temperature=0, max_tokens=2, allowed_token_ids=[START])
    assert [output.outputs[0].text for output in llm.generate(["the"] * 2, [special, hidden])] == [
        "<|im_start|>" * 2,
        "",
    ]
    chosen = SamplingParams(structured_outputs=StructuredOutputsParams(choice=["the end", "no"]), max_tokens=12)
    assert llm.generate("the", chosen)[0].outputs[0].text in ("the end", "no")


def test_the_engine_stops_after_a_stop_string(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    (whole,) = llm.generate("the", GREEDY)
    num_steps = 0
    step = Core.step

    def counted(core: Core) -> Step:
        nonlocal num_steps
        num_steps += 1
        return step(core)

    monkeypatch.setattr(Core, "step", counted)
    llm.generate("the", SamplingParams(temperature=0, max_tokens=500, stop=(whole.outputs[0].text[4:6],)))
    assert num_steps < 20


def test_returns_log_probabilities(llm: LLM) -> None:
    (output,) = llm.generate("the", SamplingParams(temperature=0, max_tokens=4, logprobs=2))
    (answer,) = output.outputs
    assert answer.logprobs is not None
    assert [token.token_id for token in answer.logprobs] == answer.token_ids
    assert all(token.top[0].token_id == token.token_id and len(token.top) == 2 for token in answer.logprobs)
    assert b"".join(token.bytes for token in answer.logprobs).decode() == answer.text


def test_a_conversation_in_the_words_of_other_documents(llm: LLM, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"data:image/png;base64,{base64_png(IMAGE)}"
    bounds, other_bounds = {"min_pixels": 3136, "max_pixels": 16 * 784}, {"min_pixel": 3136, "max_pixel": 16 * 784}

    def asked(part: dict[str, Any], role: str = "assistant", **members: Any) -> list[dict[str, Any]]:
        first = {"role": role, "content": "the", **members}
        return [*user(text("the")), first, *user(part, text("the"))]

    plain = asked({"type": "image_url", "image_url": {"url": url, **bounds}})
    others = [
        asked({"type": "image_url", "image_url": {"url": url, **other_bounds, "detail": "auto"}}, "assistent"),
        asked({"type": "image", "image": IMAGE, **other_bounds}, refusal=None, annotations=None, tool_calls=None),
        asked({"type": "image", "image": url, "uuid": None, **bounds}, audio=None, function_call=None),
    ]
    expected, *outputs = llm.chat([plain, *others], GREEDY, use_tqdm=False)
    assert [output.prompt_token_ids for output in outputs] == [expected.prompt_token_ids] * 3
    assert [output.outputs for output in outputs] == [expected.outputs] * 3
    assert "completions" not in capsys.readouterr().err
    low = user({"type": "image_url", "image_url": {"url": url, "max_pixels": 900_000, "detail": "low"}})
    assert llm.chat(low, GREEDY, use_tqdm=lambda *_: None)
    video = greys(4, width=56, height=56)
    small, smaller = (user({"type": "video", "video": video, name: 784}) for name in ("max_pixels", "max_pixel"))
    first, second = llm.chat([small, smaller], GREEDY)
    assert first.prompt_token_ids == second.prompt_token_ids


URL_PART = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ([], None),
        (["the"], r"conversations\[0\]\.messages': expected an array, got a string"),
        ([{"role": "judge", "content": "x"}], r"messages\[0\]\.role': expected one of .*'judge'"),
        ([{"role": "user"}], r"messages\[0\]\.content"),
        ([{"role": "user", "content": "x", "audio": {}}], r"messages\[0\]\.audio': not supported"),
        (user(text("x"), {"type": "smell"}), r"messages\[0\]\.content\[1\]\.type': .*'smell'"),
        (user({"type": "text"}), r"messages\[0\]\.content\[0\]\.text"),
        (user({"type": "image_pil", "image_pil": "x"}), r"content\[0\]\.image_pil': expected a PIL image, got str"),
        (
            user({"type": "image", "image": IMAGE, "detail": "fine"}),
            r"content\[0\]\.detail': expected one of 'auto', 'low', 'high', 'original', got 'fine'",
        ),
        (
            user({"type": "image", "image": IMAGE, "max_pixls": 2}),
            r"content\[0\]\.max_pixls': unknown field; did you mean 'max_pixels'",
        ),
        (user(URL_PART | {"uuid": 5}), r"content\[0\]\.uuid': expected a string"),
        (user(image_pil(IMAGE) | {"uuid": "x" * 1025}), r"content\[0\]\.uuid': expected 1 to 1024 characters"),
        (user(text("x") | {"uuid": "x"}), r"content\[0\]\.uuid': expected a medium"),
        (
            user({"type": "image_url", "image_url": None}),
            r"image_url\.url': expected a URL, the bytes of a file, an upload, or the uuid",
        ),
        (
            user({"type": "image_url", "image_url": {"url": None}}),
            r"image_url\.url': expected a URL, the bytes of a file, an upload, or the uuid",
        ),
        (
            user({"type": "image_url", "image_url": {"url": "file:///x"}}),
            r"content\[0\]\.image_url': this server does not read file: URLs",
        ),
        (user({"type": "image_url", "image_url": "http://127.0.0.1/x.png"}), r"content\[0\]\.image_url"),
        (user(URL_PART), r"messages\[0\]\.content\[0\]\.image_url"),
        ([user(text("x")), user(URL_PART)], r"conversations\[1\]\.messages\[0\]\.content\[0\]\.image_url"),
    ],
)
def test_names_the_field_of_an_invalid_conversation(llm: LLM, messages: list[Any], message: str | None) -> None:
    if message is None:
        assert llm.chat(messages, GREEDY) == []
        return
    with pytest.raises(InputError, match=message):
        llm.chat(messages, GREEDY)


@pytest.mark.parametrize(
    "document",
    [
        {"messages": [{"role": "judge", "content": "x"}]},
        {"messages": [{"role": "user", "reasoning": "x", "content": "y"}]},
        {"messages": user({"type": "image_url", "image_url": {"url": "ftp://a.b/c"}})},
        {"messages": user({"type": "image", "image": "data:,x", "min_pixels": 9, "max_pixels": 4})},
        {"messages": user({"type": "video", "video": ["data:,x"], "start_seconds": 1})},
        {"messages": user(text("x")), "tools": [{"type": "function", "function": {"name": "a b"}}]},
        {"messages": user(text("x")), "mm_processor_kwargs": {"fps": 1, "num_frames": 2}},
        {"messages": user(text("x")), "chat_template_kwargs": {"documents": []}},
        {"messages": user(text("x\ud800"))},
    ],
)
def test_refuses_a_conversation_in_the_words_of_the_server(llm: LLM, document: dict[str, Any]) -> None:
    with pytest.raises(InputError) as refused:
        llm.chat(**document)
    assert str(refused.value) == refusal_of_the_server(document)


def refusal_of_the_server(document: dict[str, Any]) -> str:
    message_class, aliased = chat_pb2.CreateChatCompletionRequest, dict[str, str]()
    try:
        decoded = OPENAI.codec.decode(json.dumps(document).encode(), message_class)
        aliased = decoded.aliased
        parse_chat(decoded.message, CallContext(), MODEL, streaming=False)
    except (DecodeError, InvalidRequest) as error:
        return rest_failure(error, descriptor_of(message_class), aliased, "").message
    return "accepted"


def test_accepts_the_reasoning_of_an_earlier_answer(llm: LLM) -> None:
    answer = {"role": "assistant", "content": "the", "reasoning": "because"}
    conversations = [[*user(text("the")), each, *user(text("end"))] for each in (answer, answer | {"reasoning": None})]
    with_reasoning, without = llm.chat(conversations, GREEDY)
    assert with_reasoning.outputs == without.outputs, "the template has no place for it"


def test_members_that_change_nothing_are_told(llm: LLM, caplog: pytest.LogCaptureFixture) -> None:
    part = image_pil(IMAGE) | {"mood": "good", "fps": 2}
    sent, plain = llm.chat([user(part), user(image_pil(IMAGE))], GREEDY)
    assert sent == plain
    told = [f"conversations[0].messages[0].content[0].{name} changes nothing." for name in ("mood", "fps")]
    assert [record.message for record in caplog.records] == told


def test_variables_that_no_template_reads_are_told(llm: LLM, caplog: pytest.LogCaptureFixture) -> None:
    plain, sent = (
        llm.chat(user(text("the")), GREEDY),
        llm.chat(user(text("the")), GREEDY, chat_template_kwargs={"persona": "pirate"}),
    )
    assert sent == plain
    assert [record.message for record in caplog.records] == ["chat_template_kwargs.persona changes nothing."]


@pytest.mark.parametrize(
    ("prompts", "message"),
    [
        (["the", 1], r"prompts\[1\]': expected a dict, got int"),
        ([{}], r"prompts\[0\]': expected either"),
        ([{"prompt": "x", "prompt_token_ids": [1]}], r"prompts\[0\]': expected either"),
        ([{"prompt_token_ids": ["x"]}], r"prompts\[0\]\.prompt_token_ids"),
        ([{"prompt": "x", "multi_modal_uuids": {"smell": "x"}}], r"prompts\[0\]\.multi_modal_uuids\.smell"),
        ([{"prompt": "x", "multi_modal_uuids": {"image": [5]}}], r"multi_modal_uuids\.image\[0\]': expected a string"),
        (
            [{"prompt": "x", "multi_modal_uuids": {"image": 5}}],
            r"multi_modal_uuids\.image': expected a string, or a list",
        ),
        (
            [{"prompt": "x", "multi_modal_data": {"image": None}}],
            r"data\.image\[0\]': expected a URL, the bytes of a file, an upload, or the uuid",
        ),
        (
            [{"prompt": "x", "multi_modal_data": {"video": [None]}}],
            r"data\.video\[0\]': expected a URL, the bytes of a file, an upload, or the uuid",
        ),
        (
            [{"prompt": "x", "multi_modal_data": {"image": [IMAGE] * 2}, "multi_modal_uuids": {"image": "x"}}],
            r"data\.image': .*got 2 media and 1 uuids",
        ),
        ([{"prompt": "x", "multi_modal_data": {"smell": []}}], r"prompts\[0\]\.multi_modal_data\.smell"),
        (
            [{"prompt": "x", "multi_modal_data": {"image": [IMAGE]}}],
            r"data\.image\[0\]': expected one placeholder for each image input, got 0 for 1",
        ),
        ([{"prompt": PLACEHOLDER}], r"prompts\[0\]': expected one placeholder for each image input, got 1 for 0"),
        ([{"prompt": "x", "multi_modal_data": {"image": PIXELS * 1.5}}], r"image\[0\]': expected floats from 0 to 255"),
        (
            [{"prompt": "x", "multi_modal_data": {"image": PIXELS[:, :, :2]}}],
            r"image\[0\]': expected an array of uint8",
        ),
        ([{"prompt": "x", "multi_modal_data": {"image": 5}}], r"image\[0\]': expected a PIL image"),
    ],
)
def test_names_the_field_of_an_invalid_prompt(llm: LLM, prompts: list[Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        llm.generate(prompts, GREEDY)


@pytest.mark.parametrize(
    ("sampling", "message"),
    [
        ({"temperature": 0}, "'sampling_params': expected SamplingParams, got dict"),
        ([SamplingParams(), SamplingParams()], "expected one for each of 1 prompts, got 2"),
        ([], "expected one for each of 1 prompts, got 0"),
        (SamplingParams(stop_token_ids=[1 << 20]), r"'sampling_params\.stop_token_ids\[0\]': expected a token id"),
        (SamplingParams(allowed_token_ids=[1 << 20]), r"allowed_token_ids\[0\]': .*, got 1048576"),
        (SamplingParams(logit_bias={1 << 20: 1}), r"logit_bias\[1048576\]': .*, got 1048576"),
        (SamplingParams(structured_outputs={"regex": "("}), r"'sampling_params\.grammar'"),
    ],
)
def test_refuses_sampling_parameters_that_do_not_fit(llm: LLM, sampling: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        llm.generate("the", sampling)


@pytest.mark.parametrize(
    ("bad", "error", "code", "message"),
    [
        pytest.param([5] * 1024, EngineError, EngineErrorCode.PROMPT_TOO_LONG, r"\[1\]': .*1024 tokens", id="long"),
        pytest.param([100_000], InputError, None, r"prompts\[1\]\.prompt_token_ids\[0\]': .*100000", id="unknown"),
    ],
)
def test_refuses_a_batch_with_an_invalid_prompt_before_computing(
    tiny_checkpoint: Path,
    bad: list[int],
    error: type[EngineError | InputError],
    code: EngineErrorCode | None,
    message: str,
) -> None:
    llm = load(tiny_checkpoint)
    good = {"prompt_token_ids": [7] * 100}
    with pytest.raises(error, match=message) as raised:
        llm.generate([good, {"prompt_token_ids": bad}], GREEDY)
    assert raised.value.code is code
    (output,) = llm.generate(good, GREEDY)
    assert output.num_cached_tokens == 0


@pytest.mark.parametrize("limit", [1, {"count": 1, "width": 512, "height": 512}])
def test_limits_the_number_of_images(tiny_checkpoint: Path, limit: Any) -> None:
    llm = load(tiny_checkpoint, limit_mm_per_prompt={"image": limit})
    assert llm.chat(user(image_pil(IMAGE)), GREEDY)
    with pytest.raises(InputError, match=r"at most 1 image inputs \(limit_mm_per_prompt\), got 2"):
        llm.chat(user(image_pil(IMAGE), image_pil(IMAGE)), GREEDY)


def test_refuses_a_limit_for_an_unknown_kind_of_media(tiny_checkpoint: Path) -> None:
    with pytest.raises(InputError, match="smell"):
        load(tiny_checkpoint, limit_mm_per_prompt={"smell": 1})


async def test_works_inside_a_running_event_loop(llm: LLM) -> None:
    assert llm.chat(user(image_pil(IMAGE)), GREEDY)


@pytest.mark.parametrize(("progress", "shown"), [(True, True), (False, False)])
def test_shows_a_progress_bar_for_a_batch(
    llm: LLM, capsys: pytest.CaptureFixture[str], progress: bool, shown: bool
) -> None:
    llm.generate(["the", "an"], GREEDY, progress=progress)
    assert ("2/2" in capsys.readouterr().err) == shown


def test_shows_no_progress_bar_for_a_single_prompt(llm: LLM, capsys: pytest.CaptureFixture[str]) -> None:
    llm.generate("the", GREEDY)
    assert capsys.readouterr().err == ""


def test_a_lazily_opened_image_may_be_in_several_conversations(llm: LLM) -> None:
    """Pillow reads the file at the first use, and two threads that do so at once read nonsense."""
    data = png(PIL.Image.fromarray(np.random.default_rng(0).integers(0, 256, (600, 800, 3), np.uint8)))
    short = SamplingParams(temperature=0, max_tokens=1)
    for _ in range(5):
        image = PIL.Image.open(BytesIO(data))
        llm.chat([user(image_pil(image), text("the")) for _ in range(4)], short)

"""Each field of a request is honoured, echoed, ignored or refused, as docs/compatibility.md says.

The cases are the table that `dialect/fields.py` reads from the dialect; `tests/gateway/test_field_table.py` holds the
document to the same table. What an honoured member does is shown with the embedded model.
"""

from collections.abc import Callable
from typing import Any, TypeAlias

import pytest
from google.protobuf.descriptor import Descriptor

from glimpse.dialect.fields import Member, members_of
from glimpse.dialect.openai import OPENAI
from glimpse.dialect.options import descriptor_of
from glimpse.dialect.rules import Effect, JsonKind
from glimpse.engine.checkpoint.location import DEFAULT_MODEL
from glimpse.engine.checkpoint.text.tokenizer import load_tokenizer
from glimpse.openai.v1 import responses_pb2
from glimpse.v1 import chat_pb2, completion_pb2, embedding_pb2, rerank_pb2, tokenizer_pb2
from tests.e2e.requests import (
    CHAT,
    COMPLETIONS,
    EMBEDDINGS,
    IGNORED_FIELDS,
    RERANK,
    RESPONSES,
    SCORE,
    Answer,
    ask,
    chat,
)
from tests.e2e.stack import Stack
from tests.engine.replies import reply_with

TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}

REQUESTS: list[tuple[str, Descriptor, dict[str, Any]]] = [
    # the path, the request's descriptor, a minimal request
    (
        CHAT,
        descriptor_of(chat_pb2.CreateChatCompletionRequest),
        {"messages": [{"role": "user", "content": reply_with("Hi")}]},
    ),
    (COMPLETIONS, descriptor_of(completion_pb2.CreateCompletionRequest), {"prompt": reply_with("Hi")}),
    (
        EMBEDDINGS,
        descriptor_of(embedding_pb2.CreateEmbeddingsRequest),
        {"messages": [{"role": "user", "content": "Hi"}]},
    ),
    (RERANK, descriptor_of(rerank_pb2.RerankRequest), {"query": "Hi", "documents": ["a"]}),
    (SCORE, descriptor_of(rerank_pb2.ScoreRequest), {"queries": "Hi", "documents": "a"}),
    (RESPONSES, descriptor_of(responses_pb2.CreateResponseRequest), {"input": reply_with("Hi")}),
    ("/tokenize", descriptor_of(tokenizer_pb2.TokenizeRequest), {"messages": [{"role": "user", "content": "Hi"}]}),
]
Case: TypeAlias = tuple[str, dict[str, Any], Member]
CASES: list[Case] = [
    (path, least, member) for path, request, least in REQUESTS for member in members_of(OPENAI, request)
]
OUTERMOST = [case for case in CASES if "." not in case[2].path]
INNER = [
    case
    for case in CASES
    # The members of an item depend on its type: tests/server/services/test_responses.py has them.
    if "." in case[2].path and not (case[0] == RESPONSES and case[2].path.startswith("input[]"))
]
SERVED = [case for case in OUTERMOST if case[2].fields]
PROMPT_FIELDS = ("input", "messages", "prompt")
OF_A_WRONG_TYPE = {
    JsonKind.STRING: "text",
    JsonKind.NUMBER: 7,
    JsonKind.BOOLEAN: True,
    JsonKind.OBJECT: {"no such": "member"},
    JsonKind.ARRAY: [[[]]],
}
NEVER_ACCEPTED = {"no such": "member"}

SAMPLES: dict[str, Any] = {
    # a value of each field that is not refused
    "model": "nano", "messages": [{"role": "user", "content": reply_with("Hi")}], "prompt": reply_with("Hi"),
    "max_completion_tokens": 5, "max_tokens": 5, "temperature": 0.5, "top_p": 0.5, "top_k": 5, "min_p": 0.1,
    "frequency_penalty": 1, "presence_penalty": 1, "repetition_penalty": 1.1, "logit_bias": {"5": -100}, "seed": 3,
    "stop": ["x"], "stop_token_ids": [5], "min_tokens": 1, "ignore_eos": True, "logprobs": True, "top_logprobs": 0,
    "n": 2, "skip_special_tokens": False, "stream_options": {"include_usage": True},
    "response_format": {"type": "text"}, "tools": [TOOL], "tool_choice": "none", "parallel_tool_calls": True,
    "cache_salt": "s", "user": "me", "prompt_cache_key": "k", "priority": -1, "structured_outputs": {"regex": "Hi"},
    "metadata": {"a": "b"}, "service_tier": "auto", "reasoning_effort": "none", "safety_identifier": "me",
    "add_generation_prompt": False, "continue_final_message": False, "chat_template_kwargs": {},
    "media_io_kwargs": {"video": {"fps": 1}}, "mm_processor_kwargs": {"min_pixels": 3136}, "echo": True,
    "return_token_strs": True, "include_reasoning": False, "grounding": False,
    "thinking_token_budget": 5, "input": "Hi", "dimensions": 8, "encoding_format": "base64", "normalize": True,
    "query": "Hi", "documents": ["a", {"text": "b"}], "top_n": 1, "return_documents": False, "instruction": "Be good.",
    "queries": "Hi", "text_1": "Hi", "data_1": ["Hi"], "text_2": ["a"], "data_2": "a", "items": {"text": "a"},
    "pooling": "mean", "add_special_tokens": False, "use_activation": True,
    "include_stop_str_in_output": True, "return_token_ids": True, "return_timings": True, "bad_words": ["zebra"],
    "allowed_token_ids": list(range(300)), "prompt_logprobs": 1,
    "guided_json": {"type": "object"}, "guided_regex": "Hi", "guided_choice": ["Hi"], "guided_grammar": 'start: "Hi"',
}  # fmt: skip
OF_RESPONSES: dict[str, Any] = {
    # values of the fields that Responses have otherwise
    "tools": [{"type": "function", "name": "f"}], "instructions": "Be good.", "max_output_tokens": 5,
    "text": {"format": {"type": "json_object"}}, "reasoning": {"effort": "none"},
    "include": ["message.output_text.logprobs"], "store": True,
}  # fmt: skip
REQUIRED_WITH = {
    # other fields that the field requires
    "stream_options": {"stream": True},
    "parallel_tool_calls": {"tools": [TOOL]},
}

INSIDE: dict[str, dict[str, Any]] = {
    # nested fields that are refused or told, with a part that has them
    f"{outer}.content[].{name}": {"text": "a", name: {}}
    for outer in ("messages[]", "documents[]")
    for name in ("prompt_cache_breakpoint", "cache_control")
} | {
    f"{outer}.content[].image_url.{name}": {"image_url": {"url": "u", name: {}}}
    for outer in ("messages[]", "documents[]")
    for name in ("resized_height", "resized_width")
}


def cases(some: list[Case]) -> pytest.MarkDecorator:
    ids = [f"{path} {member.path}" for path, _, member in some]
    return pytest.mark.parametrize(("path", "least", "member"), some, ids=ids)


@cases(OUTERMOST)
def test_serves_or_refuses_each_parameter_by_name(
    echo_stack: Stack, path: str, least: dict[str, Any], member: Member
) -> None:
    if member.effect is Effect.IGNORED:
        told = ask(echo_stack, path, **least, **{member.path: NEVER_ACCEPTED})
        assert (told.status, told.headers[IGNORED_FIELDS]) == (200, member.path), told.text
    if member.effect is Effect.REFUSED:
        refused = ask(echo_stack, path, **least, **{member.path: NEVER_ACCEPTED})
        assert (refused.status, refused.param, refused.body["error"]["code"]) == (400, member.path, "unsupported")
    if not member.fields:
        values = [{member.path: value} for value in (None, *member.accepted)]
    else:
        samples = SAMPLES | of_responses(echo_stack, least) if path == RESPONSES else SAMPLES
        values = [{name: samples[name]} for name in (member.path, *member.aliases)]
    others = (
        {}
        if member.fields and member.path in PROMPT_FIELDS
        else without(member, least)
        | ({} if path == RESPONSES or not member.fields else REQUIRED_WITH.get(member.path, {}))
    )
    for value in values:
        served = ask(echo_stack, path, **(others | value))
        assert (served.status, served.headers.get(IGNORED_FIELDS)) == (200, None), served.text


def of_responses(stack: Stack, least: dict[str, Any]) -> dict[str, Any]:
    return OF_RESPONSES | {"previous_response_id": ask(stack, RESPONSES, **least).body["id"]}


@cases(SERVED)
def test_checks_each_served_parameter(echo_stack: Stack, path: str, least: dict[str, Any], member: Member) -> None:
    kinds = frozenset(kind for field in member.fields for kind in field.kinds)
    wrong = next((value for kind, value in OF_A_WRONG_TYPE.items() if kind not in kinds), [])
    for name in (member.path, *member.aliases):
        refused = ask(echo_stack, path, **(without(member, least) | {name: wrong}))
        assert refused.status == 400, refused.text
        assert refused.param.startswith(name)


@cases(INNER)
def test_refuses_nested_parameters_by_path(echo_stack: Stack, path: str, least: dict[str, Any], member: Member) -> None:
    answer = ask(echo_stack, path, **(least | inside(member)))
    wanted = member.path.replace("[]", "[0]")
    if member.effect is Effect.IGNORED:
        assert (answer.status, answer.headers[IGNORED_FIELDS]) == (200, wanted), answer.text
    else:
        assert (answer.status, answer.param) == (400, wanted), answer.text
        assert answer.body["error"]["code"] == "unsupported"
    for value in member.accepted:
        assert ask(echo_stack, path, **(least | inside(member, value))).status == 200


def without(member: Member, fields: dict[str, Any]) -> dict[str, Any]:
    """Returns the fields of a request without this one, which may have one name only."""
    return {name: value for name, value in fields.items() if name != member.path}


def inside(member: Member, value: Any = NEVER_ACCEPTED) -> dict[str, Any]:
    """Returns fields of a request in which this one has a value."""
    if member.path in INSIDE:
        part = INSIDE[member.path]
        content = [{"type": next(iter(part)), **part}]
        if member.path.startswith("documents"):
            return {"documents": [{"content": content}]}
        return {"messages": [{"role": "user", "content": content}]}
    if member.path.startswith("input[]."):
        inner = Member(path=member.path.removeprefix("input[]."), effect=member.effect)
        return {"messages": None, "input": [inside(inner, value)]}
    outer, *names = member.path.split(".")
    for name in reversed(names):
        value = {name.removesuffix("[]"): [value]} if name.endswith("[]") else {name: value}
    function = {"type": "function", "name": "f", "function": {"name": "f"}}  # as chat and as Responses have it
    if outer == "messages[]" and "tool_calls" in value:
        value = {"tool_calls": [function | call for call in value["tool_calls"]]}
    if outer == "messages[]":
        return {"messages": [{"role": "user", "content": reply_with("Hi"), **value}]}
    if outer == "tools[]":
        value = {"function": {"name": "f", **value["function"]}} if "function" in value else value
        return {"tools": [function | value]}
    others: dict[str, Any] = {
        "structured_outputs": {"regex": "Hi"},
        "response_format": {"type": "json_object"},
        "tool_choice": {"type": "allowed_tools"},
    }.get(outer, {})
    return {outer: others | value} | ({"stream": True} if outer == "stream_options" else {})


@pytest.mark.parametrize("tier", ["default", "flex", "scale", "priority", "fast"])
def test_every_service_tier_of_openai_is_the_default_one(echo_stack: Stack, tier: str) -> None:
    assert chat(echo_stack, reply_with("Hi"), service_tier=tier).body["service_tier"] == "default"


def test_echoes_only_the_documented_parameters(echo_stack: Stack) -> None:
    echoed = chat(
        echo_stack, reply_with("Hi"), metadata={"a": "b"}, service_tier="auto", user="me", safety_identifier="me"
    ).body
    assert (echoed["metadata"], echoed["service_tier"]) == ({"a": "b"}, "default")
    assert set(echoed) - set(chat(echo_stack, reply_with("Hi")).body) == {"metadata", "service_tier"}


def num_tokens(answer: Answer) -> int:
    return answer.body["usage"]["completion_tokens"]


I = str(load_tokenizer(DEFAULT_MODEL).encode("I")[0])  # noqa: E741 - the token that it is
GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 12}
EFFECTS: list[tuple[dict[str, Any], Callable[[Answer, Answer], bool]]] = [
    # fields, and a condition on the greedy answers without and with them
    ({"max_tokens": 2}, lambda plain, answer: num_tokens(answer) == 2 < num_tokens(plain)),
    ({"max_tokens": None, "max_completion_tokens": 2},
        lambda plain, answer: num_tokens(answer) == 2 < num_tokens(plain)),
    ({"n": 3}, lambda plain, answer: [each["message"]["content"] for each in answer.body["choices"]]
        == [plain.content] * 3 and num_tokens(answer) == 3 * num_tokens(plain)),
    ({"n": 128, "max_tokens": 1}, lambda plain, answer: len(answer.body["choices"]) == 128
        and answer.body["usage"]["prompt_tokens"] == plain.body["usage"]["prompt_tokens"]),
    ({"logprobs": True, "top_logprobs": 2}, lambda plain, answer: bytes(
        byte for token in answer.body["choices"][0]["logprobs"]["content"] for byte in token["bytes"]
    ).decode(errors="replace") == plain.content),
    ({"logit_bias": {I: 100}}, lambda plain, answer: answer.content == "I" * 12),
    ({"allowed_token_ids": [int(I)]}, lambda _, answer: answer.content == "I" * 12),
    ({"logit_bias": {I: 100}, "bad_words": ["I"]}, lambda _, answer: "I" not in answer.content),
    ({"logit_bias": {I: 100}, "stop": "III"}, lambda _, answer: answer.content == ""
        and answer.body["choices"][0]["finish_reason"] == "stop"),
    ({"logit_bias": {I: 100}, "stop": "III", "include_stop_str_in_output": True},
        lambda _, answer: answer.content == "III" and answer.body["choices"][0]["finish_reason"] == "stop"),
    ({"logit_bias": {I: 100}, "stop": "III", "min_tokens": 6}, lambda _, answer: answer.content == "I" * 4),
    ({"logit_bias": {I: 100}, "return_token_ids": True}, lambda plain, answer: "prompt_token_ids" not in plain.body
        and answer.body["choices"][0]["token_ids"] == [int(I)] * 12
        and len(answer.body["prompt_token_ids"]) == answer.body["usage"]["prompt_tokens"]),
    ({"return_timings": True}, lambda plain, answer: "timings" not in plain.body["usage"]
        and sum(answer.body["usage"]["timings"]["first_token_stages"].values())
        == pytest.approx(answer.body["usage"]["timings"]["first_token_milliseconds"], abs=0.01)),
    ({"logit_bias": {I: 100}, "stop_token_ids": [int(I)], "min_tokens": 0},
        lambda _, answer: num_tokens(answer) == 1),
    ({"structured_outputs": {"choice": ["yes", "no"]}}, lambda _, answer: answer.content in ("yes", "no")),
    ({"structured_outputs": {"regex": "[ab]{3}"}}, lambda _, answer: len(answer.content) == 3
        and set(answer.content) <= {"a", "b"}),
    ({"structured_outputs": {"grammar": 'start: "x" "y"'}}, lambda _, answer: answer.content == "xy"),
    ({"structured_outputs": {"json": {"const": 5}}}, lambda _, answer: answer.content == "5"),
    ({"guided_json": '{"const": 5}'}, lambda _, answer: answer.content == "5"),
    ({"guided_choice": ["yes", "no"]}, lambda _, answer: answer.content in ("yes", "no")),
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": {"enum": [7]}}}},
        lambda _, answer: answer.content == "7"),
    ({"add_generation_prompt": False}, lambda plain, answer: answer.body["usage"]["prompt_tokens"]
        < plain.body["usage"]["prompt_tokens"]),
    ({"cache_salt": "apart"}, lambda _, answer: answer.body["usage"]["prompt_tokens_details"]["cached_tokens"] == 0),
]  # fmt: skip


@pytest.mark.parametrize(("members", "holds"), EFFECTS, ids=[" ".join(members) for members, _ in EFFECTS])
def test_honoured_parameters_change_the_answer(
    stack: Stack, members: dict[str, Any], holds: Callable[[Answer, Answer], bool]
) -> None:
    question = "Tell me a number between one and a thousand, and then tell me why you like it."
    plain, answer = (chat(stack, question, **(GREEDY | some)) for some in ({}, members))
    assert (plain.status, answer.status) == (200, 200), answer.text
    assert holds(plain, answer), answer.text


def test_seed_reproduces_distinct_choices(stack: Stack) -> None:
    # Past its own end of the answer, the model's distribution is flat.
    members: dict[str, Any] = {"n": 3, "seed": 5, "temperature": 2, "min_tokens": 64, "max_tokens": 64}
    first, second = ([choice["message"] for choice in chat(stack, "Say.", **members).body["choices"]] for _ in "ab")
    assert first == second
    assert len({message["content"] for message in first}) == 3
    (alone,) = chat(stack, "Say.", **(members | {"n": 1, "seed": 6})).body["choices"]
    assert alone["message"] == first[1]


def test_completions_stream_the_token_ids_of_each_prompt(stack: Stack) -> None:
    members: dict[str, Any] = {"prompt": ["one", "two"], "return_token_ids": True, "max_tokens": 3, "temperature": 0}
    whole = ask(stack, COMPLETIONS, **members).body["choices"]
    assert [choice["prompt_token_ids"] for choice in whole] == [
        ask(stack, "/tokenize", prompt=prompt).body["tokens"] for prompt in members["prompt"]
    ]
    chunks = [event["choices"][0] for event in ask(stack, COMPLETIONS, **members, stream=True).events]
    for choice in whole:
        own = [chunk for chunk in chunks if chunk["index"] == choice["index"]]
        assert [id_ for chunk in own for id_ in chunk.get("token_ids", [])] == choice["token_ids"]
        prompts = [chunk.get("prompt_token_ids") for chunk in own]
        assert prompts == [choice["prompt_token_ids"], *[None] * (len(own) - 1)]


def test_base_url_may_lack_the_version(stack: Stack) -> None:
    members: dict[str, Any] = {"messages": [{"role": "user", "content": "Hello."}], **GREEDY}
    short, full = (ask(stack, path, **members) for path in (CHAT.removeprefix("/v1"), CHAT))
    assert (short.status, short.content) == (200, full.content)

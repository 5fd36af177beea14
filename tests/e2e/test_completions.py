"""POST /v1/completions, /tokenize and /detokenize through Envoy."""

import math
from typing import Any

import pytest
from openai import OpenAI

from tests.e2e.requests import COMPLETIONS, ask
from tests.e2e.stack import Stack
from tests.engine.replies import reply_with


def texts(stack: Stack, **members: Any) -> list[str]:
    answer = ask(stack, COMPLETIONS, **members)
    assert answer.status == 200, answer.text
    return [choice["text"] for choice in answer.body["choices"]]


def test_accepts_texts_and_token_ids_as_prompts(echo_stack: Stack) -> None:
    ids = ask(echo_stack, "/tokenize", prompt=reply_with("ä b")).body["tokens"]
    assert texts(echo_stack, prompt=reply_with("ä b")) == texts(echo_stack, prompt=ids) == ["ä b"]
    assert texts(echo_stack, prompt=[reply_with("a"), reply_with("b")]) == ["a", "b"]
    assert texts(echo_stack, prompt=[ids, ids], n=2, echo=True) == [reply_with("ä b") + "ä b"] * 4


def test_completion_stream_equals_the_unary_response(echo_stack: Stack) -> None:
    members: dict[str, Any] = {"prompt": [reply_with("Hello, ä"), reply_with("you")], "n": 2, "echo": True}
    streamed = ask(echo_stack, COMPLETIONS, stream=True, stream_options={"include_usage": True}, **members).events
    *events, usage = streamed
    joined = ["".join(e["choices"][0]["text"] for e in events if e["choices"][0]["index"] == i) for i in range(4)]
    assert joined == texts(echo_stack, **members)
    assert sorted(e["choices"][0]["index"] for e in events if e["choices"][0]["finish_reason"]) == [0, 1, 2, 3]
    assert (usage["choices"], usage["usage"]) == ([], ask(echo_stack, COMPLETIONS, **members).body["usage"])


@pytest.mark.parametrize(
    ("members", "param"),
    [
        ({}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": [1, "a"]}, "prompt[1]"),
        ({"prompt": [10**6]}, "prompt"),
        ({"prompt": "a<|image_pad|>"}, "prompt"),
        ({"prompt": "a", "suffix": "b"}, "suffix"),
        ({"prompt": "a", "best_of": 2}, "best_of"),
        ({"prompt": "a", "logprobs": 21}, "logprobs"),
        ({"prompt": ["a"] * 100, "n": 2}, "n"),
        ({"prompt": "a", "stream_options": {}}, "stream_options"),
    ],
)
def test_refuses_invalid_completion_requests(echo_stack: Stack, members: dict[str, Any], param: str) -> None:
    answer = ask(echo_stack, COMPLETIONS, **members)
    assert answer.status == 400, answer.text
    assert answer.param.startswith(param)


def test_openai_client_reads_logprobs_and_offsets(client: OpenAI) -> None:
    completion = client.completions.create(model="nano", prompt="One two", temperature=0, max_tokens=6, logprobs=2)
    (choice,) = completion.choices
    logprobs = choice.logprobs
    assert logprobs is not None
    assert logprobs.tokens
    assert logprobs.token_logprobs
    assert logprobs.top_logprobs
    assert logprobs.text_offset
    assert "".join(logprobs.tokens) == choice.text
    for token, own, top, offset in zip(
        logprobs.tokens, logprobs.token_logprobs, logprobs.top_logprobs, logprobs.text_offset, strict=True
    ):
        assert choice.text[offset:].startswith(token)
        assert math.isclose(max(top.values()), own, abs_tol=1e-5)
    client.close()


def test_echo_returns_the_log_probabilities_of_the_prompt(client: OpenAI, stack: Stack) -> None:
    members: dict[str, Any] = {"prompt": "How are you?", "max_tokens": 1, "temperature": 0}
    (choice,) = client.completions.create(model="nano", echo=True, logprobs=1, **members).choices
    logprobs = choice.logprobs
    assert logprobs is not None
    assert (logprobs.token_logprobs or [0])[0] is None
    assert (logprobs.top_logprobs or [{}])[0] is None
    assert "".join(logprobs.tokens or []) == choice.text
    (scored,) = ask(stack, COMPLETIONS, prompt_logprobs=0, **members).body["choices"]
    first, *others = scored["prompt_logprobs"]
    assert first is None
    own = [own for entry in others for own in entry.values()]
    assert [entry["logprob"] for entry in own] == (logprobs.token_logprobs or [])[1 : 1 + len(own)]
    assert "".join(entry["decoded_token"] for entry in own) in choice.text


def test_detokenize_reverses_tokenize(echo_stack: Stack) -> None:
    text = "Grüße, <|im_end|> 🦉"
    tokenized = ask(echo_stack, "/tokenize", prompt=text, return_token_strs=True).body
    assert tokenized["count"] == len(tokenized["tokens"]) == len(tokenized["token_strs"])
    assert ask(echo_stack, "/detokenize", tokens=tokenized["tokens"]).body == {"prompt": text}


def test_tokenizes_a_conversation_as_chat_does(echo_stack: Stack) -> None:
    messages = [{"role": "user", "content": reply_with("Hi")}]
    answered = ask(echo_stack, "/v1/chat/completions", messages=messages).body["usage"]["prompt_tokens"]
    tokenized = ask(echo_stack, "/tokenize", messages=messages).body
    assert (tokenized["count"], tokenized["max_model_len"]) == (answered, 8192)
    assert ask(echo_stack, "/tokenize", messages=messages, add_generation_prompt=False).body["count"] < answered


@pytest.mark.parametrize(
    ("path", "members", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "a", "messages": [{"role": "user", "content": "a"}]}, "messages"),
        ("/tokenize", {"prompt": "a", "model": "gpt"}, "model"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": [-1]}, "tokens[0]"),
        ("/detokenize", {"tokens": [10**6]}, "tokens[0]"),
    ],
)
def test_refuses_invalid_tokenize_requests(echo_stack: Stack, path: str, members: dict[str, Any], param: str) -> None:
    answer = ask(echo_stack, path, **members)
    assert answer.status in (400, 404)
    assert answer.param == param

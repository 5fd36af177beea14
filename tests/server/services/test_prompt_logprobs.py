"""The log-probabilities of prompts are transformers', in one chunk or several, whole and streamed, apart and echoed."""

import math
from pathlib import Path

import grpc
import pytest
import torch

from glimpse.engine.protocol.messages import Generate, Sibling
from glimpse.engine.protocol.sampling_params import SamplingParams
from glimpse.v1 import chat_pb2_grpc, completion_pb2, completion_pb2_grpc, generation_pb2
from tests.oracles.qwen_vl import load_oracle
from tests.server.requests import request, user

Chat = chat_pb2_grpc.ChatServiceStub
Completions = completion_pb2_grpc.CompletionServiceStub


def text(words: str, **members: object) -> completion_pb2.CreateCompletionRequest:
    generation = generation_pb2.GenerationOptions(temperature=0, max_completion_tokens=4, return_token_ids=True)
    return completion_pb2.CreateCompletionRequest(
        prompts=[completion_pb2.Prompt(text=words)],
        generation=generation,
        **members,  # pyright: ignore[reportArgumentType] - as protobuf has them
    )


@torch.inference_mode()
def check(prompt: list[int], scores: list[generation_pb2.PromptLogprobs], checkpoint: Path, *, num_top: int) -> None:
    assert len(scores) == len(prompt)
    assert not scores[0].tokens
    expected = load_oracle(checkpoint)(torch.tensor([prompt])).logits[0].log_softmax(-1)
    for position, own in enumerate(scores[1:]):
        row, token_id = expected[position], prompt[position + 1]
        found = own.tokens[token_id]
        assert found.logprob == pytest.approx(row[token_id].item(), abs=1e-3)
        assert found.rank == pytest.approx(int((row > row[token_id]).sum()) + 1, abs=1)
        assert set(row.topk(num_top).indices.tolist()) <= set(own.tokens)


@pytest.mark.parametrize("words", ["the other one", "the end of " * 400], ids=["one chunk", "several chunks"])
def test_equal_the_reference(chat: Chat, tiny_checkpoint: Path, words: str) -> None:
    wire = request(user(words), prompt_logprobs=2, return_token_ids=True, max_completion_tokens=2)
    chat.CreateChatCompletion(wire)
    whole = chat.CreateChatCompletion(wire)  # whose prefix is cached
    check(list(whole.prompt_token_ids), list(whole.prompt_logprobs), tiny_checkpoint, num_top=2)
    first, *others = chat.StreamChatCompletion(wire)
    assert list(first.prompt_logprobs) == list(whole.prompt_logprobs)
    assert not any(chunk.prompt_logprobs for chunk in others)


def test_each_answer_has_those_of_its_prompt(channel: grpc.Channel) -> None:
    wire = text("the end", echo=True)
    wire.prompts.append(completion_pb2.Prompt(text="on and on"))
    wire.generation.MergeFrom(generation_pb2.GenerationOptions(prompt_logprobs=1, n=2))
    choices = Completions(channel).CreateCompletion(wire).choices
    assert [len(choice.prompt_logprobs) for choice in choices] == [len(choice.prompt_token_ids) for choice in choices]
    assert choices[0].prompt_logprobs == choices[1].prompt_logprobs != choices[2].prompt_logprobs
    assert not any(choice.HasField("logprobs") for choice in choices)


def test_the_first_answer_alone_scores_its_prompt() -> None:
    sampling = SamplingParams(prompt_logprobs=3, seed=5)
    siblings = [Sibling(request_id="b", seed=6), Sibling(request_id="c", seed=7)]
    sent = Generate(request_id="a", token_ids=[1, 2], media=[], sampling=sampling, siblings=siblings)
    assert [each.sampling.prompt_logprobs for each in sent.each()] == [3, None, None]


def test_an_echoed_prompt_has_log_probabilities(channel: grpc.Channel, tiny_checkpoint: Path) -> None:
    wire = text("the end", echo=True, num_logprobs=2)
    (choice,) = Completions(channel).CreateCompletion(wire).choices
    logprobs, prompt = choice.logprobs, choice.prompt_token_ids
    assert "".join(logprobs.tokens) == choice.text
    placed = zip(logprobs.text_offset, logprobs.tokens, strict=True)
    assert all(choice.text[start:].startswith(token) for start, token in placed)
    assert math.isnan(logprobs.token_logprobs[0])
    assert not logprobs.top_logprobs[0].logprobs
    assert not choice.prompt_logprobs
    with torch.inference_mode():
        ids = torch.tensor([[*prompt, *choice.token_ids]])
        expected = load_oracle(tiny_checkpoint)(ids).logits[0].log_softmax(-1)[:-1].gather(1, ids[0, 1:, None])
    assert list(logprobs.token_logprobs[1:]) == pytest.approx(expected.flatten().tolist(), abs=1e-3)
    chunks = [chunk.choices[0] for chunk in Completions(channel).StreamCompletion(wire)]
    assert [token for chunk in chunks for token in chunk.logprobs.tokens] == list(logprobs.tokens)
    assert [offset for chunk in chunks for offset in chunk.logprobs.text_offset] == list(logprobs.text_offset)


@pytest.mark.parametrize("as_ids", [False, True], ids=["text", "token ids"])
def test_an_echoed_prompt_has_its_special_tokens_and_offsets_in_characters(channel: grpc.Channel, as_ids: bool) -> None:
    words = "é😀<|im_end|>the"
    wire = text(words, echo=True, num_logprobs=0)
    if as_ids:
        (echoed,) = Completions(channel).CreateCompletion(wire).choices
        wire.prompts[0].token_ids.ids.extend(echoed.prompt_token_ids)
    (choice,) = Completions(channel).CreateCompletion(wire).choices
    assert choice.text.startswith(words)
    offsets = dict(zip(choice.logprobs.tokens, choice.logprobs.text_offset, strict=True))
    assert {offset: words[offset:] for offset in offsets.values()}.items() >= {(2, "<|im_end|>the"), (12, "the")}
    assert offsets["<|im_end|>"] == 2
    assert sum(offset < len(words) for offset in choice.logprobs.text_offset) == len(choice.prompt_token_ids)


def test_a_prompt_of_one_token_has_one_entry_without_any(channel: grpc.Channel) -> None:
    wire = text("", echo=True)
    wire.prompts[0].token_ids.ids.append(20)
    wire.generation.MergeFrom(generation_pb2.GenerationOptions(prompt_logprobs=1, ignore_eos=True))
    wire.generation.max_completion_tokens = 64  # more than one event may have
    (choice,) = Completions(channel).CreateCompletion(wire).choices
    assert len(choice.token_ids) == 64
    assert list(choice.prompt_logprobs) == [generation_pb2.PromptLogprobs()]
    chunks = [chunk.choices[0] for chunk in Completions(channel).StreamCompletion(wire)]
    assert [score for chunk in chunks for score in chunk.prompt_logprobs] == list(choice.prompt_logprobs)

"""The tables of members: they cover what clients send, and docs/compatibility.md is up to date."""

import re

import pytest
from google.protobuf.descriptor import Descriptor
from openai.types import completion_create_params, embedding_create_params
from openai.types.chat import completion_create_params as chat_create_params
from openai.types.responses import response_create_params

from glimpse.anthropic.v1 import anthropic_pb2
from glimpse.dialect.anthropic import ANTHROPIC
from glimpse.dialect.bindings import bindings
from glimpse.dialect.fields import members_of
from glimpse.dialect.openai import OPENAI
from glimpse.dialect.options import descriptor_of, http_option
from glimpse.dialect.rules import Dialect, Effect
from glimpse.gateway.field_table import with_tables
from glimpse.openai.v1 import openai_pb2, responses_pb2
from glimpse.v1 import chat_pb2, completion_pb2, embedding_pb2, rerank_pb2, tokenizer_pb2
from tests.paths import ROOT

CHAT = descriptor_of(chat_pb2.CreateChatCompletionRequest)
COMPLETION = descriptor_of(completion_pb2.CreateCompletionRequest)
EMBEDDINGS = descriptor_of(embedding_pb2.CreateEmbeddingsRequest)
RERANK = descriptor_of(rerank_pb2.RerankRequest)
SCORE = descriptor_of(rerank_pb2.ScoreRequest)
RESPONSE = descriptor_of(responses_pb2.CreateResponseRequest)
MESSAGE = descriptor_of(anthropic_pb2.CreateMessageRequest)
TOKENIZE = descriptor_of(tokenizer_pb2.TokenizeRequest)

VLLM_SAMPLING = [
    "use_beam_search", "top_k", "min_p", "repetition_penalty", "length_penalty", "stop_token_ids",
    "include_stop_str_in_output", "ignore_eos", "min_tokens", "skip_special_tokens", "spaces_between_special_tokens",
    "truncate_prompt_tokens", "prompt_logprobs", "allowed_token_ids", "bad_words", "response_format",
    "structured_outputs", "priority", "request_id", "logits_processors", "return_tokens_as_token_ids",
    "return_token_ids", "cache_salt", "kv_transfer_params", "vllm_xargs", "guided_json", "guided_regex",
    "guided_choice", "guided_grammar", "guided_decoding_backend", "guided_whitespace_pattern", "repetition_detection",
    "add_special_tokens", "echo", "detokenize", "early_stopping", "extra_args", "flat_logprobs", "guided_decoding",
    "logprob_token_ids", "skip_reading_prefix_cache",
]  # fmt: skip
VLLM_CHAT = [
    "add_generation_prompt", "continue_final_message", "documents", "chat_template", "chat_template_kwargs",
    "media_io_kwargs", "mm_processor_kwargs", "include_reasoning", "thinking_token_budget",
]  # fmt: skip
VLLM_EMBEDDINGS = [
    "messages", "truncate_prompt_tokens", "truncation_side", "add_special_tokens", "priority", "request_id",
    "embed_dtype", "endianness", "normalize", "use_activation", "mm_processor_kwargs", "add_generation_prompt",
    "continue_final_message", "chat_template", "chat_template_kwargs", "media_io_kwargs", "cache_salt",
]  # fmt: skip
VLLM_SCORING = [
    "model", "documents", "instruction", "truncate_prompt_tokens", "truncation_side", "max_tokens_per_query",
    "max_tokens_per_doc", "use_activation", "chat_template_kwargs", "mm_processor_kwargs", "priority", "request_id",
    "user", "cache_salt",
]  # fmt: skip
VLLM_RERANK = ["query", "top_n", "return_documents"]
VLLM_SCORE = ["queries", "text_1", "text_2", "data_1", "data_2", "items"]
VLLM_TOKENIZE = [
    "model", "prompt", "messages", "tools", "add_generation_prompt", "continue_final_message", "add_special_tokens",
    "return_token_strs", "chat_template", "chat_template_kwargs", "media_io_kwargs", "mm_processor_kwargs",
]  # fmt: skip

KNOWN = [
    (CHAT, {*chat_create_params.CompletionCreateParamsBase.__annotations__, *VLLM_SAMPLING, *VLLM_CHAT}),
    (COMPLETION, {*completion_create_params.CompletionCreateParamsBase.__annotations__, *VLLM_SAMPLING}),
    (EMBEDDINGS, {*embedding_create_params.EmbeddingCreateParams.__annotations__, *VLLM_EMBEDDINGS}),
    (RERANK, {*VLLM_SCORING, *VLLM_RERANK}),
    (SCORE, {*VLLM_SCORING, *VLLM_SCORE}),
    (RESPONSE, {*response_create_params.ResponseCreateParamsBase.__annotations__}),
    (TOKENIZE, set(VLLM_TOKENIZE)),
]


@pytest.mark.parametrize(
    ("request_type", "known"),
    KNOWN,
    ids=["chat", "completion", "embeddings", "rerank", "score", "responses", "tokenize"],
)
def test_tables_cover_the_members_of_other_apis(request_type: object, known: set[str]) -> None:
    placed = {name for member in members_of(OPENAI, request_type) for name in (member.path, *member.aliases)}  # pyright: ignore[reportArgumentType] - a table's row
    assert known - placed == set()


ORDER_OR_FORM = {"priority", "stream_options"}
"""What changes no answer."""


@pytest.mark.parametrize(("dialect", "request_type"), [(ANTHROPIC, MESSAGE), (OPENAI, RESPONSE), (OPENAI, COMPLETION)])
def test_what_chat_honours_no_other_request_ignores(dialect: Dialect, request_type: Descriptor) -> None:
    chat = [member for member in members_of(OPENAI, CHAT) if member.effect is Effect.HONOURED]
    honoured = {name for member in chat for name in (member.path, *member.aliases) if not {".", "["} & {*name}}
    placed = {name for member in members_of(dialect, request_type) for name in (member.path, *member.aliases)}
    assert "temperature" in honoured
    assert "guided_json" in honoured
    assert honoured - placed <= ORDER_OR_FORM


OF_OTHER_SERVERS = {"mirostat", "typical_p", "xtc_probability", "stopping_strings", "random_seed", "lora_path"}
"""What would change an answer."""


@pytest.mark.parametrize(
    ("dialect", "request_type"), [(OPENAI, CHAT), (OPENAI, COMPLETION), (OPENAI, RESPONSE), (ANTHROPIC, MESSAGE)]
)
def test_samplers_of_other_servers_are_refused_in_each_dialect(dialect: Dialect, request_type: Descriptor) -> None:
    refused = {member.path for member in members_of(dialect, request_type) if member.effect is Effect.REFUSED}
    assert refused >= OF_OTHER_SERVERS


def test_every_json_request_has_a_table() -> None:
    document = (ROOT / "docs/compatibility.md").read_text()
    requests = {
        binding.unary.input_type.full_name
        for facade in (
            openai_pb2.DESCRIPTOR.services_by_name["OpenAIService"],
            anthropic_pb2.DESCRIPTOR.services_by_name["AnthropicService"],
        )
        for binding in bindings(facade)
        if http_option(binding.facade).body and binding.form is None
    }
    with_table = set(re.findall(r"<!-- members of (\S+) -->", document))
    assert with_table == requests


def test_tables_are_up_to_date() -> None:
    document = (ROOT / "docs/compatibility.md").read_text()
    assert with_tables(document, ROOT) == document


def test_refused_members_have_a_reason() -> None:
    refused = [member for member in members_of(OPENAI, CHAT) if member.effect is Effect.REFUSED]
    assert refused
    assert [member.path for member in refused if not member.reason] == []

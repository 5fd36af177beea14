"""Parses what callers of `LLM.embed` pass."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from glimpse.engine.protocol.pooling_params import PoolingParams
from glimpse.offline.documents import parse
from glimpse.offline.fields import known_fields
from glimpse.offline.prompt_inputs import OfflineRequest, parse_conversation, parse_prompt
from glimpse.server.parse.pooling import parse_embedding_request
from glimpse.server.request import TextPrompt
from glimpse.server.served_model import ServedModel
from glimpse.v1.embedding_pb2 import CreateEmbeddingsRequest


def parse_input(given: object, field: str, model: ServedModel, *, add_special_tokens: bool) -> OfflineRequest:
    """Parses a prompt as `LLM.generate` takes it, or a dict with the `messages` of a conversation.

    Raises:
        InputError: it is something else.
    """
    if isinstance(given, Mapping) and "messages" in given:
        fields = known_fields(given, field, known=("messages", "add_generation_prompt", "chat_template_kwargs"))
        options = {"add_generation_prompt": False, **fields}
        return parse_conversation(options.pop("messages"), f"{field}.messages", options, model, f"{field}.")
    request = parse_prompt(given, field, model)
    if not isinstance(request.prompt, TextPrompt):
        return request
    return replace(request, prompt=replace(request.prompt, add_special_tokens=add_special_tokens))


def parse_pooling(options: Mapping[str, object], model: ServedModel) -> PoolingParams:
    """Parses the members of a request for embeddings that stand beside its input. Raises InputError."""
    parse_request = partial(parse_embedding_request, model=model)
    return parse({"input": "", **options}, CreateEmbeddingsRequest, parse_request, call="LLM.embed()").pooling

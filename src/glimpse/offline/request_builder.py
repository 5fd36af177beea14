"""Turns the parsed inputs of `LLM` into the engine's requests: loads their media and builds their prompts.

What the engine would refuse is refused here, before anything is computed.
"""

import itertools
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import assert_never

from glimpse.engine.checkpoint.families.token_layout import TokenLayout
from glimpse.engine.checkpoint.grammar.unenforced_log import UnenforcedLog
from glimpse.engine.checkpoint.text.conversation import filled
from glimpse.engine.checkpoint.text.grammar_check import GrammarChecker, GrammarError
from glimpse.engine.checkpoint.text.media_inputs import MediaLayouts, media_inputs
from glimpse.engine.checkpoint.text.prompt import Prompt, PromptBuilder
from glimpse.engine.checkpoint.text.slots import PlaceholderError
from glimpse.engine.core.core import Core
from glimpse.engine.errors import EngineError, TemplateError
from glimpse.engine.protocol.messages import Embed, Generate, MediaInput, Sibling
from glimpse.engine.protocol.pooling_params import PoolingParams
from glimpse.engine.protocol.sampling_params import Grammar, SamplingParams
from glimpse.media.input_loader import LoadedInput, field_of, media_of
from glimpse.media.inputs import EmbeddingInput
from glimpse.media.kind import MediaKind, parse_limit
from glimpse.offline.fields import InputError, known_fields
from glimpse.offline.media.media_loading import OfflineMedia
from glimpse.offline.prompt_inputs import OfflineRequest
from glimpse.offline.sampling_inputs import parse_sampling
from glimpse.server.request import Conversation, PromptSource, TextPrompt, TokenPrompt
from glimpse.server.served_model import ServedModel


class RequestBuilder:
    """Builds the requests of one `LLM`."""

    def __init__(
        self,
        *,
        core: Core,
        prompts: PromptBuilder,
        layouts: MediaLayouts,
        media: OfflineMedia,
        accepts_embeddings: bool,
        model: ServedModel,
        seed: int | None,
    ) -> None:
        """
        Args:
            model: What sampling parameters are checked against.
            seed: Seed of the seeds of prompts that have none; None: their sampling is not repeatable.
        """
        self._core = core
        self._prompts = prompts
        self._layouts = layouts
        self._grammars = GrammarChecker(prompts.tokenizer)
        self._log = UnenforcedLog()
        self._media = media
        self._accepts_embeddings = accepts_embeddings
        self._model = model
        self._seeds = None if seed is None else random.Random(seed)  # noqa: S311 - no secret
        self._request_ids = (str(number) for number in itertools.count())

    def generates(
        self,
        requests: Sequence[OfflineRequest],
        sampling_params: SamplingParams | Sequence[SamplingParams],
        adapter: str,
    ) -> list[Generate]:
        """Returns requests for completions. `sampling_params` are for all, or one for each.

        Raises:
            InputError: a request is invalid.
            EngineError: a prompt is too long.
        """
        samplings = self._one_for_each(sampling_params, len(requests))
        grammars = self._enforced_grammars(samplings)
        return [
            self._generate(request, loaded, self._engine_params(sampling, grammars), adapter)
            for (request, loaded), sampling in zip(self._with_media(requests), samplings, strict=True)
        ]

    def embeds(self, requests: Sequence[OfflineRequest], pooling: PoolingParams, adapter: str) -> list[Embed]:
        """Returns requests for embeddings.

        Raises:
            InputError: a request is invalid.
            EngineError: a prompt is too long.
        """
        embeds: list[Embed] = []
        for request, loaded in self._with_media(requests):
            prompt, inputs = self._prompt(request, loaded)
            request_id = next(self._request_ids)
            embed = Embed(
                request_id=request_id, token_ids=prompt.token_ids, media=inputs, pooling=pooling, adapter=adapter
            )
            self._check(embed, request)
            embeds.append(embed)
        return embeds

    def _with_media(self, requests: Sequence[OfflineRequest]) -> list[tuple[OfflineRequest, list[LoadedInput]]]:
        """Loads the media of all requests and returns them with their request."""
        for request in requests:
            self._check_media(request)
        return list(zip(requests, self._media.load([request.media for request in requests]), strict=True))

    def _one_for_each(
        self, sampling_params: SamplingParams | Sequence[SamplingParams], num_requests: int
    ) -> Sequence[SamplingParams]:
        if not isinstance(sampling_params, list | tuple):
            return [parse_sampling(sampling_params, "sampling_params", self._model)] * num_requests
        if len(sampling_params) != num_requests:
            message = f"expected one for each of {num_requests} prompts, got {len(sampling_params)}"
            raise InputError("sampling_params", message)
        return [
            parse_sampling(each, f"sampling_params[{index}]", self._model) for index, each in enumerate(sampling_params)
        ]

    def _engine_params(
        self, sampling: SamplingParams, grammars: Mapping[Grammar | None, Grammar | None]
    ) -> SamplingParams:
        seed = sampling.seed
        if seed is None and self._seeds is not None:
            seed = self._seeds.getrandbits(62)
        words = self._prompts.tokenizer.spell_words(sampling.bad_words)
        return replace(sampling, bad_word_token_ids=words, seed=seed, grammar=grammars[sampling.grammar])

    def _enforced_grammars(self, samplings: Sequence[SamplingParams]) -> dict[Grammar | None, Grammar | None]:
        """Returns what can be enforced of each grammar, and logs the rest."""
        enforced: dict[Grammar | None, Grammar | None] = {None: None}
        for grammar in {sampling.grammar for sampling in samplings if sampling.grammar is not None}:
            try:
                checked = self._grammars.check(grammar)
            except GrammarError as error:
                raise InputError("sampling_params.grammar", str(error)) from error
            self._log.tell(f"sampling_params.grammar{pointer}" for pointer in checked.unenforced)
            enforced[grammar] = checked.grammar
        return enforced

    def _check_media(self, request: OfflineRequest) -> None:
        for medium in request.media:
            if isinstance(medium, EmbeddingInput) and not self._accepts_embeddings:
                raise InputError(medium.field, "embeddings are only accepted with LLM(enable_mm_embeds=True)")

    def _generate(
        self, request: OfflineRequest, loaded: Sequence[LoadedInput], sampling: SamplingParams, adapter: str
    ) -> Generate:
        prompt, inputs = self._prompt(request, loaded)
        request_id, seed = next(self._request_ids), sampling.seed
        siblings = [
            Sibling(request_id=f"{request_id}.{index}", seed=None if seed is None else seed + index)
            for index in range(1, sampling.n)
        ]
        generate = Generate(
            request_id=request_id,
            token_ids=prompt.token_ids,
            media=inputs,
            sampling=sampling,
            siblings=siblings,
            adapter=adapter,
        )
        self._check(generate, request)
        return generate

    def _prompt(self, request: OfflineRequest, loaded: Sequence[LoadedInput]) -> tuple[Prompt, list[MediaInput]]:
        """Builds a prompt and the engine's inputs of its media."""
        media = media_of(loaded)
        try:
            layouts = self._layouts.of(media)
            prompt = _build_prompt(self._prompts, request.prompt, layouts, loaded)
            return prompt, media_inputs(media, layouts, prompt.starts)
        except PlaceholderError as error:
            field = request.field if error.missing is None else field_of(error.missing, loaded)
            raise InputError(field, str(error)) from error
        except TemplateError as error:
            raise InputError(request.field, str(error)) from error

    def _check(self, engine_request: Generate | Embed, request: OfflineRequest) -> None:
        try:
            # `submit` would refuse it too, but only after others of the batch have been computed.
            self._core.check(engine_request)
        except EngineError as error:
            raise EngineError(error.code, f"'{request.field}': {error.message}") from error


def parse_limits(limits: Mapping[str, object]) -> dict[MediaKind, int]:
    """Parses `limit_mm_per_prompt`. Raises InputError if a kind is unknown or a limit no number."""
    parsed: dict[MediaKind, int] = {}
    for kind, given in known_fields(limits, "limit_mm_per_prompt", known=tuple(MediaKind)).items():
        limit = parse_limit(given)
        if limit is None:
            raise InputError(f"limit_mm_per_prompt.{kind}", f"expected an integer, at least 0, got {given!r}")
        parsed[MediaKind(kind)] = limit
    return parsed


def _build_prompt(
    builder: PromptBuilder, source: PromptSource, media: Sequence[TokenLayout], loaded: Sequence[LoadedInput]
) -> Prompt:
    match source:
        case TextPrompt(text=text, add_special_tokens=None):
            return builder.text(text, media)
        case TextPrompt(text=text, add_special_tokens=special):
            return builder.whole_text(text, media, add_special_tokens=bool(special))
        case TokenPrompt(token_ids=token_ids):
            return builder.expand(token_ids, media)
        case Conversation(messages=messages, options=options):
            return builder.chat(filled(messages, (each.parts for each in loaded)), media, options)
        case _:
            assert_never(source)

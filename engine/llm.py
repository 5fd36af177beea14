"""The offline door: prompts and conversations in, whole answers out, with the server's own core in this process.

Knows how texts, pictures and the engine come together; what callers may pass is `engine.inputs`' affair.
"""

import asyncio
import itertools
import os
from collections.abc import Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar, assert_never

import PIL.Image
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from engine.checkpoint import DEFAULT_MODEL, resolve_checkpoint
from engine.config import Device, DType, EngineConfig
from engine.errors import CheckpointError, EngineError, EngineErrorCode
from engine.inputs import ImageInput, InputError, OfflineRequest, check_sampling, parse_conversation, parse_prompt
from engine.load import load_core
from engine.plan import MediaKind
from engine.protocol import FinishReason, Generate, MediaInput, TokenEvent
from engine.sampling_params import SamplingParams
from engine.sequence import make_sequence
from engine.text.assembler import Assembler, TokenText
from engine.text.prompt import Prompt, PromptMedia, load_prompt_builder
from engine.text.template import TemplateError
from media.errors import MediaError
from media.image import Image, image_processing, prepare_image
from media.load import MediaLoader
from media.policy import FetchPolicy

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionOutput:
    """One answer."""

    text: str
    token_ids: list[int]
    """What was generated, the token that ended the answer included."""
    logprobs: list[TokenText] | None
    """Those of the tokens in the text, without an end token and a stop text; None if they were not asked for."""
    finish_reason: FinishReason


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestOutput:
    """What became of one prompt."""

    prompt_token_ids: list[int]
    """The prompt as the model saw it; a picture is as many placeholders as it takes."""
    outputs: list[CompletionOutput]
    num_cached_tokens: int
    """Prompt tokens that the prefix cache spared."""


class LLM:
    """A checkpoint that answers in this process."""

    def __init__(
        self,
        model: str | os.PathLike[str] = DEFAULT_MODEL,
        *,
        device: Device = "auto",
        dtype: DType = "auto",
        max_model_len: int | None = None,
        kv_cache_bytes: int = 1 << 30,
        max_batch_tokens: int = 2048,
        max_sequences: int = 256,
        prefix_caching: bool = True,
        num_threads: int | None = None,
        chat_template: str | None = None,
        limit_mm_per_prompt: Mapping[str, int] | None = None,
    ) -> None:
        """Loads a checkpoint.

        Args:
            model: A folder, or an id of the Hugging Face hub; by default the checkpoint that comes with the project.
            device: As in `EngineConfig`, like the next seven.
            dtype: Of weights and activations.
            max_model_len: Lowers the context window.
            kv_cache_bytes: Memory for keys and values.
            max_batch_tokens: The most tokens computed in one step.
            max_sequences: The most prompts computed in one step.
            prefix_caching: Prompts that begin alike are computed once.
            num_threads: Compute threads on the CPU.
            chat_template: A file whose template takes the place of the checkpoint's.
            limit_mm_per_prompt: The most media of a kind in a prompt, such as `{"image": 4}`; without it there is no limit.

        Raises:
            CheckpointError: the checkpoint cannot be found or served.
            InputError: `limit_mm_per_prompt` names another kind than image.
        """
        self._max_images = _max_images(limit_mm_per_prompt or {})
        path = resolve_checkpoint(os.fspath(model))
        config = EngineConfig(
            model_path=str(path),
            device=device,
            dtype=dtype,
            max_model_len=max_model_len,
            kv_cache_bytes=kv_cache_bytes,
            max_batch_tokens=max_batch_tokens,
            max_sequences=max_sequences,
            max_waiting=2**31,  # here a long queue is the caller's own
            prefix_caching=prefix_caching,
            num_threads=num_threads,
        )
        engine = load_core(config, on_progress=lambda _stage, _fraction: None)
        self._core = engine.core
        self._max_model_len = engine.ready.max_model_len
        self._vocab_size = engine.model.text.vocab_size
        self._prompts = load_prompt_builder(path, engine.model, chat_template)
        try:
            self._processing = image_processing(path)
        except ValueError as error:
            raise CheckpointError(str(error)) from error
        self._request_ids = (str(number) for number in itertools.count())

    def generate(
        self,
        prompts: str | Mapping[str, Any] | Sequence[str | Mapping[str, Any]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        progress: bool = True,
    ) -> list[RequestOutput]:
        """Continues prompts.

        Args:
            prompts: One or several, each a text or a dict of `prompt` or `prompt_token_ids` and perhaps
                `multi_modal_data`: `{"image": …}`, a picture or a list of them, each a PIL image, an array
                (uint8 [height, width, 3]), a file's bytes, a URL or a data URL. Each picture has its one placeholder
                token in the prompt.
            sampling_params: For all prompts, or one for each.
            progress: Several prompts are accompanied by a bar on standard error.

        Returns:
            An output for each prompt, in their order.

        Raises:
            InputError: a prompt cannot be used; nothing has been computed.
            EngineError: a prompt is too long (nothing has been computed), or the engine failed.
        """
        several = [prompts] if isinstance(prompts, str | Mapping) else prompts
        requests = [parse_prompt(prompt, f"prompts[{index}]") for index, prompt in enumerate(several)]
        return self._answer(requests, sampling_params, progress=progress)

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]] | Sequence[Sequence[Mapping[str, Any]]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        progress: bool = True,
    ) -> list[RequestOutput]:
        """Answers conversations.

        Args:
            messages: A conversation in OpenAI's form, or several. Parts are `text`, `image_url` (an http(s) URL, a data
                URL or base64, perhaps with `min_pixels` and `max_pixels`) and `image_pil` (a PIL image).
            sampling_params: For all conversations, or one for each.
            progress: Several conversations are accompanied by a bar on standard error.

        Returns:
            An output for each conversation, in their order.

        Raises:
            InputError: a conversation cannot be used; nothing has been computed.
            EngineError: a conversation is too long (nothing has been computed), or the engine failed.
        """
        if all(isinstance(message, Mapping) for message in messages):
            requests = [parse_conversation(messages, "")]
        else:
            requests = [parse_conversation(each, f"conversations[{index}]") for index, each in enumerate(messages)]
        return self._answer(requests, sampling_params, progress=progress)

"""The offline API: `LLM` completes, embeds and scores prompts and conversations with an engine in this process."""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Literal, Unpack, cast, get_args

from google.protobuf.message import Message

from glimpse.engine.checkpoint.families.companions import resolve_companions
from glimpse.engine.checkpoint.location import DEFAULT_MODEL, resolve_checkpoint
from glimpse.engine.checkpoint.model_config.sampling_defaults import read_sampling_defaults
from glimpse.engine.checkpoint.text.media_inputs import MediaLayouts
from glimpse.engine.checkpoint.text.prompt import load_prompt_builder
from glimpse.engine.checkpoint.text.relevance import find_relevance
from glimpse.engine.checkpoint.text.template import ToolTemplate
from glimpse.engine.errors import EngineError, EngineErrorCode
from glimpse.engine.protocol.config import OfflineOptions
from glimpse.engine.protocol.messages import LoadAdapter, UnloadAdapter
from glimpse.engine.protocol.pooling_params import PoolingParams
from glimpse.engine.protocol.sampling_params import Grammar, GrammarKind
from glimpse.engine.worker.loading.load_engine import load_core
from glimpse.media.kind import MediaKind
from glimpse.media.sources.policy import WEB_PORTS
from glimpse.offline.engine_options import parse_engine_options, read_options
from glimpse.offline.fields import InputError
from glimpse.offline.media.media_loading import OfflineMedia
from glimpse.offline.media.media_policy import parse_cache_bytes, parse_rules
from glimpse.offline.prompt_inputs import OfflineRequest, parse_conversations, parse_input, parse_pooling, parse_prompt
from glimpse.offline.request_builder import RequestBuilder, parse_limits
from glimpse.offline.run import (
    CompletionOutput,
    EmbeddingOutput,
    RequestOutput,
    RerankOutput,
    ScoreOutput,
    change_adapters,
    run_batch,
    run_embeddings,
)
from glimpse.offline.sampling_inputs import SamplingParams, StructuredOutputsParams
from glimpse.offline.scoring import Document, best_first, parse_pairs, score_outputs
from glimpse.offline.typed_answers import constrained, with_answers
from glimpse.server.served_model import ServedModel

__all__ = [
    "LLM",
    "CompletionOutput",
    "EmbeddingOutput",
    "Grammar",
    "GrammarKind",
    "InputError",
    "RequestOutput",
    "RerankOutput",
    "SamplingParams",
    "ScoreOutput",
    "StructuredOutputsParams",
]

_NAMELESS = "expected an adapter with a name, got ''"


class LLM:
    """A checkpoint, loaded in this process.

    Args:
        model: A folder, a GGUF file, or an id of the Hugging Face hub; by default the checkpoint that comes with the
            project.
        mmproj: The GGUF file with the encoder of a GGUF file's model; by default the one named mmproj beside it that
            belongs to it.
        companions: Folders of checkpoints that the model's `config.json` names as its parts, by these names:
            `{"meta-llama/Llama-3.2-1B-Instruct": "/models/llama"}` for Ultravox; by default each name is a folder
            or an id of the hub.
        lora_modules: Folders of LoRA adapters, as PEFT saves them, by the names that `adapter` has in calls.
        chat_template: A file whose template replaces the checkpoint's.
        tool_template: "auto" shows tools in the format of Qwen2.5 to Qwen2-VL and Qwen2.5-VL, if the checkpoint's
            template ignores them and there is no `chat_template`; "off" refuses tools then.
        trust_remote_code: Nothing, because the code of a checkpoint is never run; programs for vLLM write it.
        generation_config: Where the defaults of prompts without `sampling_params` come from. "auto": the
            checkpoint's `generation_config.json`; "none" or "vllm": those of `SamplingParams`; else a folder with
            such a file.
        seed: Makes the sampling of prompts without a seed of their own repeatable.
        limit_mm_per_prompt: The most media of each kind in a prompt, such as `{"image": 4, "video": 1}`. Kinds
            that are missing have no limit.
        enable_mm_embeds: Accept embeddings, computed elsewhere, in place of media.
        media_cache_bytes: Memory for the media cache; 0 disables it, and uuids have no effect.
        allowed_local_media_path: The folder whose files may be read through file: URLs; by default none.
        allowed_media_domains: The only hosts that URLs may have; by default any public host.
        allowed_media_networks: Private networks that URLs may lead to all the same, such as 10.1.0.0/16.
        allowed_media_ports: The only ports that URLs may have.
        fetch_timeouts: Seconds for fetching a medium, by kind; by default
            `{"image": 5, "video": 30, "audio": 10}`.
        media_io_kwargs: How media are read, as in vLLM: `{"image": {"rgba_background_color": [0, 0, 0]}}` is the
            colour behind transparent pixels, white by default; `{"video": {"num_frames": 32}}` or
            `{"video": {"fps": 2}}` is how frames of files are sampled where nothing else says it.
        mm_processor_kwargs: Defaults for media and prompts that do not set them: `min_pixels` and `max_pixels`,
            and for videos `fps` or `num_frames`. `max_pixels` may be "checkpoint": as many as the checkpoint's own
            configuration allows, where the default stays below it.
        **options: How the engine computes: `device`, `quantization`, `kv_cache_bytes`, … `EngineOptions` in
            `glimpse.engine.protocol.config` documents each. Sizes may have a unit ("4GiB"), numbers of tokens
            too ("8k"). vLLM's names are understood, such as `max_num_seqs`, `enforce_eager=True`, which is
            `cuda_graphs=False`, and options that change nothing here.

    Raises:
        CheckpointError: the checkpoint cannot be found or served.
        EngineError: one of several processes ended unexpectedly.
        InputError: an argument has a wrong type, is out of range, or names something unknown.
        TypeError: an option does not exist.
    """

    def __init__(
        self,
        model: str | os.PathLike[str] = DEFAULT_MODEL,
        *,
        mmproj: str | os.PathLike[str] | None = None,
        companions: Mapping[str, str | os.PathLike[str]] | None = None,
        lora_modules: Mapping[str, str | os.PathLike[str]] | None = None,
        chat_template: str | None = None,
        tool_template: ToolTemplate = "auto",
        trust_remote_code: bool = False,
        generation_config: str | os.PathLike[str] = "none",
        seed: int | None = None,
        limit_mm_per_prompt: Mapping[str, object] | None = None,
        enable_mm_embeds: bool = False,
        media_cache_bytes: int | str = 512 << 20,
        allowed_local_media_path: str | os.PathLike[str] | None = None,
        allowed_media_domains: Sequence[str] | None = None,
        allowed_media_networks: Sequence[str] = (),
        allowed_media_ports: Sequence[int] = tuple(sorted(WEB_PORTS)),
        fetch_timeouts: Mapping[str, float] | None = None,
        media_io_kwargs: Mapping[str, Any] | None = None,
        mm_processor_kwargs: Mapping[str, Any] | None = None,
        **options: Unpack[OfflineOptions],
    ) -> None:
        """Loads the checkpoint. The class documents the arguments."""
        if tool_template not in get_args(ToolTemplate):
            raise InputError("tool_template", f"expected 'auto' or 'off', got {tool_template!r}")
        own = read_options({**options, "trust_remote_code": trust_remote_code})
        limits = parse_limits(limit_mm_per_prompt or {})
        rules = parse_rules(
            allowed_local_media_path=allowed_local_media_path,
            allowed_media_domains=allowed_media_domains,
            allowed_media_networks=allowed_media_networks,
            allowed_media_ports=allowed_media_ports,
            fetch_timeouts=fetch_timeouts or {},
            media_io_kwargs=media_io_kwargs or {},
            mm_processor_kwargs=mm_processor_kwargs or {},
            max_cache_bytes=parse_cache_bytes(media_cache_bytes),
        )
        path = resolve_checkpoint(os.fspath(model), mmproj=None if mmproj is None else Path(mmproj))
        replaced = {name: os.fspath(folder) for name, folder in (companions or {}).items()}
        self._sampling = _default_sampling(generation_config, path)
        adapters = {name: os.fspath(folder) for name, folder in (lora_modules or {}).items()}
        if "" in adapters:
            raise InputError("lora_modules", _NAMELESS)
        config = parse_engine_options(own, path, resolve_companions(path, replaced), adapters)
        engine = load_core(config, on_progress=lambda _stage, _fraction: None)
        self._core = engine.core
        self._adapters = tuple(adapters)
        prompts = load_prompt_builder(path, engine.model, chat_template, tool_template=tool_template)
        self._model = ServedModel(
            names=(str(path),),
            adapters=lambda: self._adapters,
            vocab_size=engine.model.text.vocab_size,
            embedding_size=engine.model.embedding_size,
            pooling=engine.model.pooling,
            max_media={
                kind: limits.get(kind, sys.maxsize)
                for kind in MediaKind
                if kind in engine.model.placeholder_ids or kind is MediaKind.DOCUMENT
            },
            template_variables=prompts.templates.variables,
            gives_call_ids=False,
        )
        self._tokenizer = prompts.tokenizer
        self._relevance = find_relevance(engine.model, prompts.tokenizer)
        self._requests = RequestBuilder(
            core=engine.core,
            prompts=prompts,
            layouts=MediaLayouts(engine.model, prompts.tokenizer),
            media=OfflineMedia(path, engine.model, rules),
            accepts_embeddings=enable_mm_embeds,
            model=self._model,
            seed=seed,
        )

    def get_default_sampling_params(self) -> SamplingParams:
        """Returns the sampling parameters of prompts without their own, as `generation_config` says."""
        return replace(self._sampling)

    def generate(
        self,
        prompts: str | Mapping[str, Any] | Sequence[str | Mapping[str, Any]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        adapter: str | None = None,
        progress: bool = True,
        use_tqdm: bool | Callable[..., Any] = True,
    ) -> list[RequestOutput]:
        """Completes prompts.

        Args:
            prompts: One or several. Each is a string, or a dict of

                - `prompt`, a string, or `prompt_token_ids`: with one placeholder token for each medium.
                - `multi_modal_data`, optional: a medium or a list of media for each kind. An `image` is a PIL image, an
                  array ([height, width, 3] or [3, height, width], uint8 or floats from 0 to 255 or from 0 to 1), the
                  bytes of a file, a URL or a data URL. A `video` is such an array or a torch tensor (with the frames
                  first), a list of images, a pair of one of these and its metadata (`fps` of the file and
                  `frames_indices` in it), or a file as above. An `audio`
                  is a pair of an array (floats, [samples] or [channels, samples]) and its rate, or a file as above.
                  Each may be a dict of embeddings instead: `image_embeds` and `image_grid_thw` (`video_…`;
                  `audio_embeds` alone); see `glimpse.offline.media.embedding_inputs.parse_embeddings`.
                - `multi_modal_uuids`, optional: a uuid or a list of uuids for each kind. A medium that was passed
                  before under a uuid may be None afterwards, embeddings `{"image_embeds": None}`. In one call, a uuid
                  identifies one medium.
                - `mm_processor_kwargs`, optional: as in `LLM`, for the media of this prompt; or what qwen-vl-utils'
                  `process_vision_info` returns.
            sampling_params: For all prompts, or one for each prompt. Default: `get_default_sampling_params`.
            adapter: The name of one of `lora_modules`, or of one that `load_adapter` loaded, which computes all of
                them. Default: none does.
            progress: Show a progress bar on standard error if there are several prompts.
            use_tqdm: vLLM's name of `progress`; both must be true. There is one kind of bar.

        Returns:
            An output for each prompt, in the same order.

        Raises:
            InputError: a prompt is invalid; nothing has been computed.
            EngineError: a prompt is too long (nothing has been computed), or the engine failed.
        """
        requests = [parse_prompt(prompt, field, self._model) for field, prompt in _several(prompts)]
        return self._answer(requests, sampling_params, adapter, progress=progress and bool(use_tqdm))

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]] | Sequence[Sequence[Mapping[str, Any]]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        answer: type[Message] | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        mm_processor_kwargs: Mapping[str, Any] | None = None,
        adapter: str | None = None,
        progress: bool = True,
        use_tqdm: bool | Callable[..., Any] = True,
    ) -> list[RequestOutput]:
        """Completes conversations.

        Args:
            messages: One or several conversations in OpenAI's format. Content parts are

                - `text`;
                - `image_url`: an http(s) URL, a data URL or base64, optionally with `min_pixels`, `max_pixels` and
                  `detail`;
                - `image_pil`: a PIL image; `image`: as in `generate`, with these options beside it;
                - `video_url`: a URL of a video file, or a list of URLs of its frames;
                - `video`: an array, a tensor, a list of images or the bytes of a file. Both may have the options of
                  `glimpse.media.processing.video_options.VideoOptions`;
                - `audio_url`, `input_audio` (`data`, which is base64, and `format`) and `audio` (as in `generate`);
                - `image_embeds`, `video_embeds` and `audio_embeds` of one medium, as in `generate`.

                A part may have a `uuid`; afterwards, the medium may be left out:
                `{"type": "image_pil", "image_pil": None, "uuid": "cat"}`.
            sampling_params: For all conversations, or one for each conversation. Default:
                `get_default_sampling_params`.
            answer: A class of protobuf messages. Texts are the JSON of such messages, and each output has its message.
            tools: Functions that the model may call, in OpenAI's format. Tool calls are part of the text, in the
                model's own format; `glimpse.engine.checkpoint.text.tools` parses them.
            add_generation_prompt: End the prompt with the header of an assistant's message.
            continue_final_message: Continue the last message, which must be an assistant's. Cannot be combined with
                `add_generation_prompt`.
            chat_template_kwargs: Further variables of the chat template.
            mm_processor_kwargs: See `LLM`; for the media of this call.
            adapter: See `generate`.
            progress: Show a progress bar on standard error if there are several conversations.
            use_tqdm: vLLM's name of `progress`; both must be true. There is one kind of bar.

        Returns:
            An output for each conversation, in the same order.

        Raises:
            InputError: a conversation is invalid; nothing has been computed.
            EngineError: a conversation is too long (nothing has been computed), or the engine failed.
        """
        options = {
            "tools": tools,
            "add_generation_prompt": add_generation_prompt,
            "continue_final_message": continue_final_message,
            "chat_template_kwargs": chat_template_kwargs,
            "mm_processor_kwargs": mm_processor_kwargs,
        }
        requests = parse_conversations(messages, options, self._model)
        shows_bar = progress and bool(use_tqdm)
        if answer is None:
            return self._answer(requests, sampling_params, adapter, progress=shows_bar)
        samplings = constrained(self._sampling if sampling_params is None else sampling_params, answer)
        return with_answers(self._answer(requests, samplings, adapter, progress=shows_bar), answer)

    def embed(
        self,
        prompts: str | Mapping[str, Any] | Sequence[str | Mapping[str, Any]],
        *,
        dimensions: int | None = None,
        normalize: bool | None = None,
        pooling: Literal["last_token", "mean", "token"] | None = None,
        add_special_tokens: bool = True,
        adapter: str | None = None,
        progress: bool = True,
        use_tqdm: bool | Callable[..., Any] = True,
    ) -> list[EmbeddingOutput]:
        """Returns the embeddings of prompts: pooled hidden states after the decoder's final norm.

        Args:
            prompts: One or several, as in `generate`; or conversations, as dicts of `messages` as in `chat` and,
                optionally, `add_generation_prompt` (default: False) and `chat_template_kwargs`.
            dimensions: Cut embeddings to this number of values before they are normalized; for models that were
                trained for it (Matryoshka).
            normalize: Divide embeddings by their length. Default: as the checkpoint's `modules.json` says, else True.
            pooling: The hidden state of the last token, or the mean of all. Default: as the checkpoint's
                `1_Pooling/config.json` says, else "last_token". Models for late interaction, such as ColQwen2, have
                "token" alone: the projected states of all tokens, [tokens, dimensions].
            add_special_tokens: Begin and end prompts that are texts with the tokenizer's tokens for that, such as
                `<|endoftext|>`, and for late interaction with what makes them queries.
            adapter: See `generate`.
            progress: Show a progress bar on standard error if there are several prompts.
            use_tqdm: vLLM's name of `progress`; both must be true. There is one kind of bar.

        Returns:
            An output for each prompt, in the same order.

        Raises:
            InputError: a prompt or an option is invalid; nothing has been computed.
            EngineError: a prompt is too long (nothing has been computed), or the engine failed.
        """
        options = {"dimensions": dimensions, "normalize": normalize, "pooling": pooling}
        params = parse_pooling({**options, "add_special_tokens": add_special_tokens}, self._model)
        requests = [
            parse_input(prompt, field, self._model, add_special_tokens=add_special_tokens)
            for field, prompt in _several(prompts)
        ]
        return self._embed(requests, params, adapter, progress=progress and bool(use_tqdm))

    def score(
        self,
        queries: str | Sequence[str],
        documents: Document | Sequence[Document],
        *,
        instruction: str | None = None,
        adapter: str | None = None,
        progress: bool = True,
        use_tqdm: bool | Callable[..., Any] = True,
    ) -> list[ScoreOutput]:
        """Tells how well documents answer queries, with a model that answers yes or no, such as Qwen3-Reranker, or one
        for late interaction, such as ColQwen2.

        Args:
            queries: One for all documents, or one for each.
            documents: One or several: texts, or dicts of `content`, whose parts are those of `chat`:
                `{"content": [{"type": "image_pil", "image_pil": page}]}`.
            instruction: What the documents are to be good for. Default: "Given a web search query, retrieve relevant
                passages that answer the query".
            adapter: See `generate`.
            progress: Show a progress bar on standard error if there are several documents.
            use_tqdm: vLLM's name of `progress`; both must be true. There is one kind of bar.

        Returns:
            An output for each document, in the same order.

        Raises:
            InputError: an argument is invalid, or the model has no single tokens for "yes" and "no".
            EngineError: a query and its document are too long (nothing has been computed), or the engine failed.
        """
        pairs = {"queries": queries, "documents": documents, "instruction": instruction}
        return self._score(pairs, adapter, progress=progress and bool(use_tqdm))

    def rerank(
        self,
        query: str,
        documents: Sequence[Document],
        *,
        top_n: int | None = None,
        instruction: str | None = None,
        adapter: str | None = None,
        progress: bool = True,
        use_tqdm: bool | Callable[..., Any] = True,
    ) -> list[RerankOutput]:
        """Orders documents by how well they answer a query, best first.

        Args:
            query: The query.
            documents: At least one, as in `score`.
            top_n: The largest number of outputs. Default: all documents.
            instruction: See `score`.
            adapter: See `generate`.
            progress: See `score`.
            use_tqdm: See `score`.

        Raises:
            InputError: as in `score`.
            EngineError: as in `score`.
        """
        several = [documents] if isinstance(documents, str | Mapping) else documents
        pairs = {"query": query, "documents": several, "top_n": top_n, "instruction": instruction}
        return best_first(several, self._score(pairs, adapter, progress=progress and bool(use_tqdm)), top_n)

    def load_adapter(self, name: str, folder: str | os.PathLike[str], *, in_place: bool = False) -> None:
        """Loads a LoRA adapter, as PEFT saves it, which calls then choose by `adapter`.

        Args:
            in_place: Whether it replaces one of this name.

        Raises:
            EngineError: there are as many as `max_loras` already, or it does not fit into memory.
            InputError: the name is taken or empty, or the adapter cannot be served.
        """
        if not name:
            raise InputError("name", _NAMELESS)
        if name in self._adapters and not in_place:
            raise InputError("name", f"expected a name without an adapter, got {name!r}; in_place replaces that")
        path = os.path.abspath(folder)  # noqa: PTH100 - links are not resolved
        try:
            self._adapters = change_adapters(
                self._core, LoadAdapter(request_id="load_adapter", name=name, path=path, in_place=in_place)
            )
        except EngineError as error:
            if error.code is EngineErrorCode.UNSUPPORTED:
                raise InputError("folder", error.message) from error
            raise

    def unload_adapter(self, name: str) -> None:
        """Unloads a LoRA adapter. Raises InputError if none has this name."""
        adapter = self._checked(name, "name")
        self._adapters = change_adapters(self._core, UnloadAdapter(request_id="unload_adapter", name=adapter))

    def _answer(
        self,
        requests: Sequence[OfflineRequest],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None,
        adapter: str | None,
        *,
        progress: bool,
    ) -> list[RequestOutput]:
        samplings = self._sampling if sampling_params is None else sampling_params
        generates = self._requests.generates(requests, samplings, self._checked(adapter))
        return run_batch(self._core, generates, self._tokenizer, progress=progress and len(generates) > 1)

    def _embed(
        self, requests: Sequence[OfflineRequest], pooling: PoolingParams, adapter: str | None, *, progress: bool
    ) -> list[EmbeddingOutput]:
        embeds = self._requests.embeds(requests, pooling, self._checked(adapter))
        return run_embeddings(self._core, embeds, progress=progress and len(embeds) > 1)

    def _score(self, pairs: Mapping[str, object], adapter: str | None, *, progress: bool) -> list[ScoreOutput]:
        requests, parsed = parse_pairs(pairs, self._relevance, self._model)
        assert self._relevance is not None, "the request was parsed"
        outputs = self._embed(requests, parsed.pooling, adapter, progress=progress)
        several = pairs["documents"]
        num_documents = 1 if isinstance(several, str | Mapping) else len(cast("Sequence[Document]", several))
        return score_outputs(self._relevance, outputs, num_documents)

    def _checked(self, adapter: str | None, field: str = "adapter") -> str:
        if adapter is not None and adapter not in self._adapters:
            names = ", ".join(map(repr, self._adapters)) or "None, as no adapter is loaded"
            raise InputError(field, f"expected {names}, got {adapter!r}")
        return adapter or ""


def _several(prompts: object) -> list[tuple[str, object]]:
    """Returns one prompt or several with their fields."""
    several = [prompts] if isinstance(prompts, str | Mapping) else cast("Sequence[object]", prompts)
    return [(f"prompts[{index}]", prompt) for index, prompt in enumerate(several)]


def _default_sampling(generation_config: str | os.PathLike[str], checkpoint: Path) -> SamplingParams:
    """Returns the sampling parameters of prompts without their own. Raises CheckpointError."""
    defaults = asdict(read_sampling_defaults(os.fspath(generation_config), checkpoint))
    return SamplingParams(**{name: value for name, value in defaults.items() if value is not None})

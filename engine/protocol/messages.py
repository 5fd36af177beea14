"""Messages between the front end and the engine process: frozen structs in two tagged unions.

The front end sends `ToEngine`, the engine sends `FromEngine`. For each `Request` and each sibling of a
`Generate`, whatever happens, exactly one `TokenEvent` has `finish` set, and it is the last one with that request id.
"""

from collections.abc import Iterator
from dataclasses import replace
from enum import StrEnum

import msgspec

from glimpse.engine.errors import EngineError, EngineErrorCode
from glimpse.engine.protocol.config import ChosenBackend, EngineConfig
from glimpse.engine.protocol.media import MediaContent, MediaSpan
from glimpse.engine.protocol.pooling_params import PoolingParams
from glimpse.engine.protocol.sampling_params import SamplingParams

BACKGROUND_PRIORITY = 900
"""Least priority of requests that are not urgent, which the engine computes with what others leave: those of batches.
They have 1000 more than their own priority from -100 to 100."""


class FinishReason(StrEnum):
    """Why a request ended."""

    STOP = "stop"
    """An end token or a stop token id was generated, or the embedding is complete."""
    LENGTH = "length"
    """The token limit or the context window was reached."""
    TOOL_CALLS = "tool_calls"
    """The model chose to call tools. The engine reports STOP; what parses the answer finds the calls."""
    CANCELLED = "cancelled"
    """The front end cancelled it."""
    ERROR = "error"
    """The request was refused or could not be finished: see `TokenEvent.error`."""


class MediaInput(msgspec.Struct, frozen=True, kw_only=True):
    """One medium of a prompt, as the front end sends it."""

    span: MediaSpan
    """Placeholder tokens in the prompt."""
    content: MediaContent


class Prepare(msgspec.Struct, frozen=True, kw_only=True, tag="prepare"):
    """Import what loading needs, at the lowest priority, and wait for `Start`. Only before `Start`."""


class Start(msgspec.Struct, frozen=True, kw_only=True, tag="start"):
    """Load a checkpoint. The first message, except for `Prepare`."""

    config: EngineConfig


class Sibling(msgspec.Struct, frozen=True, kw_only=True):
    """A further answer to the same prompt. All other parameters are those of the first answer."""

    request_id: str
    """Unique among the requests in flight."""
    seed: int | None
    """See `SamplingParams`."""


class EngineRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Something that the engine is asked for, and ends once."""

    request_id: str
    """Unique among the requests in flight."""
    flow: str = ""
    """Requests of a client with the same name here have one share of the client's. Default: the request's id."""
    digest: bytes = b""
    """Identifies what is asked for, such as a prompt: `glimpse.engine.client.suspects.prompt_digest`."""

    @property
    def request_ids(self) -> list[str]:
        """Ids of all answers to the request."""
        return [self.request_id]


class LoadAdapter(EngineRequest, frozen=True, kw_only=True, tag="load_adapter"):
    """Load a LoRA adapter. The one event has STOP when requests may have it."""

    name: str
    path: str
    """Absolute path of the folder."""
    in_place: bool = False
    """Whether it replaces one of the same name, which requests that have it keep."""


class UnloadAdapter(EngineRequest, frozen=True, kw_only=True, tag="unload_adapter"):
    """Refuse further requests that have a LoRA adapter. The one event comes at once; requests that have it go on."""

    name: str


class PromptRequest(EngineRequest, frozen=True, kw_only=True):
    """A prompt and who sent it."""

    token_ids: list[int]
    """The prompt. Each medium has `num_tokens` placeholder ids in it."""
    media: list[MediaInput] = []
    priority: int = 0
    """Smaller is served sooner. From `BACKGROUND_PRIORITY` on, all others come first, of whatever client."""
    cache_salt: str = ""
    """Requests share cached prefixes only with requests of the same salt."""
    adapter: str = ""
    """Name of the LoRA adapter that computes it; empty: none does."""
    client: str = ""
    """An opaque name of who sent it. Clients get equal shares of the engine."""
    is_probe: bool = False
    """Nothing is computed: the one event, with STOP, has the statistics that the first one of the request would have if
    it were scheduled now. The contents of media may be empty."""


class Embed(PromptRequest, frozen=True, kw_only=True, tag="embed"):
    """Return the embedding of a prompt. Nothing is sampled."""

    pooling: PoolingParams


class Generate(PromptRequest, frozen=True, kw_only=True, tag="generate"):
    """Continue a prompt."""

    sampling: SamplingParams
    siblings: list[Sibling] = []
    """Further answers, in the same flow. The prompt and its pixels cross the process boundary only once."""

    @property
    def request_ids(self) -> list[str]:
        return [self.request_id, *(sibling.request_id for sibling in self.siblings)]

    def each(self) -> Iterator["Generate"]:
        """Yields a request without siblings for each answer. The first alone scores the prompt."""
        alone = msgspec.structs.replace(self, siblings=[], flow=self.flow or self.request_id) if self.siblings else self
        yield alone
        for sibling in self.siblings:
            sampling = replace(self.sampling, seed=sibling.seed, prompt_logprobs=None)
            yield msgspec.structs.replace(alone, request_id=sibling.request_id, sampling=sampling)


class Cancel(msgspec.Struct, frozen=True, kw_only=True, tag="cancel"):
    """Ends a request. Unknown ids are ignored, because the request may just have ended."""

    request_id: str


class Stop(msgspec.Struct, frozen=True, kw_only=True, tag="stop"):
    """Ends the process. Requests in flight end as cancelled; a front end that drains waits before it sends this."""


Request = Generate | Embed | LoadAdapter | UnloadAdapter
ToEngine = Prepare | Start | Request | Cancel | Stop


class Loading(msgspec.Struct, frozen=True, kw_only=True, tag="loading"):
    """Progress of loading."""

    stage: str
    """The current stage, in words."""
    fraction: float
    """Share of the work that is done, 0 to 1."""


class LoadedAdapter(msgspec.Struct, frozen=True, kw_only=True):
    """A LoRA adapter that requests may have."""

    digest: bytes
    path: str
    """Path of the folder."""


class Ready(msgspec.Struct, frozen=True, kw_only=True, tag="ready"):
    """The checkpoint is loaded, and requests are served."""

    device: str
    dtype: str
    backend: ChosenBackend = "torch"
    """What executes the model's operations."""
    cpu_level: str = ""
    """Instruction set level of the native backend, in words such as "AVX-512 BF16"; empty on other backends."""
    num_threads: int = 0
    """Compute threads of all ranks on a CPU; 0 on GPUs."""
    tensor_parallel_size: int = 1
    """Ranks that share each step."""
    quantization: str = "none"
    """Quantization of the decoder's weights, in words: "int8", or the checkpoint's own, such as "awq int4"."""
    max_model_len: int
    """The context window in tokens that the checkpoint, the settings and the KV cache allow."""
    num_blocks: int
    num_states: int = 0
    """States for sequences and snapshots, as many sequences run at most; 0 if the model's layers keep none."""
    num_sliding_blocks: int = 0
    """KV blocks of sliding layers, which keep windows alone; 0 if these are parts of the other blocks."""
    block_size: int
    """Tokens in a KV block."""
    adapters: dict[str, LoadedAdapter] = {}
    """LoRA adapters by name. `Step` tells of later ones."""
    load_seconds: float


class Failed(msgspec.Struct, frozen=True, kw_only=True, tag="failed"):
    """The checkpoint cannot be served. The process ends after this."""

    message: str


class TokenLogprobs(msgspec.Struct, frozen=True, kw_only=True):
    """Log-probabilities at one position of an answer."""

    logprob: float
    """Log-probability of the sampled token."""
    top: list[tuple[int, float]] = []
    """(token id, log-probability), most likely first."""
    rank: int = 0
    """Rank of a token of a prompt among all tokens; 1 is the most likely."""


INITIAL_ANSWER_TOKENS = 128
"""Tokens that are expected of an answer, until some have ended."""


class RequestStats(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Numbers about a request up to now. Who measures one sets it here, and who reports it reads it here."""

    num_cached_tokens: int = 0
    """Prompt tokens found in the prefix cache when the request was first admitted."""
    num_computed_prompt_tokens: int = 0
    """Prompt tokens that were computed for the request or found in the prefix cache."""
    encoded_media: list[int] = []
    """Indices of the media of the prompt that were encoded for this request; the others were cached, or equal one that
    was encoded."""
    queue_seconds: float = 0.0
    """Time from the request's arrival in the engine to the step in which it was first computed; 0 if it never was."""
    encode_seconds: float = 0.0
    """How long the steps that encoded media of the prompt spent in the encoder."""
    first_token_seconds: float = 0.0
    """Time from the request's arrival in the engine to its first token, or to its embedding. Of a probe, all times are
    expected ones, and this is 0 if too little was measured."""


NO_STATS = RequestStats()


class TokenEvent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """New tokens of one request, or its end."""

    request_id: str
    token_ids: list[int] = []
    """New tokens, in order. An end token or stop token id that ended the answer is the last of them."""
    logprobs: list[TokenLogprobs] = []
    """One for each of `token_ids` if requested, else empty."""
    prompt_logprobs: list[TokenLogprobs] = []
    """One for each token of the prompt but the first, if requested. Set with the first token."""
    stats: RequestStats = NO_STATS
    """Set with the first token and with `finish`."""
    embedding: bytes = b""
    """The embedding as little-endian float32. Set in the last event of an `Embed` that succeeded."""
    finish: FinishReason | None = None
    error: EngineErrorCode | None = None
    """Set exactly when `finish` is ERROR."""
    message: str = ""
    """What went wrong, for the client."""
    retry_after_seconds: float | None = None
    """When the same request may succeed; None: unknown, or never."""


def error_event(request_id: str, error: EngineError, stats: RequestStats = NO_STATS) -> TokenEvent:
    """Returns the last event of a request that fails."""
    return TokenEvent(
        request_id=request_id,
        stats=stats,
        finish=FinishReason.ERROR,
        error=error.code,
        message=error.message,
        retry_after_seconds=error.retry_after_seconds,
    )


class StepStats(msgspec.Struct, frozen=True, kw_only=True):
    """Statistics of the engine after a step."""

    num_running: int
    num_waiting: int
    num_used_blocks: int
    """KV blocks held by running sequences. Blocks that are only cached count as free. Where a larger share of those of
    sliding layers is held: that share of `Ready.num_blocks`."""
    num_prompt_tokens: int
    num_generated_tokens: int
    num_cached_tokens: int
    """Prompt tokens found in the prefix cache, of sequences admitted in the step."""
    num_encoded_media: int
    num_preemptions: int
    step_seconds: float
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    """Draft tokens that were accepted."""
    num_admitted_tokens: int = 0
    """Prompt tokens, computed or cached, of the sequences that `num_cached_tokens` counts."""
    answer_tokens: float = INITIAL_ANSWER_TOKENS
    """Mean tokens of recent answers."""
    place_seconds: float = 0.0
    """Expected seconds until the first prompt that waits has a place among running sequences and in the cache, however
    many tokens it has. 0: none waits for one."""
    waiting_token_seconds: float = 0.0
    """Expected seconds from then until all prompts are computed, by their tokens and those of the answers that are
    expected. 0: none waits, or too little was measured."""


class Step(msgspec.Struct, frozen=True, kw_only=True, tag="step"):
    """Sent after each engine step."""

    events: list[TokenEvent]
    stats: StepStats
    adapters: dict[str, LoadedAdapter] | None = None
    """All LoRA adapters by name, if they have changed."""


FromEngine = Loading | Ready | Failed | Step

"""All that crosses the seam between the front end and the engine process: frozen structs in two tagged unions.

The front end sends `ToEngine`, the engine answers `FromEngine`. For each `Generate` and each of its siblings, whatever
happens to it, exactly one `TokenEvent` with `finish` set is the last that bears its request id.
"""

from collections.abc import Iterator
from dataclasses import replace
from enum import StrEnum

import msgspec

from glimpse.engine.config import ChosenBackend, EngineConfig
from glimpse.engine.errors import EngineErrorCode
from glimpse.engine.plan import MediaContent, MediaSpan
from glimpse.engine.sampling_params import SamplingParams


class FinishReason(StrEnum):
    """Why a request's events ended."""

    STOP = "stop"
    """An end token or a stop token id was generated."""
    LENGTH = "length"
    """The token limit or the context window was reached."""
    CANCELLED = "cancelled"
    """The front end cancelled it."""
    ERROR = "error"
    """It was refused or could not be finished; `TokenEvent.error` says why."""


class MediaInput(msgspec.Struct, frozen=True, kw_only=True):
    """One medium of a prompt, as the front end sends it."""

    span: MediaSpan
    """Its placeholder tokens in the prompt."""
    content: MediaContent


class Start(msgspec.Struct, frozen=True, kw_only=True, tag="start"):
    """The first message: load this checkpoint in this way."""

    config: EngineConfig


class Sibling(msgspec.Struct, frozen=True, kw_only=True):
    """A further answer to a prompt: as the first one, but for what is said here."""

    request_id: str
    """Unique among the requests in flight."""
    seed: int | None
    """As in `SamplingParams`."""


class Generate(msgspec.Struct, frozen=True, kw_only=True, tag="generate"):
    """Continue a prompt."""

    request_id: str
    """Unique among the requests in flight."""
    token_ids: list[int]
    """The prompt; a medium is `num_tokens` placeholder ids."""
    media: list[MediaInput] = []
    sampling: SamplingParams
    priority: int = 0
    """Smaller is sooner."""
    cache_salt: str = ""
    """Requests share cached prefixes only with those of the same salt."""
    siblings: list[Sibling] = []
    """Further answers, for which the prompt and its pixels cross the seam only once."""

    def each(self) -> Iterator["Generate"]:
        """A request for each answer, none of which has siblings."""
        alone = msgspec.structs.replace(self, siblings=[]) if self.siblings else self
        yield alone
        for sibling in self.siblings:
            sampling = replace(self.sampling, seed=sibling.seed)
            yield msgspec.structs.replace(alone, request_id=sibling.request_id, sampling=sampling)


class Cancel(msgspec.Struct, frozen=True, kw_only=True, tag="cancel"):
    """Stop working on a request; unknown ids are ignored, for it may just have ended."""

    request_id: str


class Stop(msgspec.Struct, frozen=True, kw_only=True, tag="stop"):
    """End the process; what is in flight ends as cancelled. A front end that drains waits before it sends this."""


ToEngine = Start | Generate | Cancel | Stop


class Loading(msgspec.Struct, frozen=True, kw_only=True, tag="loading"):
    """Progress of loading."""

    stage: str
    """What is being done, for a person to read."""
    fraction: float
    """Share of the whole that is done, 0 … 1."""


class Ready(msgspec.Struct, frozen=True, kw_only=True, tag="ready"):
    """The checkpoint is loaded; requests are served."""

    device: str
    dtype: str
    backend: ChosenBackend = "torch"
    """What carries out the model's operations."""
    tensor_parallel_size: int = 1
    """Ranks that share each step."""
    quantization: str = "none"
    """Of the decoder's weights, for a person to read: "int8", or the checkpoint's own such as "awq int4"."""
    max_model_len: int
    """The context window in tokens, as the checkpoint, the settings and the KV cache allow."""
    num_blocks: int
    block_size: int
    """Tokens in a KV block."""
    load_seconds: float


class Failed(msgspec.Struct, frozen=True, kw_only=True, tag="failed"):
    """The checkpoint cannot be served; the process ends after this. Restarting it would not help."""

    message: str


class TokenLogprobs(msgspec.Struct, frozen=True, kw_only=True):
    """Log-probabilities at one place of an answer."""

    logprob: float
    """Of the token that was chosen."""
    top: list[tuple[int, float]] = []
    """(token id, log-probability), most likely first."""


class TokenEvent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a step brought to one request."""

    request_id: str
    token_ids: list[int] = []
    """New tokens, in order. An end token or stop token id that ended the answer is among them, as the last."""
    logprobs: list[TokenLogprobs] = []
    """One for each of `token_ids` where they were asked for, else empty."""
    num_cached_tokens: int = 0
    """Prompt tokens that the prefix cache spared; said with the first token and with `finish`."""
    num_encoded_media: int = 0
    """Media of the prompt that were encoded for this request; said with the first token. The others were spared it."""
    finish: FinishReason | None = None
    error: EngineErrorCode | None = None
    """Set exactly when `finish` is ERROR."""
    message: str = ""
    """What went wrong, in words for the client."""


class StepStats(msgspec.Struct, frozen=True, kw_only=True):
    """The engine after a step."""

    num_running: int
    num_waiting: int
    num_used_blocks: int
    """KV blocks that a running sequence holds; those kept only for the prefix cache are free."""
    num_prompt_tokens: int
    """Prompt tokens computed in the step."""
    num_generated_tokens: int
    num_cached_tokens: int
    """Prompt tokens spared by the prefix cache, of sequences admitted in the step."""
    num_encoded_media: int
    num_preemptions: int
    step_seconds: float
    num_draft_tokens: int = 0
    """Guesses at what answers say next that were checked in the step."""
    num_accepted_tokens: int = 0


class Step(msgspec.Struct, frozen=True, kw_only=True, tag="step"):
    """One message for each engine step."""

    events: list[TokenEvent]
    stats: StepStats


FromEngine = Loading | Ready | Failed | Step

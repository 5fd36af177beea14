"""Requests after parsing: frozen values whose fields have been validated. Independent of protobuf."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from glimpse.engine.checkpoint.families.grounding import Form
from glimpse.engine.checkpoint.text.conversation import (
    ChatMessage,
    NamedTool,
    TemplateOptions,
    ToolChoice,
    ToolDefinition,
)
from glimpse.engine.protocol.pooling_params import PoolingParams
from glimpse.engine.protocol.sampling_params import Grammar, SamplingParams
from glimpse.media.inputs import MediumInput


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """A conversation and the chat template's options, from which a prompt is built."""

    messages: tuple[ChatMessage, ...]
    media: list[MediumInput]
    """In the order of their slots in `messages`. Emptied once they are loaded, so that their bytes are freed while the
    answer is generated."""
    options: TemplateOptions = field(default_factory=TemplateOptions)


@dataclass(frozen=True, slots=True, kw_only=True)
class TextPrompt:
    """A prompt as text. Special tokens in it are special."""

    text: str
    field: str
    """Path of the field in the request."""
    add_special_tokens: bool | None = None
    """Whether a text that nothing follows, such as the input of an embedding, gets the tokenizer's tokens that start
    and end each text. None: the model continues the text, which gets those that start it. False: any text gets none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenPrompt:
    """A prompt as token ids, all of them in the model's vocabulary."""

    token_ids: tuple[int, ...]


PromptSource = Conversation | TextPrompt | TokenPrompt


class AnswerReader(Protocol):
    """Reads texts as messages of one type."""

    @property
    def grammar(self) -> Grammar:
        """What the texts match."""
        ...

    def read(self, text: str) -> object:
        """Returns the message that a text is. Raises ValueError with what is wrong."""
        ...


class AnswerType(Protocol):
    """A type of messages, as the request describes it. Equal ones have equal readers."""

    @property
    def num_bytes(self) -> int:
        """The size of the description."""
        ...

    def reader(self, field: str) -> AnswerReader:
        """Reads the description, which takes milliseconds. Raises InvalidRequest: it is wrong; `field` has it."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Constraint:
    """A grammar that the output must match."""

    grammar: Grammar
    """Without its text until `answer_type` is read, if there is one."""
    field: str
    """The path in the request of the field that sets it."""
    answer_type: AnswerType | None = None
    """The output is a message of this type."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tools:
    """The tools of a request."""

    definitions: tuple[ToolDefinition, ...]
    """Definitions with unique names; empty: the request has no tools."""
    choice: ToolChoice
    """NONE if there are no tools."""
    parallel: bool
    """One completion may call several tools."""
    allowed: frozenset[str] | None = None
    """Names of the tools that the model may call; None: those of `choice`."""

    def may_call(self, tool: ToolDefinition) -> bool:
        """Returns whether the model may call the tool, which it sees in any case."""
        if isinstance(self.choice, NamedTool):
            return tool.name == self.choice.name
        return self.allowed is None or tool.name in self.allowed


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasoningSupport:
    """What requests may ask of the model's reasoning."""

    is_parsed: bool = False
    """Answers carry it apart from their text."""
    has_effort: bool = False
    """The chat template uses `reasoning_effort`."""
    has_switch: bool = False
    """The chat template uses `enable_thinking`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasoningOptions:
    """What a request asks of the model's reasoning."""

    include: bool = True
    """Completions carry the reasoning."""
    max_tokens: int | None = None
    """The most tokens of the reasoning of a completion; None: no limit."""
    continues_message: bool = False
    """The model continues a message, whose reasoning has ended, unless the message ends with the opening tag."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRequest:
    """Prompts to complete, all with the same options."""

    prompts: tuple[PromptSource, ...]
    """At least one."""
    sampling: SamplingParams
    """Parameters of the first completion of each prompt. If it has a seed, completion i has the seed plus i."""
    num_completions: int
    """For each prompt."""
    constraint: Constraint | None
    tools: Tools | None
    """Tools that completions may call, at least one; None: completions are not searched for tool calls."""
    priority: int
    """Lower values are scheduled first."""
    cache_salt: str
    """Cache namespace, of the tenant and the salt that the request chose. Namespaces share nothing."""
    adapter: str = ""
    """Name of the LoRA adapter; empty: none."""
    reasoning: ReasoningOptions | None = None
    """None: completions are not searched for reasoning."""
    return_token_ids: bool = False
    """The response has the token ids of the prompts and of the completions."""
    return_timings: bool = False
    """The usage tells how long each stage took."""
    grounding: tuple[Form, ...] = ()
    """Forms of the boxes and points that completions are searched for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRequest:
    """A conversation to complete."""

    generation: GenerationRequest
    include_usage: bool
    """A stream ends with a message that reports the usage."""
    continuous_usage: bool = False
    """Every message of a stream reports the usage so far."""
    metadata: Mapping[str, str]
    """Repeated in the response."""
    echoes_service_tier: bool
    """The response reports the service tier."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionRequest:
    """Texts to complete."""

    generation: GenerationRequest
    include_usage: bool
    """A stream ends with a message that reports the usage."""
    continuous_usage: bool = False
    """Every message of a stream reports the usage so far."""
    echo: bool
    """Each completion begins with its prompt. With log-probabilities, those of the prompt come first."""
    num_prompt_logprobs: int | None = None
    """k: the response has those of the prompt apart, with k of the most likely tokens at each position."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingPrompt:
    """An input to embed."""

    source: PromptSource
    field: str
    """Path of the field in the request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingRequest:
    """Inputs to embed, all with the same options."""

    inputs: tuple[EmbeddingPrompt, ...]
    """At least one."""
    pooling: PoolingParams
    max_tokens: int | None = None
    """Most tokens of all inputs together, as each has a vector; None: any number."""
    as_base64: bool
    """The response has the values as text."""
    priority: int
    """Lower values are scheduled first."""
    cache_salt: str
    """See `GenerationRequest`."""
    adapter: str = ""
    """See `GenerationRequest`."""

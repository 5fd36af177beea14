"""Chat templates: finds a checkpoint's template and renders messages to the text of a prompt.

Renders like transformers' `apply_chat_template`, in a sandbox, because templates are code that comes with a checkpoint.
The only module that uses jinja2.
"""

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, TypeAlias

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
from jinja2.meta import find_undeclared_variables
from jinja2.sandbox import ImmutableSandboxedEnvironment

from glimpse.engine.checkpoint.families.spec import FamilySpec
from glimpse.engine.checkpoint.model_config.model import read_json
from glimpse.engine.checkpoint.text.conversation import ChatMessage, MediaSlot, ToolDefinition
from glimpse.engine.errors import CheckpointError, TemplateError
from glimpse.media.kind import MediaKind

ToolTemplate: TypeAlias = Literal["auto", "off"]
"""Whether conversations with tools have the family's template for them, if the checkpoint's ignores tools."""


class ChatTemplate:
    """A compiled template and the special tokens it may use."""

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        """
        Args:
            special_tokens: Names such as `bos_token` → texts.

        Raises:
            CheckpointError: the source is not a valid template.
        """
        try:
            environment = _environment()
            self._template = environment.from_string(source, globals=_FUNCTIONS)
            self.variables = find_undeclared_variables(environment.parse(source)) - _FUNCTIONS.keys()
            """Names of the variables that it reads."""
        except jinja2.TemplateSyntaxError as error:
            raise CheckpointError(f"line {error.lineno} of the chat template is invalid: {error.message}") from error
        self.source = source
        self._special_tokens = dict(special_tokens)
        self._shown: dict[tuple[str, str], bool] = {}
        self.supports_developer_role = "developer" in source
        self.supports_tools = "tools" in source
        self.reads_system_tools = re.search(r"message(\.|\[['\"])tools\b", source) is not None
        """Tools are a member of the system message, as JSON text: Phi-4-mini's convention."""
        self.supports_tool_calls = "tool_calls" in source

    @cached_property
    def reads_text(self) -> bool:
        """The content of messages may be a text."""
        return _PROBE in self._tried(_PROBE)

    @cached_property
    def needs_parts(self) -> bool:
        """The content of messages must be a list of parts, also if it is text alone.

        Templates that only iterate over parts, as those of SmolVLM and LLaVA do, silently leave out the characters of a
        string. So both are tried.
        """
        return not self.reads_text and _PROBE in self._tried([_PROBE_PART])

    def shows(self, slot: Mapping[str, str], placeholder: str) -> bool:
        """Returns whether the template renders this placeholder for a part of media in the content of a message."""
        tried = (slot["type"], placeholder)
        if tried not in self._shown:
            self._shown[tried] = placeholder in self._tried([dict(slot), _PROBE_PART])
        return self._shown[tried]

    def _tried(self, content: str | list[dict[str, str]]) -> str:
        """Returns what the template renders of a user's message, which it may accept only after a system message."""
        user = {"role": "user", "content": content}
        for messages in ([user], [{**user, "role": "system"}, user]):
            with suppress(TemplateError):
                return self.render(messages, add_generation_prompt=False)
        return ""

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool,
        tools: Sequence[Mapping[str, Any]] | None = None,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """Renders the text of the prompt.

        Args:
            add_generation_prompt: End the prompt with the header of an assistant message.
            tools: Functions that the model may call, in the format of the OpenAI API.
            variables: Further template variables; they cannot override the ones above.

        Raises:
            TemplateError: the template refuses these messages.
        """
        context: dict[str, Any] = {
            **self._special_tokens,
            # transformers always defines both, and templates distinguish None from undefined.
            "documents": None,
            **(variables or {}),
            "messages": messages,
            "tools": tools,
            "add_generation_prompt": add_generation_prompt,
        }
        try:
            return self._template.render(context)
        except jinja2.TemplateError as error:
            raise TemplateError(f"the chat template refuses the conversation: {error.message or error}") from error
        except Exception as error:  # a template is code and may raise anything
            raise TemplateError(f"the chat template fails on the conversation: {error}") from error


_PROBE = "probe"
_PROBE_PART = {"type": "text", "text": _PROBE}


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatTemplates:
    """The chat templates of a model, of which each conversation has one."""

    default: ChatTemplate
    """The checkpoint's, or the one that overrides it."""
    video: ChatTemplate | None = None
    """Template of conversations with videos, if it is another one."""
    tools: ChatTemplate | None = None
    """Template of conversations with tools or tool calls, if it is another one."""
    brings_tools: bool = False
    """`tools` is the template of the family."""

    @property
    def with_tools(self) -> ChatTemplate:
        return self.tools or self.default

    @property
    def variables(self) -> frozenset[str]:
        """Names of the variables that a template reads."""
        templates = (self.default, self.video, self.tools)
        return frozenset(name for each in templates if each is not None for name in each.variables)

    def choose(self, messages: Sequence[ChatMessage], tools: Sequence[ToolDefinition]) -> ChatTemplate:
        """Returns the template of a conversation.

        Raises:
            TemplateError: it would silently leave out a part of the conversation.
        """
        has_calls = any(message.tool_calls for message in messages)
        if tools or has_calls or any(message.role == "tool" for message in messages):
            found = self.with_tools
        elif any(part == _VIDEO_SLOT for message in messages for part in message.content):
            found = self.video or self.default
        else:
            found = self.default
        if tools and not found.supports_tools:
            raise TemplateError("the model's chat template does not support tools")
        if has_calls and not found.supports_tool_calls:
            raise TemplateError("the model's chat template does not support tool calls")
        return found


_VIDEO_SLOT = MediaSlot(kind=MediaKind.VIDEO)


def load_chat_templates(
    path: Path, family: FamilySpec, override: str | None = None, *, tool_template: ToolTemplate = "auto"
) -> ChatTemplates:
    """Loads a checkpoint's chat template, and those of its family for what it ignores.

    Args:
        family: The checkpoint's, which has a template for those without one.
        override: Path of a template that takes precedence over all.
        tool_template: "off": not the family's template of conversations with tools.

    Raises:
        CheckpointError: there is no template, or it cannot be read.
    """
    config = read_json(path / "tokenizer_config.json", is_optional=True)
    # Older checkpoints have them in a file of their own, which transformers reads for these alone.
    older = {} if "added_tokens_decoder" in config else read_json(path / "special_tokens_map.json", is_optional=True)
    special_tokens = _special_tokens(config | older)
    named = {"default": family.document_template} if family.document_template else _named_templates(path, config)
    found = named.get("default") if override is None else _read_override(override)
    source = found or family.fallback_template
    if source is None:
        raise CheckpointError("the checkpoint has no chat template; pass one with --chat-template")

    def others(own: str | None, word: str) -> ChatTemplate | None:
        return None if own is None or override or word in (found or "") else ChatTemplate(own, special_tokens)

    own_tools = named.get("tool_use") if override is None else None
    from_family = None if tool_template == "off" or own_tools is not None else others(family.tool_template, "tools")
    return ChatTemplates(
        default=ChatTemplate(source, special_tokens),
        video=others(family.video_template, "video"),
        tools=from_family if own_tools is None else ChatTemplate(own_tools, special_tokens),
        brings_tools=from_family is not None,
    )


def _named_templates(path: Path, tokenizer_config: Mapping[str, Any]) -> Mapping[str, str]:
    """Returns the checkpoint's templates by name; {} without any. A single one is "default"."""
    whole = read_json(path / "processor_config.json", is_optional=True)
    if not whole.get("chat_template") and (path / "chat_template.jinja").exists():
        files = (path / "chat_template.jinja", *sorted((path / "additional_chat_templates").glob("*.jinja")))
        default, *more = (file.read_text(encoding="utf-8") for file in files)
        return {file.stem: text for file, text in zip(files[1:], more, strict=True)} | {"default": default}
    for document in (whole, read_json(path / "chat_template.json", is_optional=True), tokenizer_config):
        match document.get("chat_template"):
            case str() as text if text:
                return {"default": text}
            case [*entries]:
                return {entry["name"]: entry["template"] for entry in entries}
            case _:
                pass
    return {}


def _special_tokens(tokenizer_config: Mapping[str, Any]) -> dict[str, str]:
    entries = {name: value for name, value in tokenizer_config.items() if name.endswith("_token")}
    texts = {name: value["content"] if isinstance(value, Mapping) else value for name, value in entries.items()}
    return {name: text for name, text in texts.items() if isinstance(text, str)}


def _read_override(override: str) -> str:
    try:
        return Path(override).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CheckpointError(f"--chat-template {override!r} cannot be read") from error


def _environment() -> jinja2.Environment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols, _GenerationTag]
    )
    environment.filters["tojson"] = _to_json
    return environment


class _GenerationTag(jinja2.ext.Extension):
    """`{% generation %}…{% endgeneration %}` marks assistant text for training; it renders as its content."""

    tags = {"generation"}  # noqa: RUF012 - the name and the type are jinja2's

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Plain JSON, as models were trained on; jinja2's own filter escapes HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _strftime_now(format_: str) -> str:
    return datetime.now(tz=UTC).astimezone().strftime(format_)


_FUNCTIONS = {"raise_exception": _raise_exception, "strftime_now": _strftime_now}

"""Chat templates: where a checkpoint's is found, and how it turns messages into the text of a prompt.

Renders as transformers' `apply_chat_template` does, in a sandbox: a template comes with the checkpoint and is not our
code. Knows nothing of tokens. This is the only file that knows jinja2.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from glimpse.engine.errors import CheckpointError

QWEN2_VL_TEMPLATE = """\
{%- if messages[0].role != 'system' %}
{{- '<|im_start|>system\\nYou are a helpful assistant.<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\\n' }}
{%- if message.content is string %}
{{- message.content }}
{%- else %}
{%- for part in message.content %}
{%- if part.type == 'image' %}
{{- '<|vision_start|><|image_pad|><|vision_end|>' }}
{%- elif part.type == 'video' %}
{{- '<|vision_start|><|video_pad|><|vision_end|>' }}
{%- elif part.type == 'text' %}
{{- part.text }}
{%- else %}
{{- raise_exception('this model does not understand content of type ' + part.type) }}
{%- endif %}
{%- endfor %}
{%- endif %}
{{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""
"""Qwen2-VL's form of ChatML."""

QWEN2_AUDIO_TEMPLATE = """\
{%- if messages[0].role != 'system' %}
{{- '<|im_start|>system\\nYou are a helpful assistant.<|im_end|>\\n' }}
{%- endif %}
{%- set sounds = namespace(count=0) %}
{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\\n' }}
{%- if message.content is string %}
{{- message.content }}
{%- else %}
{%- for part in message.content %}
{%- if part.type == 'audio' %}
{%- set sounds.count = sounds.count + 1 %}
{{- 'Audio ' + sounds.count|string + ': <|audio_bos|><|AUDIO|><|audio_eos|>\\n' }}
{%- elif part.type == 'text' %}
{{- part.text }}
{%- else %}
{{- raise_exception('this model does not understand content of type ' + part.type) }}
{%- endif %}
{%- endfor %}
{%- endif %}
{{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""
"""Qwen2-Audio's, in which sounds are counted."""

FALLBACK_TEMPLATES: Mapping[str, str] = {
    "Qwen2VLForConditionalGeneration": QWEN2_VL_TEMPLATE,
    "Qwen2_5_VLForConditionalGeneration": QWEN2_VL_TEMPLATE,
    "Qwen2AudioForConditionalGeneration": QWEN2_AUDIO_TEMPLATE,
}
"""Architecture → the template of a checkpoint that has none."""


class TemplateError(ValueError):
    """A conversation that the chat template refuses, or whose media do not fit the prompt; the client's to correct."""


class ChatTemplate:
    """A compiled template and the special tokens that it may name."""

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        """
        Args:
            source: The template's text.
            special_tokens: Names such as `bos_token`, and their texts.

        Raises:
            CheckpointError: the text is not a template.
        """
        try:
            self._template = _environment().from_string(source, globals=_FUNCTIONS)
        except jinja2.TemplateSyntaxError as error:
            raise CheckpointError(
                f"line {error.lineno} of the chat template cannot be read: {error.message}"
            ) from error
        self.source = source
        self._special_tokens = dict(special_tokens)
        self.supports_developer_role = "developer" in source
        self.supports_tools = "tools" in source
        self.supports_tool_calls = "tool_calls" in source

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool,
        tools: Sequence[Mapping[str, Any]] | None = None,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """The text of the prompt.

        Args:
            messages: The conversation.
            add_generation_prompt: The prompt ends with the beginning of an answer.
            tools: Functions that the model may call, as the OpenAI API describes them.
            variables: Whatever else the template may ask for; none of those above.

        Raises:
            TemplateError: the template refuses these messages.
        """
        given: dict[str, Any] = {
            **self._special_tokens,
            # Templates tell "no tools" from "undefined"; transformers always defines both.
            "documents": None,
            **(variables or {}),
            "messages": messages,
            "tools": tools,
            "add_generation_prompt": add_generation_prompt,
        }
        try:
            return self._template.render(given)
        except jinja2.TemplateError as error:
            raise TemplateError(f"the chat template refuses the conversation: {error.message or error}") from error
        except Exception as error:  # a template is code: it may stumble over values in any way
            raise TemplateError(f"the chat template fails on the conversation: {error}") from error


def load_chat_template(path: Path, architecture: str, override: str | None) -> ChatTemplate:
    """A checkpoint's template, from the first place that has one.

    Args:
        path: Folder of the checkpoint.
        architecture: Whose fallback is taken where the checkpoint has no template.
        override: A file to take instead of all others.

    Raises:
        CheckpointError: there is no template, or it cannot be read.
    """
    config = _read_json(path / "tokenizer_config.json")
    source = _read_override(override) if override is not None else _find(path, config)
    source = source or FALLBACK_TEMPLATES.get(architecture)
    if source is None:
        raise CheckpointError(f"the checkpoint has no chat template; name a file with --chat-template ({architecture})")
    return ChatTemplate(source, _special_tokens(config))


def _find(path: Path, tokenizer_config: Mapping[str, Any]) -> str | None:
    if (path / "chat_template.jinja").exists():
        return (path / "chat_template.jinja").read_text(encoding="utf-8")
    return _default(_read_json(path / "chat_template.json")) or _default(tokenizer_config)


def _default(document: Mapping[str, Any]) -> str | None:
    """The one template of a document, or of several named ones that which is called "default"."""
    found: str | list[Mapping[str, str]] | None = document.get("chat_template")
    if isinstance(found, list):
        return next((entry["template"] for entry in found if entry["name"] == "default"), None)
    return found


def _special_tokens(tokenizer_config: Mapping[str, Any]) -> dict[str, str]:
    entries = {name: value for name, value in tokenizer_config.items() if name.endswith("_token")}
    texts = {name: value["content"] if isinstance(value, Mapping) else value for name, value in entries.items()}
    return {name: text for name, text in texts.items() if isinstance(text, str)}


def _read_override(override: str) -> str:
    try:
        return Path(override).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CheckpointError(f"--chat-template {override!r} cannot be read") from error


def _read_json(path: Path) -> Mapping[str, Any]:
    if not path.exists():
        return {}
    try:
        return json.loads(path.read_bytes())
    except ValueError as error:
        raise CheckpointError(f"the checkpoint's {path.name} is not JSON: {error}") from error


def _environment() -> jinja2.Environment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols, _GenerationTag]
    )
    environment.filters["tojson"] = _to_json
    return environment


class _GenerationTag(jinja2.ext.Extension):
    """`{% generation %}…{% endgeneration %}` marks an assistant's words for training; here it is its content."""

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
    """JSON as models were trained on it: jinja2's own filter escapes for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.now(tz=UTC).astimezone().strftime(form)


_FUNCTIONS = {"raise_exception": _raise_exception, "strftime_now": _strftime_now}

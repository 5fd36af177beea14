"""What models for late interaction (arXiv 2407.01449) have alike: prompts for queries and for images of documents, and
a vector for each token in place of an output head."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from glimpse.engine.checkpoint.families.spec import FamilyConfig, FamilySpec
from glimpse.engine.checkpoint.model_config.model import ModelConfig, read_json
from glimpse.engine.errors import CheckpointError
from glimpse.media.kind import MediaKind
from glimpse.media.processing.media_processing import MediaProcessing

_TEMPLATE = """\
{%- for message in messages %}
{%- set text = [{'type': 'text', 'text': message.content}] %}
{%- for part in (text if message.content is string else message.content) %}
{%- if part.type == 'text' %}
{{- prefix + part.text + suffix if is_query else part.text }}
{%- elif part.type == 'image' %}
{{- document }}
{%- else %}
{{- raise_exception('this model does not support content of type ' + part.type) }}
{%- endif %}
{%- endfor %}
{%- endfor %}
"""
"""A document; with `is_query`, a query."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetrievalPrompts:
    """The prompts of transformers' processor of a family."""

    query: tuple[str, str]
    """What stands before a query and after it."""
    image: str
    """What stands for an image."""
    fields: Mapping[str, str]
    """Fields of `processor_config.json` that may say otherwise → their only supported values."""

    @property
    def template(self) -> str:
        prefix, suffix = self.query
        return f"{{%- set prefix, suffix, document = {prefix!r}, {suffix!r}, {self.image!r} %}}\n{_TEMPLATE}"

    def check(self, path: Path) -> None:
        """Raises CheckpointError if the checkpoint in a folder has others."""
        stored = read_json(path / "processor_config.json", is_optional=True)
        for field, supported in self.fields.items():
            if (value := stored.get(field) or supported) != supported:
                raise CheckpointError(f"processor_config.json: '{field}': expected {supported!r}, got {value!r}")


def retriever(
    body: FamilySpec,
    prompts: RetrievalPrompts,
    bodies: Mapping[str, Callable[[Mapping[str, Any]], FamilyConfig]],
) -> FamilySpec:
    """Returns the family of a model for late interaction.

    Args:
        body: the family that reads images and text as it does.
        bodies: `vlm_config.model_type` → what reads `vlm_config`.
    """

    def read_config(config: Mapping[str, Any]) -> FamilyConfig:
        kind = config["vlm_config"].get("model_type")
        if kind not in bodies:
            expected = ", ".join(map(repr, bodies))
            raise CheckpointError(f"config.json: 'vlm_config.model_type': expected one of {expected}; got {kind!r}")
        family = bodies[kind](config["vlm_config"])
        return replace(
            family,
            text=replace(family.text, tie_word_embeddings=True),  # no token is sampled: the head takes no memory
            placeholder_ids={"image": family.placeholder_ids["image"]},
            token_embedding_size=config.get("embedding_dim", 128),
        )

    def read_media(path: Path, config: ModelConfig) -> MediaProcessing:
        prompts.check(path)
        return replace(body.read_media(path, config), videos=None)

    return replace(
        body,
        read_config=read_config,
        document_template=prompts.template,
        query_affixes=prompts.query,
        fallback_template=None,
        tool_template=None,
        slot_texts={kind: text for kind, text in body.slot_texts.items() if kind is MediaKind.IMAGE},
        read_media=read_media,
        grounding=(),
    )

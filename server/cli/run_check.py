"""Looks whether this machine can serve a model: its files here, the machine in a program that may load torch."""

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NoReturn, TypeVar

import msgspec

from glimpse.engine.checkpoint.families.companions import named_companions, resolve_companions
from glimpse.engine.checkpoint.families.registry import FAMILIES, family_of, load_model_config
from glimpse.engine.checkpoint.hub import read_hub_headers
from glimpse.engine.checkpoint.location import DEFAULT_MODEL, resolve_checkpoint
from glimpse.engine.checkpoint.model_config.model import ModelConfig, read_json
from glimpse.engine.checkpoint.text.media_inputs import read_media
from glimpse.engine.checkpoint.text.prompt import load_prompt_builder
from glimpse.engine.checkpoint.text.reasoning import find_reasoning_format
from glimpse.engine.checkpoint.text.tools import find_format
from glimpse.engine.errors import CheckpointError
from glimpse.engine.worker.loading.check_messages import CheckRequest, ServingCheck
from glimpse.engine.worker.loading.weight_files import StoredTensor, read_headers
from glimpse.near_names import closest
from glimpse.server.cli.check_text import ModelCheck, check_text
from glimpse.server.cli.local.tables import json_text
from glimpse.server.settings import ModelSettings

_T = TypeVar("_T")

_ENGINE_COMMAND = (sys.executable, "-m", "glimpse.engine.worker.loading.check_serving")


def run_check(model: str | None, settings: ModelSettings, *, as_json: bool) -> NoReturn:
    """Prints whether the model can be served, and ends with the exit status that says it."""
    result = check_model(model or str(DEFAULT_MODEL), settings)
    print(json_text(result) if as_json else check_text(result))
    sys.exit(0 if result.can_be_served else 1)


def check_model(model: str, settings: ModelSettings) -> ModelCheck:
    """Looks at a model's files and at this machine."""
    try:
        path = resolve_checkpoint(model, with_weights=False, mmproj=settings.mmproj)
        folders = resolve_companions(path, settings.companions, with_weights=False)
    except CheckpointError as error:
        return _refused(model, str(error))
    try:
        config = load_model_config(path, folders)
    except CheckpointError as error:
        return _refused(model, *_explain_config(path, error))
    problems: list[str] = []
    templates = _attempt(partial(_template_sources, path, config, settings), problems) or ("", "")
    _attempt(partial(read_media, path, config), problems)
    sources = [_Source(name=model, path=path), *_companion_sources(path, config, settings)]
    here = [_attempt(partial(read_headers, source.path), problems) for source in sources]
    stored = [headers or _hub_headers(source.name) for headers, source in zip(here, sources, strict=True)]
    engine = _check_machine(
        CheckRequest(
            config=settings.engine_config(path, folders),
            tensors=None if None in stored else stored[0],
            companion_tensors={
                source.prefix + name: tensor
                for source, headers in zip(sources[1:], stored[1:], strict=True)
                for name, tensor in (headers or {}).items()
            },
        )
    )
    problems += (problem for problem in engine.problems if problem not in problems)
    reasoning = find_reasoning_format(templates[0], settings.reasoning_parser, of_family=family_of(config).reasoning)
    tools = find_format(templates[1], settings.tool_call_parser)
    return ModelCheck(
        model=model,
        can_be_served=not problems,
        problems=problems,
        weights_are_here=None not in here,
        architecture=config.architecture,
        inputs=["text", *config.placeholder_ids],
        template=template_origin(config, settings, templates[0]),
        tools=None if tools is None else tools.name,
        reasoning=None if reasoning is None else reasoning.name,
        not_applied=[*config.unapplied_fields],
        engine=engine,
    )


def _attempt(act: Callable[[], _T], problems: list[str]) -> _T | None:
    """Returns a result; None where there is a problem, which is added to the others."""
    try:
        return act()
    except (CheckpointError, ValueError) as error:
        problems.append(str(error))
        return None


def _refused(model: str, *problems: str) -> ModelCheck:
    return ModelCheck(model=model, can_be_served=False, problems=[*problems])


def _explain_config(path: Path, error: CheckpointError) -> list[str]:
    """Returns why a configuration is refused, and the architecture with the closest name if its own is unknown."""
    try:
        architecture = str((read_json(path / "config.json").get("architectures") or ["?"])[0])
    except CheckpointError:
        return [str(error)]
    if architecture in FAMILIES:
        return [str(error)]
    near = closest(architecture, FAMILIES)
    supported = f"the closest name of those that are is {near}" if near else f"supported: {', '.join(FAMILIES)}"
    return [f"the architecture {architecture} is not supported; {supported}"]


def _template_sources(path: Path, config: ModelConfig, settings: ModelSettings) -> tuple[str, str]:
    """Returns the chat template and that of conversations with tools, once they and the tokenizer are read."""
    template = None if settings.chat_template is None else str(settings.chat_template)
    prompts = load_prompt_builder(path, config, template, tool_template=settings.tool_template)
    return prompts.templates.default.source, prompts.templates.with_tools.source


def template_origin(config: ModelConfig, settings: ModelSettings, source: str) -> str | None:
    """Returns where a chat template comes from; None for an empty one, which could not be read."""
    if not source:
        return None
    if settings.chat_template is not None:
        return str(settings.chat_template)
    is_fallback = source == FAMILIES[config.architecture].fallback_template
    return "that of the model's family: the checkpoint has none" if is_fallback else "the checkpoint's"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Source:
    """A checkpoint that holds the model or a part of it."""

    name: str
    """A folder, or an id on the hub."""
    path: Path
    """Folder of its metadata."""
    prefix: str = ""
    """See `Companion`."""


def _companion_sources(path: Path, config: ModelConfig, settings: ModelSettings) -> list[_Source]:
    names = named_companions(path)
    return [
        _Source(name=settings.companions.get(name := names[each.field], name), path=each.path, prefix=each.prefix)
        for each in config.companions
    ]


def _hub_headers(model: str) -> dict[str, StoredTensor] | None:
    headers = read_hub_headers(model)
    return None if headers is None else {name: StoredTensor(*header) for name, header in headers.items()}


def _check_machine(request: CheckRequest) -> ServingCheck:
    message = msgspec.json.encode(request)
    result = subprocess.run(_ENGINE_COMMAND, input=message, stdout=subprocess.PIPE, check=False)
    if result.returncode:
        sys.exit("glimpse: the program that looks at this machine failed; its output is above")
    return msgspec.json.decode(result.stdout, type=ServingCheck)

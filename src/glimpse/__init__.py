"""Glimpse serves vision-language models: `LLM` runs one in this process, `Client` asks a running server."""

from importlib import import_module

# `typing` has it too, but takes milliseconds to import, in which Ctrl-C at a command's start would print a traceback.
TYPE_CHECKING = False

if TYPE_CHECKING:
    from glimpse.client import AsyncClient, Client
    from glimpse.offline.llm import LLM, SamplingParams, StructuredOutputsParams

__all__ = ["LLM", "AsyncClient", "Client", "SamplingParams", "StructuredOutputsParams", "__version__"]

__version__ = "0.1.0"

_HOMES = {
    "AsyncClient": "glimpse.client",
    "Client": "glimpse.client",
    "LLM": "glimpse.offline.llm",
    "SamplingParams": "glimpse.offline.sampling_inputs",
    "StructuredOutputsParams": "glimpse.offline.sampling_inputs",
}


def __getattr__(name: str) -> object:
    """Imports a public name when it is first used, so that a command does not load torch and a client no engine."""
    if name not in _HOMES:
        raise AttributeError(f"module 'glimpse' has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)

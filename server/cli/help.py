"""What `--help` prints: examples first, and of a server's hundred flags those that people need. --help-all has all."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from cyclopts.help.formatters import DefaultFormatter

if TYPE_CHECKING:
    from cyclopts.help import HelpEntry, HelpPanel
    from rich.console import Console, ConsoleOptions

_SERVER_PANELS = frozenset({"Parameters", "Model", "Media", "Server", "Access", "Batches"})
_COMMON = frozenset(
    {
        "--http-port",
        "--allow-origin",
        "--host",
        "--port",
        "--model",
        "--served-model-name",
        "--device",
        "--quantization",
        "--max-model-len",
        "--kv-cache-bytes",
        "--num-threads",
        "--allowed-local-media-path",
        "--media-egress",
        "--log-level",
        "--api-keys",
        "--json",
        "--help",
    }
)
"""Flags of servers that `--help` shows."""

EXAMPLES: Mapping[str, str] = {
    "": """\
glimpse run                                    talk with the small model that comes with Glimpse
glimpse run Qwen/Qwen2.5-VL-3B-Instruct        download a model, serve it, talk with it
glimpse up --model ./my-model                  serve a folder: gRPC, REST, and a page at http://127.0.0.1:8080
glimpse chat "What is this?" photo.jpg         ask the server that runs""",
    "run": """\
glimpse run                                    a conversation with the model that comes with Glimpse
glimpse run ORG/NAME "What is this?" a.jpg     one question about an image
glimpse run ./my-model --quantization int8     a folder, with a flag of the server
glimpse run ORG/NAME --keep                    the server goes on; `glimpse ps` shows it, `glimpse stop` ends it""",
    "up": """\
glimpse up                                     the model that comes with Glimpse, at http://127.0.0.1:8080
glimpse up ORG/NAME --quantization int8        weights in 8 bits: half of the memory
glimpse up ./my-model --http-port 9000         a folder, on another port
glimpse up ORG/NAME --api-keys keys.txt        only for those who have a key; `glimpse key` makes them""",
    "serve": """\
glimpse serve ORG/NAME                         gRPC alone, on port 50051
glimpse serve ./my-model --host 0.0.0.0 --tls-certificate tls.crt --tls-key tls.key""",
    "check": """\
glimpse check ORG/NAME                         before its weights are downloaded
glimpse check ORG/NAME --quantization int4     with weights in 4 bits""",
    "chat": """\
glimpse chat                                   a conversation with the server that runs
glimpse chat "What is this?" photo.jpg         one question
glimpse chat "List the objects." a.jpg --json '{"type": "array"}'
git diff | glimpse chat - --system "Review this."
glimpse chat --target https://models.example --api-key KEY""",
    "models": """\
glimpse models                                 what the running server serves
glimpse models --recommend                     what this machine can serve, and how fast""",
    "top": """\
glimpse top                                    the servers of this machine
glimpse top 10.0.0.5:9090 10.0.0.6:9090        the metrics of others""",
    "list": "glimpse list",
    "pull": "glimpse pull Qwen/Qwen2.5-VL-3B-Instruct",
    "quantize": """\
glimpse quantize ORG/NAME ./name-int4          weights in 4 bits: a quarter of the disk and of the memory
glimpse quantize ./my-model ./my-model-int8 --to int8
glimpse quantize ./my-model ./my-model-int4 --text notes.txt
glimpse quantize my-model.F16.gguf ./my-model --to q4_k_m""",
    "stop": """\
glimpse stop ORG/NAME
glimpse stop --all""",
}
"""Commands to copy, by the command that they are for."""


class HelpFormatter(DefaultFormatter):
    """Prints the help of one command."""

    def __init__(self, command: str, *, is_whole: bool) -> None:
        """`command`: its name, "" for the program itself. `is_whole`: show all flags of servers."""
        super().__init__()
        self._command = command
        self._is_whole = is_whole

    def render_description(self, console: "Console", options: "ConsoleOptions", description: Any) -> None:
        super().render_description(console, options, description)
        if self._command in EXAMPLES:
            console.print("Examples:", markup=False)
            for line in EXAMPLES[self._command].splitlines():
                console.print(f"  {line}", markup=False, highlight=False, soft_wrap=True)
            console.print()
        if not self._is_whole:
            console.print("--help-all shows all flags, and their environment variables.\n", markup=False)

    def __call__(self, console: "Console", options: "ConsoleOptions", panel: "HelpPanel") -> None:
        if self._is_whole or panel.title not in _SERVER_PANELS:
            super().__call__(console, options, panel)
            return
        if shown := [_without_variable(entry) for entry in panel.entries if _is_common(entry)]:
            super().__call__(console, options, panel.copy(entries=shown))


def _is_common(entry: "HelpEntry") -> bool:
    return not _COMMON.isdisjoint(entry.positive_names)


def _without_variable(entry: "HelpEntry") -> "HelpEntry":
    return entry.copy(env_var=None)

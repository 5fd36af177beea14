"""Writes the synchronous client, `Client`, from the source of `AsyncClient`, to the standard output."""

import re
import subprocess
from pathlib import Path

SOURCE = Path(__file__).resolve().parent.parent / "src" / "glimpse" / "client" / "async_client.py"
CHANGES = (
    (r"The client for asyncio\.", "The synchronous client. Generated from async_client.py by tools/generate.py."),
    (r"server, in a running event loop\. Its methods raise", "server. Its methods may be called from several threads; "
     "they raise"),
    (r"await asyncio\.to_thread\((\w+), ", r"\1("),
    (r"import grpc\.aio\n", ""),
    (r"grpc\.aio\.", "grpc."),
    (r"asyncio", "time"),
    (r"AsyncGenerator, Awaitable, Callable", "Callable, Generator"),
    (r"AsyncGenerator", "Generator"),
    (r"Awaitable\[(\w+)\]", r"\1"),
    (r"AsyncClient", "Client"),
    (r"__a(enter|exit)__", r"__\1__"),
    (r"\(await (self\._call\(.*\))\)\.", r"\1."),
    (r"\b(async|await) ", ""),
)  # fmt: skip
"""Patterns of the source, and what stands for them."""


def main() -> None:
    text = SOURCE.read_text(encoding="utf-8")
    for pattern, written in CHANGES:
        text = re.sub(pattern, written, text)
    name = SOURCE.with_name("client.py").name
    subprocess.run(["ruff", "format", f"--stdin-filename={name}", "-"], input=text, text=True, check=True)


if __name__ == "__main__":
    main()

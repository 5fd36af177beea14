"""Generates the Python code in api/gen and the OpenAPI documents from the protos, the client, and tables in docs/.

With --check nothing is written; the command lists the files that are out of date and fails if there are any.
"""

import argparse
import filecmp
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CODE = Path("api/gen")
DOCUMENTS = {
    Path("gateway/openapi.json"): "glimpse.gateway.openapi.document",
    Path("gateway/openapi_typed.json"): "glimpse.gateway.openapi.typed",
    Path("server/cli/local/published.json"): "models.published.sizes",
    Path("src/glimpse/client/client.py"): "tools.sync_client",
}
"""Documents and code, and the modules that write them."""
TABLES = {
    Path("docs/compatibility.md"): "glimpse.gateway.field_table",
    Path("docs/models.md"): "models.published.page",
}
"""Documents, and the modules that refresh the tables in them."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a generated file is out of date")
    if not parser.parse_args().check:
        generate(ROOT)
        return
    with tempfile.TemporaryDirectory() as scratch:
        generate(Path(scratch))
        stale = sorted(stale_files(Path(scratch)))
    if stale:
        sys.exit("Out of date; run `make generate`: " + ", ".join(stale))


def generate(target: Path) -> None:
    subprocess.run(["buf", "generate", "--output", target], cwd=ROOT, check=True)
    for package in (target / CODE / "glimpse").rglob("*/"):
        write(package / "__init__.py", b"")
    for path, module in DOCUMENTS.items():
        document = subprocess.run([sys.executable, "-m", module], cwd=ROOT, stdout=subprocess.PIPE, check=True)
        write(target / path, document.stdout)
    for path, module in TABLES.items():
        with (ROOT / path).open("rb") as old:
            command = [sys.executable, "-m", module]
            tables = subprocess.run(command, cwd=ROOT, stdin=old, stdout=subprocess.PIPE, check=True)
        write(target / path, tables.stdout)


def write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def stale_files(fresh: Path) -> Iterator[str]:
    """Yields files that are missing, superfluous or different in the repository."""
    names = {file.relative_to(root) for root in (fresh, ROOT) for file in (root / CODE).rglob("*.py*")}
    names |= {*DOCUMENTS, *TABLES}
    for name in names:
        if "__pycache__" in name.parts:
            continue
        pair = (fresh / name, ROOT / name)
        if not all(file.exists() for file in pair) or not filecmp.cmp(*pair, shallow=False):
            yield str(name)


if __name__ == "__main__":
    main()

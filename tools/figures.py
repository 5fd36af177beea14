"""Counts how much there is to read, and fails where a bound is exceeded: `python tools/figures.py [--root DIR]`.

`--root` counts another checkout, such as an older commit, to compare. Its bounds are not checked.
"""

import argparse
import ast
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path, PurePath
from statistics import median, quantiles

import grimp

ROOT = Path(__file__).resolve().parent.parent
PRODUCT = ("engine", "server", "media", "gateway", "identity", "src", "dialect", "native")
FOLDERS = (*PRODUCT, "models", "bench", "tools")
"""Folders whose size is bounded."""
CODE = {".py", ".cpp", ".h", ".lua", ".ts", ".tsx", ".css"}
GENERATED = ("glimpse.v1", "glimpse.json", "glimpse.anthropic", "glimpse.openai")
GENERATED_FILE = "Generated from"
"""In the first line of a file that a tool wrote: no one has to read it."""
FEW_LINES = 40
DIALECTS = {
    "OpenAI, all but Responses": ("openai/v1/openai.proto", "openai.txtpb", ("openai.py",)),
    "Responses": ("openai/v1/responses.proto", "openai_responses.txtpb", ("responses/",)),
    "Anthropic": ("anthropic/v1/*.proto", "anthropic.txtpb", ("anthropic/",)),
}
"""What each dialect adds: its protos, its rules, and its adapter with the form of its stream."""


@dataclass(frozen=True, slots=True)
class Figure:
    """A number about the tree."""

    name: str
    value: float
    bound: float | None = None
    """The largest value that passes. None: it is only told."""
    where: str = ""
    """What it counted, where that helps to lower it."""


def files(root: Path, *folders: str) -> list[Path]:
    """Lists the files of folders that git tracks, without links."""
    names = subprocess.run(["git", "ls-files", *folders], cwd=root, capture_output=True, text=True, check=True).stdout
    paths = [root / name for name in names.splitlines()]
    return [path for path in paths if path.is_file() and not path.is_symlink()]


def text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def lines(paths: list[Path]) -> int:
    written = (text(path) for path in paths if path.suffix in CODE)
    return sum(code.count("\n") for code in written if GENERATED_FILE not in code.partition("\n")[0])


def imports(root: Path) -> dict[str, set[str]]:
    """Returns what each module of the package imports, imports in functions included, generated modules left out."""
    sys.path.insert(0, str(root / "src"))
    graph = grimp.build_graph("glimpse", exclude_type_checking_imports=True, cache_dir=None)
    modules = {name for name in graph.modules if not name.startswith(GENERATED)}
    return {name: graph.find_modules_directly_imported_by(name) & modules for name in modules}


def floors(graph: Mapping[str, set[str]]) -> tuple[int, list[str]]:
    """Returns the modules on the longest chain of imports, and an import of each circle, which the chain leaves out."""
    graph, circles = {name: set(imported) for name, imported in graph.items()}, list[str]()
    while True:
        try:
            order = list(TopologicalSorter(graph).static_order())
        except CycleError as error:
            imported, importer = error.args[1][:2]
            graph[importer].discard(imported)
            circles.append(f"{importer} → {imported}")
        else:
            break
    floor = dict[str, int]()
    for name in order:
        floor[name] = 1 + max((floor[imported] for imported in graph[name]), default=0)
    return max(floor.values()), circles


def small_modules(root: Path, graph: Mapping[str, set[str]]) -> list[str]:
    """Lists the modules with few lines that only one other imports."""
    importers = Counter(imported for modules in graph.values() for imported in modules)
    paths = {name: root / "src" / Path(*name.split(".")).with_suffix(".py") for name in graph}
    return sorted(
        name.removeprefix("glimpse.")
        for name, path in paths.items()
        if importers[name] == 1 and path.is_file() and text(path).count("\n") < FEW_LINES
    )


def nodes(paths: list[Path]) -> Iterator[ast.AST]:
    for path in paths:
        if path.suffix == ".py":
            yield from ast.walk(ast.parse(text(path)))


def figures(root: Path) -> Iterator[Figure]:
    """Counts everything."""
    product, graph = files(root, *PRODUCT), imports(root)
    longest_chain, circles = floors(graph)
    small = small_modules(root, graph)
    syntax = list(nodes(product))
    lengths = [
        node.end_lineno - node.lineno + 1
        for node in syntax
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno
    ]
    names = Counter(node.name for node in syntax if isinstance(node, ast.ClassDef) and not node.name.startswith("_"))
    shared = sorted(name for name, count in names.items() if count > 1)
    modules = Counter(
        str(PurePath(path.relative_to(root)).parent)
        for path in files(root, *FOLDERS)
        if path.suffix == ".py" and path.name != "__init__.py"
    )
    largest, size = modules.most_common(1)[0]
    yield Figure("lines of the product", lines(product))
    yield Figure("lines of tests", lines(files(root, "tests")))
    yield Figure("words of docs/", sum(len(text(path).split()) for path in files(root, "docs") if path.suffix == ".md"))
    yield Figure("modules", len(graph))
    yield Figure("floors of the import graph", longest_chain)
    yield Figure("circles of imports", len(circles), 0, ", ".join(circles))
    yield Figure(f"modules under {FEW_LINES} lines with one importer", len(small), None, ", ".join(small))
    yield Figure("names that several public classes have", len(shared), 10, ", ".join(shared))
    yield Figure("modules of the largest folder", size, 15, largest)
    yield from dialect_figures(root)
    yield Figure("lines of a function: median", median(lengths))
    yield Figure("lines of a function: 99 of 100", quantiles(lengths, n=100)[-1])
    yield Figure("lines of a function: largest", max(lengths), 75)


def dialect_figures(root: Path) -> Iterator[Figure]:
    """Counts the lines that each dialect adds. All share the codec and the facade."""
    for name, (protos, rules, adapter) in DIALECTS.items():
        paths = [*sorted((root / "api" / "glimpse").glob(protos)), root / "dialect" / rules]
        counts = [text(path).count("\n") for path in paths if path.is_file()]
        counts.append(lines(files(root, *(f"server/dialects/{each}" for each in adapter))))
        yield Figure(f"lines of {name}", sum(counts), None, "protos, rules, adapter: " + ", ".join(map(str, counts)))


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description="Count how much there is to read.")
    parser.add_argument("--root", type=Path, default=ROOT, help="another checkout to count")
    parser.add_argument("--where", action="store_true", help="name what was counted")
    arguments = parser.parse_args()
    exceeded = []
    for figure in figures(arguments.root.resolve()):
        bound = "" if figure.bound is None else f"  (at most {figure.bound:g})"
        print(f"{figure.value:8g}  {figure.name}{bound}")
        if figure.where and arguments.where:
            print(f"          {figure.where}")
        if figure.bound is not None and figure.value > figure.bound:
            exceeded.append(f"{figure.name}: expected at most {figure.bound:g}, got {figure.value:g}: {figure.where}")
    if exceeded and arguments.root == ROOT:
        sys.exit("\n".join(exceeded))


if __name__ == "__main__":
    main()

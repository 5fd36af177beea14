"""Installation: pip takes the build of torch that docs/install.md says, and the Dockerfile is what its comments say."""

import json
import os
import re
import shlex
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet

from tests.paths import ROOT

CPU_INDEX = "https://download.pytorch.org/whl/cpu"


def make_wheel(folder: Path, name: str, version: str, *requirements: str) -> Path:
    """Writes a wheel without contents."""
    stem = f"{name.replace('-', '_')}-{version}"
    path = folder / f"{stem}-py3-none-any.whl"
    metadata = "".join(f"Requires-Dist: {each}\n" for each in requirements)
    info = f"{stem}.dist-info"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{metadata}")
        wheel.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{info}/RECORD", "")
    return path


def make_index(folder: Path, *wheels: tuple[str, str, tuple[str, ...]]) -> str:
    """Writes a package index and returns its URL."""
    for name, version, requirements in wheels:
        (folder / name).mkdir(parents=True)
        path = make_wheel(folder / name, name, version, *requirements)
        (folder / name / "index.html").write_text(f'<a href="{path.name}">{path.name}</a>')
    return folder.as_uri()


def only_index(url: str) -> dict[str, str]:
    """An environment in which pip knows one index alone."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}
    return environment | {"PIP_CONFIG_FILE": os.devnull, "PIP_INDEX_URL": url, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}


def documented(options: str) -> list[str]:
    """The words of the command of pip in docs/install.md whose options match a pattern."""
    (line,) = re.findall(rf"^pip install dist/\S+{options}$", (ROOT / "docs/install.md").read_text(), re.MULTILINE)
    return shlex.split(line)


@pytest.mark.parametrize(
    ("options", "torch"), [(" --extra-index-url .*", "2.13.0+cpu"), ("", "2.13.0")], ids=["cpu", "gpu"]
)
def test_pip_takes_the_documented_build_of_torch(options: str, torch: str, tmp_path: Path) -> None:
    ordinary = make_index(tmp_path / "ordinary", ("torch", "2.13.0", ("nvidia-cudnn",)), ("nvidia-cudnn", "9.1", ()))
    cpu = make_index(tmp_path / "cpu", ("torch", "2.13.0+cpu", ()))
    glimpse = make_wheel(tmp_path, "glimpse", "0.1.0", "torch>=2.11")
    words = documented(options)[2:]
    arguments = [{CPU_INDEX: cpu, "dist/glimpse-*.whl": str(glimpse)}.get(word, word) for word in words]
    assert cpu in arguments or "+cpu" not in torch
    flags = ["--dry-run", "--quiet", "--ignore-installed", "--report", "-"]
    done = subprocess.run(
        [sys.executable, "-m", "pip", "install", *flags, *arguments],
        env=only_index(ordinary),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    taken = {each["metadata"]["name"]: each["metadata"]["version"] for each in json.loads(done.stdout)["install"]}
    assert taken["torch"] == torch
    assert ("nvidia-cudnn" in taken) == ("+cpu" not in torch)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    base: str
    instructions: list[tuple[str, str]]
    """Keywords and their arguments."""

    def of(self, keyword: str) -> list[str]:
        return [text for each, text in self.instructions if each == keyword]


def stages() -> dict[str, Stage]:
    """By name; the last one's is "image"."""
    text = re.sub(r"^#.*\n", "", (ROOT / "Dockerfile").read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    found: dict[str, Stage] = {}
    name = ""
    for line in filter(str.strip, text.splitlines()):
        keyword, rest = line.split(None, 1)
        if keyword == "FROM":
            base, _, name = rest.partition(" AS ")
            found[name or "image"] = Stage(base=base, instructions=[])
        elif found:
            found[name or "image"].instructions.append((keyword, rest))
    return found


STAGES = stages()


def ancestors(name: str, variant: str) -> list[str]:
    """The stage and those that it is made of."""
    names: list[str] = []
    while (name := name.replace("${VARIANT}", variant)) in STAGES:
        names.append(name)
        names += [
            each
            for text in STAGES[name].of("COPY")
            for source in re.findall(r"--from=(\S+)", text)
            for each in ancestors(source, variant)
        ]
        name = STAGES[name].base
    return names


def context_paths(name: str) -> list[str]:
    """What a stage copies from the repository."""
    return [
        path for text in STAGES[name].of("COPY") if "--from=" not in text for path in shlex.split(text)[:-1]
    ]  # fmt: skip


def test_every_base_image_has_a_digest() -> None:
    bases = {stage.base for stage in STAGES.values()}
    assert {base for base in bases if not re.fullmatch(r"[a-z-]+(\$\{VARIANT\})?", base)} == {"${PYTHON}"}
    (python,) = re.findall(r"^ARG PYTHON=(\S+)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    assert re.fullmatch(r"python:3\.11\.\d+-slim-\w+@sha256:[0-9a-f]{64}", python)


@pytest.mark.parametrize("variant", ["cpu", "cuda"])
def test_sources_change_without_reinstalling_dependencies(variant: str) -> None:
    made_of = ancestors("dependencies", variant)
    assert f"dependencies-{variant}" in made_of
    copied = {path for name in made_of for path in context_paths(name)}
    assert copied == {"pyproject.toml", "constraints.txt", "tools/image_requirements.py"}


@pytest.mark.parametrize(("variant", "torch"), [("cpu", "2.13.0+cpu"), ("cuda", "2.13.0")])
def test_variants_install_their_build_of_torch(variant: str, torch: str, tmp_path: Path) -> None:
    """Runs the commands of a stage, with indexes that have no more than they must."""
    ordinary = make_index(
        tmp_path / "ordinary", ("torch", "2.13.0", ("filelock",)), ("filelock", "4.2", ()), ("other", "1.0", ("torch",))
    )
    cpu = make_index(tmp_path / "cpu", ("torch", "2.13.0+cpu", ("filelock",)))
    (tmp_path / "torch.txt").write_text("torch==2.13.0\n")
    (tmp_path / "requirements.txt").write_text("other\ntorch==2.13.0\n")
    (tmp_path / "constraints.txt").write_text("torch==2.13.0\nfilelock==4.2\n")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "environment"], check=True)
    pip = tmp_path / "pip"
    pip.write_text(f'#!/bin/sh\nexec {sys.executable} -m pip --python {tmp_path}/environment/bin/python "$@"\n')
    pip.chmod(0o755)
    (command,) = STAGES[f"dependencies-{variant}"].of("RUN")
    environment = only_index(ordinary) | {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}", "TORCH_INDEX": cpu}
    done = subprocess.run(
        ["sh", "-c", command.split(None, 1)[1]],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    installed = {path.stem for path in tmp_path.glob("environment/lib/python*/site-packages/*.dist-info")}
    assert installed == {f"torch-{torch}", "filelock-4.2", "other-1.0"}


@pytest.mark.parametrize("variant", ["cpu", "cuda"])
def test_image_has_the_environment_and_the_wheel_alone(variant: str) -> None:
    image = STAGES["image"]
    assert image.base.replace("${VARIANT}", variant) in STAGES
    assert image.of("COPY") == ["--from=dependencies /opt/glimpse /opt/glimpse"]
    assert any("from=wheel" in text and "pip install" in text for text in image.of("RUN"))
    assert (image.of("USER"), image.of("ENTRYPOINT"), image.of("CMD")) == (["10001"], ['["glimpse"]'], ['["serve"]'])
    compiler = any("gcc" in text for text in STAGES[f"runtime-{variant}"].of("RUN"))
    assert compiler == (variant == "cuda")


def test_context_has_what_is_copied_and_no_tests() -> None:
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    assert {"*", "**/__pycache__", "**/node_modules", "**/*.so"} <= set(lines)
    admitted = {line[1:] for line in lines if line.startswith("!")}
    assert {path for path in admitted if not (ROOT / path).exists()} == set()
    copied = {path for name in STAGES for path in context_paths(name)} - {"."}
    assert copied <= admitted
    assert not any(path.startswith(("tests", "bench", "docs", "models/training")) for path in admitted)
    assert "models" not in admitted


def test_programs_of_the_build_exist() -> None:
    commands = " ".join(text for stage in STAGES.values() for text in stage.of("RUN"))
    modules = {each for each in re.findall(r"python -m (\S+)", commands) if each != "venv"}
    assert modules == {"glimpse.engine.worker.native.compile_kernels", "glimpse.media.native.compile_resampler"}
    assert all(find_spec(module) for module in modules)


def test_image_installs_what_the_project_requires(tmp_path: Path) -> None:
    subprocess.run([sys.executable, ROOT / "tools" / "image_requirements.py", tmp_path], check=True)
    requirements = (tmp_path / "requirements.txt").read_text().splitlines()
    torch = (tmp_path / "torch.txt").read_text().strip()
    assert torch in (ROOT / "constraints.txt").read_text().splitlines()
    assert torch in requirements
    names = {re.split(r"[\[><=]", each)[0] for each in requirements}
    project = (ROOT / "pyproject.toml").read_text().split("dependencies = [", 1)[1].split("\n]", 1)[0]
    assert names == {re.split(r"[\[><=]", each)[0] for each in re.findall(r'^  "([^"]+)",$', project, re.MULTILINE)}


def test_the_pinned_packages_run_on_every_supported_python() -> None:
    (minimum,) = SpecifierSet(metadata.metadata("glimpse")["Requires-Python"])
    refusing = {
        f"{each.name} {each.version}: {needed}"
        for each in metadata.distributions()
        if (needed := each.metadata["Requires-Python"]) and f"{minimum.version}.0" not in SpecifierSet(needed)
    }
    assert not refusing

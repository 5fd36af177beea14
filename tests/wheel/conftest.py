"""The wheel, and a virtual environment outside the repository that it is installed in."""

import os
import shutil
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.paths import ROOT

_LEFT_OUT = ("*.egg-info", ".*", "__pycache__", "build", "node_modules", "tests")


@dataclass(frozen=True, slots=True, kw_only=True)
class Installed:
    """A virtual environment with the wheel, and an empty folder to work in."""

    python: Path
    packages: Path
    """The environment's site-packages; those of the development environment, for the dependencies, come after them."""
    folder: Path

    @property
    def environment(self) -> dict[str, str]:
        """Without the repository on Python's path."""
        return os.environ | {"PYTHONPATH": "", "PATH": f"{self.python.parent}{os.pathsep}{os.environ['PATH']}"}

    def run(self, *command: str) -> str:
        """Runs a program and returns what it prints."""
        done = subprocess.run(
            command, cwd=self.folder, env=self.environment, capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel with compiled kernels, built from a copy of the repository: setuptools writes next to the sources."""
    source, output = tmp_path_factory.mktemp("source") / "glimpse", tmp_path_factory.mktemp("wheel")
    shutil.copytree(ROOT, source, symlinks=True, ignore=shutil.ignore_patterns(*_LEFT_OUT))
    if shutil.which("g++"):
        for module in ("glimpse.engine.worker.native.compile_kernels", "glimpse.media.native.compile_resampler"):
            environment = os.environ | {"PYTHONPATH": str(source / "src")}
            subprocess.run([sys.executable, "-m", module, "--package"], cwd=output, env=environment, check=True)
    _pip("wheel", "--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", str(output), str(source))
    (built,) = output.glob("*.whl")
    return built


@pytest.fixture(scope="session")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """The wheel's virtual environment. The dependencies become visible only after pip has run: it would count the
    development environment's glimpse as installed.
    """
    environment = tmp_path_factory.mktemp("installed") / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    python = environment / "bin" / "python"
    _pip("--python", str(python), "install", "--no-deps", "--no-index", str(wheel))
    (packages,) = environment.glob("lib/python*/site-packages")
    (packages / "dependencies.pth").write_text(sysconfig.get_paths()["purelib"])
    return Installed(python=python, packages=packages, folder=tmp_path_factory.mktemp("empty"))


def _pip(*arguments: str) -> None:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": ""}, check=False)
    assert done.returncode == 0, done.stderr

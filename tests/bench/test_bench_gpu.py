"""The GPU's benchmark, as far as it can be tried where there is none."""

import random
from pathlib import Path

import pytest
import torch
from torch import Tensor

from bench.engine.driver import Driver, Question, text
from bench.gpu.__main__ import Done, main, markdown, run_stage, stages
from bench.gpu.draws import draw_seconds
from bench.gpu.idle import idle_share
from bench.gpu.stage import SMALL, STAGES, Figure, Setting
from bench.gpu.workloads import ChatSizes, after_turns, batch_of_texts, chats
from bench.make_checkpoint import PRESETS, make_checkpoint
from glimpse.engine.protocol.config import EngineConfig
from glimpse.engine.protocol.sampling_params import SamplingParams
from glimpse.engine.worker.loading.load_engine import LoadedEngine, load_core
from glimpse.engine.worker.tensors.draws import DrawParams
from glimpse.native.process_table import is_alive
from tests.waiting import eventually


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiny")
    make_checkpoint(path, PRESETS["tiny"], seed=0)
    return path


@pytest.fixture(scope="module")
def engine(checkpoint: Path) -> LoadedEngine:
    config = EngineConfig(model_path=str(checkpoint), dtype="float32", backend="torch", kv_cache_bytes=1 << 24)
    return load_core(config, on_progress=lambda _stage, _fraction: None)


def test_idle_is_what_no_kernel_covers() -> None:
    assert idle_share([(0, 1), (0.5, 2), (3, 4)]) == 0.25
    assert idle_share([(0, 10), (2, 3)]) == 0


def test_every_question_is_answered_to_its_length(engine: LoadedEngine) -> None:
    draw = random.Random(0)
    questions = [Question(token_ids=text(draw, 5 + index), output_tokens=2 + index) for index in range(5)]
    run = Driver(engine.core).ask(questions, concurrency=2)
    assert [len(answer) for answer in run.answers] == [2, 3, 4, 5, 6]


def test_an_answer_is_the_same_however_many_are_asked_at_a_time(engine: LoadedEngine) -> None:
    questions = batch_of_texts(4, shortest=3, longest=9)
    driver = Driver(engine.core)
    assert driver.ask(questions, concurrency=1).answers == driver.ask(questions, concurrency=4).answers


def test_a_third_turn_holds_both_before_it(engine: LoadedEngine) -> None:
    sizes = ChatSizes(side=2, question_tokens=6, answer_tokens=4)
    first = chats(engine.model, 2, sizes, seed=1)
    third = after_turns(Driver(engine.core), first, sizes, num_turns=2, concurrency=2, seed=2)
    for begun, asked in zip(first, third, strict=True):
        assert asked.media == begun.media
        assert asked.token_ids[: len(begun.token_ids)] == begun.token_ids
        assert len(asked.token_ids) == len(begun.token_ids) + 2 * (4 + 6)


def test_a_chat_of_the_published_size_has_about_2800_tokens(engine: LoadedEngine) -> None:
    lengths = [len(chat.token_ids) for chat in chats(engine.model, 30, ChatSizes(), seed=0)]
    assert 2500 < sum(lengths) / len(lengths) < 3100
    assert {length // 900 for length in lengths} == {2, 3, 4}


def test_stages_that_need_no_checkpoint_come_once() -> None:
    assert list(stages(["2B", "7B"], ["limits", "idle"])) == [("limits", ""), ("idle", "2B"), ("idle", "7B")]


def test_a_stage_measures_on_the_processor_too(checkpoint: Path) -> None:
    figures = list(STAGES["dashinfer"](Setting(checkpoint=checkpoint, device="cpu", scale=SMALL)))
    assert [figure.unit for figure in figures] == 4 * ["requests/s"]
    assert all(figure.value > 0 for figure in figures)


def test_a_stage_that_fails_is_named_in_the_report(tmp_path: Path) -> None:
    failed = run_stage("steps", "nothing", out=tmp_path, device="cpu", seconds=100)
    assert failed.failure.startswith("exit status 1\n")
    assert "config.json" in failed.failure
    figure = Figure(name="copy", value=4321.0, unit="GB/s", aim="as written")
    done = Done(stage="limits", shape="", seconds=1.0, figures=[figure], failure="")
    report = markdown({"device": "a GPU"}, [done, failed])
    assert "- device: a GPU" in report
    assert "4,321 GB/s" in report
    assert "- steps nothing: exit status 1" in report


def test_a_stage_that_runs_out_of_time_is_ended(tmp_path: Path) -> None:
    done = run_stage("limits", "", out=tmp_path, device="cpu", seconds=1)
    assert done.failure.startswith("out of time after 1 s")
    assert run_stage("limits", "", out=tmp_path, device="cpu", seconds=0).failure.startswith("not started")


def test_what_a_stage_started_ends_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pid_file = tmp_path / "pid"
    (tmp_path / "bench" / "gpu").mkdir(parents=True)
    (tmp_path / "bench" / "gpu" / "stage.py").write_text(
        "import subprocess\n"
        'print(\'{"name": "copy", "value": 1, "unit": "GB/s"}\', flush=True)\n'
        'print(\'{"name": "cut\', flush=True)\n'
        f"open({str(pid_file)!r}, 'w').write(str(subprocess.Popen(['sleep', '600']).pid))\n"
        "raise SystemExit(3)\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    done = run_stage("limits", "", out=tmp_path, device="cpu", seconds=100)
    assert done.failure == "exit status 3"
    assert [figure.name for figure in done.figures] == ["copy"]
    assert eventually(lambda: not is_alive(int(pid_file.read_text()))), "the stage's child still runs"


def test_a_run_survives_a_checkpoint_and_a_device_that_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "tiny").write_text("no folder")
    arguments = ["--shapes", "tiny", "--only", "sampling", "limits", "--minutes", "9"]
    monkeypatch.setattr("sys.argv", ["bench.gpu", str(tmp_path / "out"), *arguments])
    monkeypatch.setattr("bench.gpu.__main__.device_name", no_device)
    monkeypatch.setattr("bench.gpu.__main__.STAGES", {"limits": None, "sampling": None})
    monkeypatch.setattr("signal.signal", lambda *_: None)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert main() == 1
    report = (tmp_path / "out" / "gpu.md").read_text()
    assert "- device: none: no NVIDIA driver" in report
    assert "- limits : exit status 1" in report
    assert "- checkpoint tiny: exit status 1" in report
    assert "FileExistsError" in report


def no_device(_device: str) -> str:
    raise RuntimeError("no NVIDIA driver")


def test_measures_both_ways_to_sample(checkpoint: Path) -> None:
    setting = Setting(checkpoint=checkpoint, device="cpu", scale=SMALL)
    figures = list(STAGES["sampling"](setting))
    assert len(figures) == 2 * 4 * 3, "without kernels on a CPU"
    assert all(figure.value > 0 for figure in figures)


def test_decode_steps_are_timed_before_and_after_graphs_are_captured(checkpoint: Path) -> None:
    figures = list(STAGES["graphs"](Setting(checkpoint=checkpoint, device="cpu", scale=SMALL)))
    assert [figure.name.rpartition(" graph ")[2] for figure in figures] == [
        *["for the longest context"] * 2,
        *["for their own contexts"] * 2,
    ]


def test_draws_are_timed_with_kernels_too() -> None:
    calls: list[int] = []

    def draw_tokens(_logits: Tensor, params: DrawParams, token_ids: Tensor) -> None:
        calls.append(len(params.rows))
        token_ids.fill_(3)

    host, whole = draw_seconds(torch.zeros(5, 40), SamplingParams(), draw_tokens, repeats=2)
    assert 0 < host < whole
    assert calls == [5] * 4

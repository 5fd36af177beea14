"""When OpenMP's threads sleep instead of spinning, and the team that makes them."""

import ctypes
import math
import os
import threading
from pathlib import Path

import pytest
import torch
from torch import nn

from glimpse.engine.worker.native import spin_control
from glimpse.engine.worker.native.backend import use_native
from glimpse.engine.worker.native.library import load_library
from glimpse.engine.worker.native.spin_control import (
    CALM_INTERVALS,
    Competition,
    SleepingTeam,
    busy_seconds,
    thread_times,
    watch,
)
from glimpse.native.processors import usable_processors
from tests.engine.levels import needs_kernels
from tests.waiting import eventually

COMPETING, CALM, IDLE = (0.3, 0.2, 0.5), (0.5, 0.01, 0.5), (0.01, 0.01, 0.02)
"""Seconds that threads ran and waited in an interval, and that the processors were busy."""


def test_competition_begins_at_once_and_ends_after_calm_intervals():
    competition = Competition()
    competition.update(*CALM)
    assert not competition.present
    competition.update(*COMPETING)
    for _ in range(CALM_INTERVALS):
        assert competition.present
        competition.update(*CALM)
    assert not competition.present


def test_competition_ends_while_the_engine_and_its_processors_are_idle():
    """What started with the server no longer runs when the first request comes."""
    competition = Competition()
    competition.update(*COMPETING)
    for _ in range(CALM_INTERVALS):
        assert competition.present
        competition.update(*IDLE)
    assert not competition.present


@pytest.mark.parametrize("busy_seconds", [0.2, math.nan])
def test_an_idle_engine_learns_nothing_while_others_run(busy_seconds: float):
    competition = Competition()
    competition.update(*COMPETING)
    for _ in range(2 * CALM_INTERVALS):
        competition.update(0.01, 0.01, busy_seconds)
    assert competition.present


def test_competition_in_between_starts_the_count_again():
    competition = Competition()
    for interval in (COMPETING, *[CALM] * (CALM_INTERVALS - 1), COMPETING, *[CALM] * (CALM_INTERVALS - 1)):
        competition.update(*interval)
        assert competition.present


def test_reads_the_times_of_threads(tmp_path: Path):
    for thread, text in {"7": "1500000000 250000000 12\n", "8": "0 0 0\n", "9": "ended"}.items():
        (tmp_path / thread).mkdir()
        (tmp_path / thread / "schedstat").write_text(text)
    assert thread_times(tmp_path) == {"7": (1.5, 0.25), "8": (0.0, 0.0)}
    assert thread_times(tmp_path / "none") == {}


def test_reads_how_long_processors_were_busy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "stat").write_text(
        "cpu 9 9 9 9 9 9 9 9 9 9\ncpu0 100 20 30 9000 70 1 2 4 0 0\n"
        "cpu1 5 0 0 9000 0 0 0 0 0 0\ncpu10 9 9 9 9 9 9 9 9 9 9\nintr 1 2\n"
    )
    monkeypatch.setattr(os, "sysconf", lambda _name: 100)
    monkeypatch.setattr(spin_control, "usable_processors", lambda: {0, 1})
    assert busy_seconds(tmp_path / "stat") == pytest.approx(1.62)
    monkeypatch.setattr(spin_control, "usable_processors", lambda: {7})
    assert math.isnan(busy_seconds(tmp_path / "stat"))
    assert math.isnan(busy_seconds(tmp_path / "none"))


def num_threads() -> int:
    return len(list(Path("/proc/self/task").iterdir()))


@needs_kernels
def test_team_has_more_threads_than_processors_until_it_is_released():
    before, size = num_threads(), len(usable_processors()) + 1
    team = SleepingTeam(load_library())
    team.hold(True)
    team.hold(True)
    assert eventually(lambda: num_threads() >= before + size)
    team.hold(False)
    assert eventually(lambda: num_threads() <= before)


@needs_kernels
def test_holds_a_team_while_others_compete(monkeypatch: pytest.MonkeyPatch):
    held: list[bool] = []
    stopped = threading.Event()
    waited = [0.0, 0.0, 0.4, 0.8]

    def next_times(_tasks: Path) -> dict[str, tuple[float, float]]:
        seconds = waited.pop(0)
        if not waited:
            stopped.set()
        return {"1": (1.0 + seconds, seconds)}

    class Team(SleepingTeam):
        def hold(self, wanted: bool) -> None:
            held.append(wanted)

    monkeypatch.setattr(spin_control, "thread_times", next_times)
    monkeypatch.setattr(spin_control, "INTERVAL_SECONDS", 0.01)
    watch(Team(load_library()), stopped)
    assert held == [False, True, True]


@needs_kernels
def test_each_process_that_computes_on_several_threads_watches(monkeypatch: pytest.MonkeyPatch):
    watching: list[int] = []
    for number in (1, 2):
        monkeypatch.setattr(torch, "get_num_threads", lambda number=number: number)
        monkeypatch.setattr(spin_control, "start", lambda _library, number=number: watching.append(number))
        use_native(nn.Module())
    monkeypatch.undo()
    use_native(nn.Module())  # with the threads of other tests
    assert watching == [2]


def test_the_users_wait_policy_has_the_last_word(monkeypatch: pytest.MonkeyPatch):
    watched = threading.Event()
    monkeypatch.setattr(spin_control, "watch", lambda _team, _stopped: watched.set())
    monkeypatch.setenv("OMP_WAIT_POLICY", "active")
    spin_control.start.__wrapped__(ctypes.CDLL(None))
    assert not watched.wait(0.1)
    monkeypatch.delenv("OMP_WAIT_POLICY")
    spin_control.start.__wrapped__(ctypes.CDLL(None))
    assert watched.wait(60)

"""The processors that a process may use."""

import os

import pytest

from glimpse.native.processors import num_processors, usable_processors


def test_counts_only_the_processors_of_the_affinity_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _process: {3, 5}, raising=False)
    assert (usable_processors(), num_processors()) == ({3, 5}, 2)


def test_counts_all_processors_without_an_affinity_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)  # as on macOS
    monkeypatch.setattr(os, "cpu_count", lambda: 6)
    assert (usable_processors(), num_processors()) == ({0, 1, 2, 3, 4, 5}, 6)

"""The processors and the processor time that a process may use."""

import os
from pathlib import Path

import pytest

from glimpse.native import processors
from glimpse.native.processors import cpu_quota, num_processors, processor_vendor, usable_processors


def test_counts_only_the_processors_of_the_affinity_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _process: {3, 5}, raising=False)
    monkeypatch.setattr(processors, "cpu_quota", lambda: None)
    assert (usable_processors(), num_processors()) == ({3, 5}, 2)


def test_counts_all_processors_without_an_affinity_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)  # as on macOS
    monkeypatch.setattr(os, "cpu_count", lambda: 6)
    monkeypatch.setattr(processors, "cpu_quota", lambda: None)
    assert (usable_processors(), num_processors()) == ({0, 1, 2, 3, 4, 5}, 6)


@pytest.mark.parametrize(("quota", "expected"), [(0.5, 1), (2.0, 2), (3.9, 3), (99.0, 6)])
def test_counts_no_more_processors_than_the_quota_lasts_for(
    monkeypatch: pytest.MonkeyPatch, quota: float, expected: int
) -> None:
    monkeypatch.setattr(processors, "usable_processors", lambda: frozenset(range(6)))
    monkeypatch.setattr(processors, "cpu_quota", lambda: quota)
    assert num_processors() == expected


def system(folder: Path, group: str, limits: dict[str, str]) -> Path:
    """Writes the files of a system: the control group of this process, and the limits of groups."""
    (folder / "proc/self").mkdir(parents=True)
    (folder / "proc/self/cgroup").write_text(group)
    for name, limit in limits.items():
        file = folder / "sys/fs/cgroup" / name / "cpu.max"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(limit)
    return folder


@pytest.mark.parametrize(
    ("group", "limits", "expected"),
    [
        ("0::/\n", {"": "200000 100000\n"}, 2.0),
        ("0::/\n", {"": "max 100000\n"}, None),
        ("0::/a/b\n", {"a": "50000 100000\n", "a/b": "300000 100000\n"}, 0.5),
        ("0::/a/b\n", {"a/b": "max 100000\n", "c": "1000 100000\n"}, None),
        ("0::/outside/the/container\n", {"": "150000 100000\n"}, 1.5),
        ("3:cpu:/old\n", {"": "150000 100000\n"}, None),
    ],
    ids=str,
)
def test_quota_is_the_smallest_of_the_groups_around(
    tmp_path: Path, group: str, limits: dict[str, str], expected: float | None
) -> None:
    assert cpu_quota(system(tmp_path, group, limits)) == expected


def test_there_is_no_quota_without_control_groups(tmp_path: Path) -> None:
    assert cpu_quota(tmp_path) is None


@pytest.mark.parametrize("vendor", ["GenuineIntel", "AuthenticAMD"])
def test_vendor_is_that_of_the_first_processor(tmp_path: Path, vendor: str) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/cpuinfo").write_text(f"processor\t: 0\nvendor_id\t: {vendor}\nmodel name\t: CPU: vendor_id\n\n")
    assert processor_vendor(tmp_path) == vendor


def test_vendor_is_empty_where_the_system_does_not_say(tmp_path: Path) -> None:
    assert processor_vendor(tmp_path) == "", "no such file, as on macOS"
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/cpuinfo").write_text("processor\t: 0\nCPU implementer\t: 0x41\n\n")
    assert processor_vendor(tmp_path) == "", "as on ARM"

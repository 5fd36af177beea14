"""The default number of threads and the NUMA nodes of machines that are described in a folder instead of /sys."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from glimpse.engine.worker.loading.cpu_topology import default_num_threads, numa_nodes


def describe(folder: Path, siblings: Mapping[int, str], **others: str) -> Path:
    """Writes a description of a machine.

    Args:
        folder: where to write it.
        siblings: the processors of each processor's core.
        others: lists of processors: `performance`, and nodes such as `node0`.
    """
    files = {f"devices/system/cpu/cpu{number}/topology/thread_siblings_list": text for number, text in siblings.items()}
    for name, text in others.items():
        file = "devices/cpu_core/cpus" if name == "performance" else f"devices/system/node/{name}/cpulist"
        files[file] = text
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True)
        (folder / name).write_text(text + "\n")
    return folder


def with_smt(num_cores: int) -> dict[int, str]:
    """Two threads a core; those of a core are `num_cores` apart, as on most servers."""
    return {number: f"{number % num_cores},{number % num_cores + num_cores}" for number in range(2 * num_cores)}


def without_smt(num_cores: int) -> dict[int, str]:
    return {number: str(number) for number in range(num_cores)}


@pytest.mark.parametrize(
    ("siblings", "expected"),
    [
        (without_smt(1), 1),
        (without_smt(2), 2),
        (without_smt(3), 2),
        (without_smt(8), 7),
        (with_smt(1), 1),
        (with_smt(2), 2),
        (with_smt(16), 15),
        ({0: "0-1", 1: "0-1", 2: "2-3", 3: "2-3"}, 2),
    ],
    ids=str,
)
def test_has_a_thread_for_each_core_but_one(tmp_path: Path, siblings: Mapping[int, str], expected: int):
    assert default_num_threads(siblings.keys(), None, describe(tmp_path, siblings)) == expected


@pytest.mark.parametrize(
    ("usable", "expected"), [({0, 1, 2, 3}, 3), ({0, 4}, 1), ({0, 1, 4}, 2), ({0, 1, 2, 4, 5, 6}, 2), ({7}, 1)], ids=str
)
def test_counts_only_usable_processors(tmp_path: Path, usable: set[int], expected: int):
    assert default_num_threads(usable, None, describe(tmp_path, with_smt(4))) == expected


HYBRID = {0: "0-1", 1: "0-1", 2: "2-3", 3: "2-3", 4: "4-5", 5: "4-5", 6: "6", 7: "7", 8: "8", 9: "9"}
"""Three performance cores with two threads each, and four efficiency cores."""


@pytest.mark.parametrize(
    ("usable", "quota", "expected"),
    [
        (set(range(10)), None, 3),  # the front end runs on efficiency cores
        (set(range(10)), 8.0, 3),
        (set(range(10)), 3.0, 2),
        (set(range(6)), None, 2),
        ({6, 7, 8, 9}, None, 3),
    ],
    ids=str,
)
def test_computes_on_performance_cores(tmp_path: Path, usable: set[int], quota: float | None, expected: int):
    assert default_num_threads(usable, quota, describe(tmp_path, HYBRID, performance="0-5")) == expected


@pytest.mark.parametrize(("quota", "expected"), [(0.5, 1), (2.0, 2), (2.9, 2), (4.0, 3), (16.5, 15), (64.0, 15)])
def test_respects_a_quota(tmp_path: Path, quota: float, expected: int):
    machine = without_smt(16)
    assert default_num_threads(machine.keys(), quota, describe(tmp_path, machine)) == expected


def test_counts_processors_where_no_cores_are_described(tmp_path: Path):
    assert default_num_threads(set(range(4)), None, tmp_path) == 3


def test_lists_nodes_with_usable_processors(tmp_path: Path):
    sys = describe(tmp_path, {}, node0="0-1,4-5", node1="2-3,6-7", node2="", node10="8")
    assert numa_nodes(set(range(9)), sys) == {0: {0, 1, 4, 5}, 1: {2, 3, 6, 7}, 10: {8}}
    assert numa_nodes({3, 6}, sys) == {1: {3, 6}}
    assert numa_nodes({0}, tmp_path / "none") == {}

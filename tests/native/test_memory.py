"""The memory that is available on systems that are described in a folder."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from glimpse.native.memory import available_memory, count_oom_kills

MEMINFO = "MemTotal: 24684096 kB\nMemFree: 100 kB\nMemAvailable:   5000 kB\nHugePages_Total:       0\n"
UNLIMITED = "9223372036854771712\n"
V1, V2 = "sys/fs/cgroup/memory", "sys/fs/cgroup"


def system(folder: Path, files: Mapping[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def v1(group: str, limit: str, used: int, stat: str = "") -> dict[str, str]:
    folder = f"{V1}/{group}"
    return {
        f"{folder}/memory.limit_in_bytes": limit,
        f"{folder}/memory.usage_in_bytes": f"{used}\n",
        f"{folder}/memory.stat": stat,
    }


def v2(group: str, limit: str, used: int, stat: str = "") -> dict[str, str]:
    folder = f"{V2}/{group}"
    return {f"{folder}/memory.max": limit, f"{folder}/memory.current": f"{used}\n", f"{folder}/memory.stat": stat}


CACHED = "anon 7\nactive_file 40\ninactive_file 2\nshmem 1000\n"
CACHED_V1 = "active_file 1\ninactive_file 1\ntotal_active_file 40\ntotal_inactive_file 2\n"


@pytest.mark.parametrize(
    ("groups", "files", "expected"),
    [
        ("0::/\n", {}, 5_120_000),
        ("0::/\n", v2("", "3000\n", 1000), 2000),
        ("0::/\n", v2("", "3000\n", 1000, CACHED), 2042),
        ("0::/\n", v2("", "max\n", 1000, CACHED), 5_120_000),
        ("0::/\n", v2("", "9000000\n", 1000), 5_120_000),
        ("0::/a/b\n", v2("a", "3000\n", 1000) | v2("a/b", "9000\n", 500), 2000),
        ("0::/a/b\n", v2("a", "9000\n", 1000) | v2("a/b", "max\n", 500), 8000),
        ("0::/a\n", v2("other", "3000\n", 1000), 5_120_000),
        ("0::/outside/the/container\n", v2("", "3000\n", 1000), 2000),
        ("0::/\n", v2("", "3000\n", 4000), 0),
        ("4:memory:/a\n1:cpu:/\n0::/\n", v1("a", "3000\n", 1000, CACHED_V1), 2042),
        ("4:memory:/a\n", v1("a", UNLIMITED, 1000) | v1("", "3000\n", 2500), 500),
        ("4:memory:/docker/1f\n", v1("", "3000\n", 1000), 2000),
        ("4:memory:/\n", v1("", UNLIMITED, 1000), 5_120_000),
        ("3:cpuset:/\n", v1("", "3000\n", 1000), 5_120_000),
    ],
    ids=str,
)
def test_is_the_least_that_machine_and_groups_leave(
    tmp_path: Path, groups: str, files: Mapping[str, str], expected: int
) -> None:
    root = system(tmp_path, {"proc/meminfo": MEMINFO, "proc/self/cgroup": groups, **files})
    assert available_memory(root=root) == expected


def test_counts_the_memory_of_the_node_that_is_used(tmp_path: Path) -> None:
    nodes = {
        f"sys/devices/system/node/node{number}/meminfo": f"Node {number} MemTotal: 9000 kB\nNode {number} MemFree:"
        f" {free} kB\nNode {number} Active(file): 40 kB\nNode {number} Inactive(file): 2 kB\n"
        for number, free in enumerate((1000, 9000))
    }
    root = system(tmp_path, {"proc/meminfo": MEMINFO} | nodes)
    assert available_memory(0, root) == 1042 * 1024
    assert [available_memory(node, root) for node in (1, 2, None)] == [5_120_000] * 3


def test_is_unknown_where_the_system_does_not_say(tmp_path: Path) -> None:
    assert available_memory(root=tmp_path) is None


def test_kills_for_lack_of_memory_are_counted(tmp_path: Path) -> None:
    assert count_oom_kills(tmp_path) is None
    assert count_oom_kills(system(tmp_path, {"proc/vmstat": "nr_free_pages 5\noom_kill_x 2\n"})) is None
    assert count_oom_kills(system(tmp_path, {"proc/vmstat": "nr_free_pages 5\noom_kill 3\npgfault 4\n"})) == 3

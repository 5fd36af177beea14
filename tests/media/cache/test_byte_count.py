"""Bytes in use that several processes count together."""

import os
import subprocess
import sys

from glimpse.media.cache.byte_count import ByteCount, SharedByteCounts

_CHILD = """
import sys
from glimpse.media.cache.byte_count import SharedByteCounts
count = SharedByteCounts(int(sys.argv[1]), num_processes=2).count(1, 1)
count.add(30)
count.add(-10)
print(count.own, count.total)
"""


def test_counts_of_one_process() -> None:
    count = ByteCount()
    count.add(5)
    count.add(-2)
    assert (count.own, count.total) == (3, 3)


def test_each_limit_has_a_total_of_its_own() -> None:
    counts, descriptor = SharedByteCounts.create(num_processes=3, num_limits=2)
    os.close(descriptor)
    first, second, other = counts.count(0, 0), counts.count(0, 2), counts.count(1, 0)
    first.add(10)
    second.add(7)
    other.add(1)
    assert [(each.own, each.total) for each in (first, second, other)] == [(10, 17), (7, 17), (1, 1)]


def test_process_that_is_gone_uses_nothing() -> None:
    counts, descriptor = SharedByteCounts.create(num_processes=2, num_limits=2)
    os.close(descriptor)
    for limit in range(2):
        for process in range(2):
            counts.count(limit, process).add(4)
    counts.clear(1)
    assert [counts.count(limit, 0).total for limit in range(2)] == [4, 4]


def test_other_processes_see_the_counts() -> None:
    counts, descriptor = SharedByteCounts.create(num_processes=2, num_limits=2)
    here = counts.count(1, 0)
    here.add(5)
    command = [sys.executable, "-c", _CHILD, str(descriptor)]
    child = subprocess.run(command, pass_fds=[descriptor], capture_output=True, text=True, check=True)
    os.close(descriptor)
    assert child.stdout.split() == ["20", "25"]
    assert here.total == 25

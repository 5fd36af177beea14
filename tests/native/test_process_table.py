"""What is read of this process and of one that it starts."""

import os
import subprocess
import sys

from glimpse.native.process_table import (
    command_line,
    family,
    is_alive,
    pids,
    proportional_bytes,
    resident_bytes,
    stat,
)
from tests.waiting import eventually


def test_a_child_belongs_to_the_family_until_it_is_reaped() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()", "a b"], stdin=subprocess.PIPE) as child:
        assert int(stat(child.pid)[1]) == os.getpid()
        assert child.pid in family(os.getpid())
        assert child.pid in pids()
        assert family(child.pid) == [child.pid]
        eventually(lambda: command_line(child.pid).endswith("-c input() a b "))
        assert is_alive(child.pid)
        child.kill()
        eventually(lambda: not is_alive(child.pid))  # a zombie, since nobody has waited for it
        assert stat(child.pid)[0] == "Z"
    assert not family(child.pid)
    assert not stat(child.pid)
    assert not command_line(child.pid)
    assert not is_alive(child.pid)
    assert proportional_bytes(child.pid) == resident_bytes(child.pid) == 0


def test_a_share_of_the_memory_is_less_than_all_that_is_resident() -> None:
    block = bytearray(b"x" * (64 << 20))
    assert len(block) < proportional_bytes(os.getpid()) <= resident_bytes(os.getpid()) + (8 << 20)

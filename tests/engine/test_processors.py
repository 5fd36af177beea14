"""The scheduling classes in which the product's processes really run."""

import os
import sys

import pytest

from engine.processors import give_way, insist

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the classes are Linux'")


def test_a_process_gives_way_and_takes_it_back():
    before = os.sched_getscheduler(0)
    try:
        give_way()
        assert os.sched_getscheduler(0) == os.SCHED_BATCH
        insist()
        assert os.sched_getscheduler(0) == os.SCHED_OTHER
    finally:
        os.sched_setscheduler(0, before, os.sched_param(0))

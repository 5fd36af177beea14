"""Tests for the contents of load reports."""

import struct

import pytest

from glimpse.server.rpc.load_meter import WINDOW_SECONDS, LoadMeter
from glimpse.v1 import load_pb2
from tests.clock import Clock
from tests.server.services.step_stats import stats


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def meter(clock: Clock) -> LoadMeter:
    return LoadMeter(max_sequences=10, clock=clock)


def test_rates_cover_the_last_seconds(meter: LoadMeter, clock: Clock) -> None:
    clock.now = 5.0
    for code in ("OK", "OK", "INVALID_ARGUMENT", "CANCELLED", "INTERNAL"):
        meter.rpc_began()
        meter.rpc_ended(code)
    assert (meter.report().rps_fractional, meter.report().eps) == (1.0, 0.2)  # of the five seconds that there were
    clock.now = 5.0 + WINDOW_SECONDS
    assert (meter.report().rps_fractional, meter.report().eps) == (0.5, 0.1)
    clock.now += 0.1
    assert (meter.report().rps_fractional, meter.report().eps) == (0.0, 0.0)


def test_utilization_is_that_of_the_scarcest_resource(meter: LoadMeter) -> None:
    assert meter.report().application_utilization == 0.1  # balancers ignore 0
    meter.engine_changed(num_blocks=100)
    meter.engine_stepped(stats(running=2, blocks=70))
    assert meter.report().application_utilization == 0.7
    meter.engine_stepped(stats(running=10, waiting=5, blocks=70))
    report = meter.report()
    assert report.application_utilization == 1.5
    assert dict(report.named_metrics) == {
        "kv_cache_usage_perc": 0.7,
        "num_requests_running": 10,
        "num_requests_waiting": 5,
    }


def test_lost_engine_resets_the_load(meter: LoadMeter) -> None:
    meter.engine_changed(num_blocks=100)
    meter.engine_stepped(stats(running=2, blocks=70))
    meter.engine_changed(num_blocks=100)
    assert meter.report().application_utilization == 0.1


def test_report_is_encoded_as_orca() -> None:
    """Field numbers and types equal those of `xds.data.orca.v3.OrcaLoadReport`."""
    fields = load_pb2.StreamLoadReportsResponse.DESCRIPTOR.fields
    assert {(field.number, field.name, field.type == field.TYPE_DOUBLE) for field in fields} == {
        (6, "rps_fractional", True),
        (7, "eps", True),
        (8, "named_metrics", False),
        (9, "application_utilization", True),
    }
    report = load_pb2.StreamLoadReportsResponse(application_utilization=1.0, named_metrics={"a": 0.5})
    # Field 8: a message of 1 (string) and 2 (double); field 9: a double.
    named = bytes([8 << 3 | 2, 12, 1 << 3 | 2, 1, ord("a"), 2 << 3 | 1]) + struct.pack("<d", 0.5)
    assert report.SerializeToString(deterministic=True) == named + bytes([9 << 3 | 1]) + struct.pack("<d", 1.0)


def test_rates_of_other_processes_are_added(meter: LoadMeter, clock: Clock) -> None:
    clock.now = 10.0
    meter.rpc_began()
    meter.rpc_ended("INTERNAL")
    meter.set_others(2.0, 0.5)
    assert meter.rates == (0.1, 0.1), "its own alone"
    assert (meter.report().rps_fractional, meter.report().eps) == (pytest.approx(2.1), pytest.approx(0.6))

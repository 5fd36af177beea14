"""Metrics of a process as values that cross a socket, and their sums over processes."""

from collections.abc import Collection, Iterable, Iterator
from fractions import Fraction
from math import fsum

import msgspec
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

_CUMULATIVE_TYPES = ("counter", "histogram")
_AVAILABILITY_SUFFIX = "_available"

_SampleKey = tuple[str, tuple[tuple[str, str], ...]]
"""Name and labels."""


class SampleSnapshot(msgspec.Struct, frozen=True, array_like=True):
    """One value of a metric."""

    name: str
    """With the suffix, such as `_total` or `_bucket`."""
    labels: tuple[tuple[str, str], ...]
    """Names and values, in the order of the metric's declaration."""
    value: float


class FamilySnapshot(msgspec.Struct, frozen=True, array_like=True):
    """All values of a metric."""

    name: str
    """Without the suffixes of samples."""
    type: str
    """Prometheus' type: "counter", "gauge" or "histogram"."""
    documentation: str
    samples: tuple[SampleSnapshot, ...]


MetricsSnapshot = tuple[FamilySnapshot, ...]
"""The metrics of a process at one moment."""


def take_snapshot(metrics: Collector, *, without: Collection[str] = ()) -> MetricsSnapshot:
    """Returns the present values of all families but those whose names are in `without`."""
    return tuple(
        FamilySnapshot(
            family.name,
            family.type,
            family.documentation,
            tuple(SampleSnapshot(each.name, tuple(each.labels.items()), each.value) for each in family.samples),
        )
        for family in metrics.collect()
        if family.name not in without
    )


def merge(snapshots: Iterable[MetricsSnapshot]) -> list[Metric]:
    """Returns the families of all snapshots, each sample summed over them.

    Of gauges that say whether something is available, the least counts: it is available if all processes have it.
    Sums are rounded once. So they do not depend on the order of processes, and never fall while no addend falls:
    Prometheus would take a counter that falls by the last bit for one that began at 0.
    """
    merged: list[Metric] = []
    for family, values in _by_family(snapshots):
        is_availability = family.type == "gauge" and family.name.endswith(_AVAILABILITY_SUFFIX)
        combine = min if is_availability else fsum
        metric = Metric(family.name, family.documentation, family.type)
        metric.samples = [Sample(name, dict(labels), combine(each)) for (name, labels), each in values.items()]
        merged.append(metric)
    return merged


def cumulative_sum(snapshots: Iterable[MetricsSnapshot]) -> MetricsSnapshot:
    """Returns the exact sums of counters and histograms, without gauges.

    A sum that no single float holds is several samples with the same name and labels, which `merge` adds up.
    """
    return tuple(
        FamilySnapshot(
            family.name,
            family.type,
            family.documentation,
            tuple(SampleSnapshot(*key, part) for key, each in values.items() for part in _exact_sum(each)),
        )
        for family, values in _by_family(snapshots)
        if family.type in _CUMULATIVE_TYPES
    )


def _by_family(
    snapshots: Iterable[MetricsSnapshot],
) -> Iterator[tuple[FamilySnapshot, dict[_SampleKey, list[float]]]]:
    """Yields each family as one of the snapshots has it, and the values of each sample in all of them."""
    families: dict[str, FamilySnapshot] = {}
    values: dict[str, dict[_SampleKey, list[float]]] = {}
    for snapshot in snapshots:
        for family in snapshot:
            families.setdefault(family.name, family)
            of_family = values.setdefault(family.name, {})
            for sample in family.samples:
                of_family.setdefault((sample.name, sample.labels), []).append(sample.value)
    return ((family, values[name]) for name, family in families.items())


def _exact_sum(values: Iterable[float]) -> list[float]:
    """Returns floats whose exact sum is that of the values: the rounded sum, then what rounding left of it."""
    rest = sum(map(Fraction, values), Fraction())
    parts = [float(rest)]
    while rest := rest - Fraction(parts[-1]):
        parts.append(float(rest))
    return parts

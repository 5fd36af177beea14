"""Every series and label that the dashboard and the alerts name exists in a scrape."""

import json
import re
import urllib.request
from collections.abc import Iterator
from typing import Any

import promql_parser
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from glimpse.v1 import chat_pb2_grpc
from tests.e2e.stack import Served
from tests.paths import ROOT
from tests.server.requests import image_part, png, request, user

MONITORING = ROOT / "gateway" / "k8s" / "components" / "monitoring"
TARGET_LABELS = {"pod"}
"""Labels that Prometheus adds to what it reads in Kubernetes."""


def alerts() -> list[dict[str, Any]]:
    return yaml.safe_load((MONITORING / "alerts.yaml").read_text())["spec"]["groups"][0]["rules"]


def dashboard() -> dict[str, Any]:
    return json.loads((MONITORING / "dashboard.json").read_text())


def expressions() -> Iterator[str]:
    yield from (alert["expr"] for alert in alerts())
    yield from (target["expr"] for panel in dashboard()["panels"] for target in panel.get("targets", ()))


def selectors(node: Any) -> Iterator[Any]:
    """Yields the series of a parsed expression."""
    if isinstance(node, promql_parser.VectorSelector):
        yield node
    for name in ("expr", "lhs", "rhs", "param", "vector_selector", "args"):
        child = getattr(node, name, None)
        for each in child if isinstance(child, list) else [child]:
            if each is not None:
                yield from selectors(each)


def groupings(node: Any) -> Iterator[str]:
    """Yields the labels by which an expression aggregates."""
    modifier = getattr(node, "modifier", None)
    yield from getattr(modifier, "labels", ())
    for name in ("expr", "lhs", "rhs", "args"):
        child = getattr(node, name, None)
        for each in child if isinstance(child, list) else [child]:
            if each is not None:
                yield from groupings(each)


def parsed(expression: str) -> Any:
    return promql_parser.parse(expression.replace("$__rate_interval", "5m").replace("$model", ".*"))


@pytest.fixture(scope="module")
def labels(shared_server: Served) -> dict[str, set[str]]:
    """Series → its labels, after a request with an image."""
    with shared_server.channel() as channel:
        chat = chat_pb2_grpc.ChatServiceStub(channel)
        chat.CreateChatCompletion(request(user("What is it?", image_part(png(96, 64, (4, 5, 6))))))
    with urllib.request.urlopen(f"http://127.0.0.1:{shared_server.metrics_port}/metrics", timeout=60) as answer:
        families = list(text_string_to_metric_families(answer.read().decode()))
    names: dict[str, set[str]] = {}
    for family in families:
        for sample in family.samples:
            names.setdefault(sample.name, set()).update(sample.labels)
    return names


@pytest.mark.parametrize("expression", sorted(set(expressions())))
def test_series_and_labels_exist(labels: dict[str, set[str]], expression: str) -> None:
    tree = parsed(expression)
    found = list(selectors(tree))
    assert found
    # A walk that misses a branch would check nothing there.
    assert {series.name for series in found} == set(re.findall(r"\bglimpse_\w+", expression))
    for series in found:
        assert series.name in labels, series.name
        matched = {matcher.name for matcher in series.matchers.matchers}
        assert matched <= labels[series.name]
    known = {"le", *TARGET_LABELS}.union(*(labels[series.name] for series in found))
    assert set(groupings(tree)) <= known


def test_alerts_say_what_is_wrong_with_labels_that_they_have() -> None:
    for alert in alerts():
        assert alert["annotations"]["summary"].endswith(".")
        assert alert["labels"]["severity"] in ("critical", "warning")
        named = set(re.findall(r"\$labels\.(\w+)", json.dumps(alert["annotations"])))
        tree = parsed(alert["expr"])
        assert named <= {*groupings(tree), *TARGET_LABELS}, alert["alert"]


def test_panels_of_the_dashboard_do_not_overlap() -> None:
    places = [panel["gridPos"] for panel in dashboard()["panels"]]
    cells = [
        (x, y)
        for place in places
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(cells) == len(set(cells))
    assert len({panel["id"] for panel in dashboard()["panels"]}) == len(places)
    variables = {each["name"] for each in dashboard()["templating"]["list"]}
    assert set(re.findall(r"\$\{?([a-z]+)", (MONITORING / "dashboard.json").read_text())) <= variables

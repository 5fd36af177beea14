"""The campaign's report names faults and exceeded bounds; a seed always draws the same attacks."""

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest

from tests.chaos.attacks.registry import ATTACKS
from tests.chaos.campaign import Campaign, Run, draws
from tests.chaos.ledger import Ending, Ledger, Window
from tests.chaos.options import parse
from tests.chaos.probes import Latency, Probes
from tests.chaos.report import has_failed, report_of, text_of
from tests.chaos.statistics import HistogramTotal
from tests.chaos.target import Target
from tests.chaos.transcript import Outcome

LOST = Ending(who="REST stream", start=10, end=11, outcome=Outcome.LOST, detail="no [DONE]")


def campaign(*flags: str, endings: Sequence[Ending] = (), recoveries: Sequence[float] = ()) -> Campaign:
    """A campaign that has ended."""
    options = parse(flags)
    assert options is not None
    ended = Campaign(options=options, ledger=Ledger(endings=list(endings)))
    ended.runs["kill-engine"] = Run(seconds=[3.0], recoveries=list(recoveries))
    ended.ledger.windows.append(Window(attack="kill-engine", start=9, end=12))
    return ended


def test_report_names_the_fault_and_the_attack() -> None:
    report = report_of(campaign(endings=[LOST]))
    assert has_failed(report)
    assert report["faults"]["lost"] == 1
    assert "1 × lost: REST stream: no [DONE] (after 1.0 s, during kill-engine)" in text_of(report)


def test_report_of_a_good_campaign_passes() -> None:
    report = report_of(campaign(endings=[replace(LOST, outcome=Outcome.OK)]))
    assert not has_failed(report)
    assert text_of(report).endswith("passed")


def test_exceeded_bound_fails_the_campaign() -> None:
    report = report_of(campaign("--max-recovery=1", recoveries=[1.5]))
    assert report["exceeded"] == ["median recovery from a kill of the engine in s: expected at most 1, got 1.5"]
    assert has_failed(report)


def test_report_sums_up_what_the_attacks_did() -> None:
    ended = campaign("--kills=2")
    ended.runs["kill-engine"].counts.update({"kills": 2, "ok": 7})
    ended.runs["disconnect-storm"] = Run(seconds=[1.0], counts=Counter({"disconnects": 640, "ok": 160}))
    ended.runs["closed-connection"] = Run(seconds=[1.0], counts=Counter({"disconnects": 512}))
    assert report_of(ended)["done"] == {"kill-engine": 2, "disconnects": 1152}


def test_missing_kills_fail_the_campaign() -> None:
    report = report_of(campaign("--kills=2", "--only", "kill-engine"))
    assert report["exceeded"] == ["kill-engine: expected 2 kills, got 0"]
    assert has_failed(report)


@pytest.mark.parametrize("member", ["is_interrupted", "leftovers"])
def test_interrupted_campaign_and_processes_left_behind_fail(member: str) -> None:
    ended = campaign()
    setattr(ended, member, ["engine"])
    assert has_failed(report_of(ended))


def test_time_in_which_the_front_end_is_stopped_is_no_latency() -> None:
    ended = campaign()
    ended.probes = Probes(target=Target(http_port=1, grpc_port=2, metrics_port=3), ledger=ended.ledger)
    ended.probes.latencies["/health"] = [
        Latency(at=at, seconds=seconds) for at, seconds in ((1, 0.5), (21, 3), (30, 2))
    ]
    ended.ledger.windows.append(Window(attack="stop-front-end", start=20, end=23))
    assert report_of(ended)["probes_ms"]["/health"] == {"count": 2, "p50": 2000, "p99": 2000, "max": 2000}


def test_bound_that_was_not_measured_fails_the_campaign() -> None:
    assert has_failed(report_of(campaign("--max-recovery=1")))


def test_one_seed_draws_the_same_attacks() -> None:
    attacks = list(ATTACKS.values())

    def drawn(seed: int) -> list[str]:
        following = draws(attacks, random.Random(seed))
        return [next(following).name for _ in range(2 * len(attacks))]

    assert drawn(1) == drawn(1) != drawn(2)
    assert set(drawn(1)[: len(attacks)]) == set(ATTACKS)


def test_unknown_attack_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(["--only", "nonsense"])
    assert "no such attack: nonsense; --list names all" in capsys.readouterr().err


def test_list_names_all_attacks(capsys: pytest.CaptureFixture[str]) -> None:
    assert parse(["--list"]) is None
    assert len(capsys.readouterr().out.splitlines()) == len(ATTACKS)


def test_histogram_goes_on_after_a_restart() -> None:
    total = HistogramTotal()
    total.update({0.1: 90, 1.0: 100})
    assert total.update({0.1: 890, 1.0: 900}) == 0.1
    assert total.update({0.1: 1, 1.0: 2}) == 1.0
    assert total.increments == {0.1: 891, 1.0: 11}
    assert (total.bound(0.5), total.bound(0.99), total.bound(1)) == (0.1, 1.0, 1.0)

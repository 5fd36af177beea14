"""The campaign's ledger counts faults, and knows which errors an attack explains."""

from tests.chaos.ledger import ANY_REASON, BROKEN, Ending, Fault, Ledger, Window, fault_counts
from tests.chaos.transcript import Outcome


def ending(
    outcome: Outcome, *, start: float = 10, end: float = 11, code: str = "", **members: frozenset[str]
) -> Ending:
    return Ending(who="REST stream", start=start, end=end, outcome=outcome, code=code, detail="seen", **members)


def ledger(*endings: Ending, windows: tuple[Window, ...] = ()) -> Ledger:
    return Ledger(endings=list(endings), windows=list(windows))


def faults(*endings: Ending, windows: tuple[Window, ...] = ()) -> dict[Fault, int]:
    counts = fault_counts(ledger(*endings, windows=windows).faults())
    return {fault: count for fault, count in counts.items() if count}


def test_ledger_counts_each_kind_of_fault() -> None:
    outcomes = (Outcome.OK, Outcome.LEFT, Outcome.LOST, Outcome.BROKEN, Outcome.TWICE, Outcome.HUNG, Outcome.WRONG)
    refused = ending(Outcome.REFUSED, code="overloaded")
    assert faults(*map(ending, outcomes), refused) == {
        Fault.LOST: 2,
        Fault.TWICE: 1,
        Fault.HUNG: 1,
        Fault.WRONG: 1,
        Fault.UNEXPECTED: 1,
    }


def test_attack_explains_the_errors_it_tolerates_while_it_runs() -> None:
    window = Window(attack="kill", start=10, end=12, tolerates=frozenset({"engine_unavailable"}))
    refused = ending(Outcome.REFUSED, code="engine_unavailable")
    assert faults(refused, windows=(window,)) == {}
    assert faults(ending(Outcome.REFUSED, code="internal_error"), windows=(window,)) == {Fault.UNEXPECTED: 1}
    later = ending(Outcome.REFUSED, code="engine_unavailable", start=20, end=21)
    assert faults(later, windows=(window,)) == {Fault.UNEXPECTED: 1}


def test_faults_are_judged_by_the_attacks_at_the_time() -> None:
    window = Window(attack="kill", start=10, tolerates=frozenset({"engine_unavailable"}))
    campaign = ledger(ending(Outcome.REFUSED, code="engine_unavailable"), windows=(window,))
    assert not campaign.faults()
    window.end = 12
    campaign.add(ending(Outcome.REFUSED, code="engine_unavailable", start=20, end=21))
    campaign.add(ending(Outcome.REFUSED, code="engine_unavailable", start=11, end=22))
    assert [str(each) for each in campaign.faults()] == [
        "unexpected: REST stream: engine_unavailable: seen (after 1.0 s, during no attack)"
    ]


def test_nothing_explains_silence() -> None:
    window = Window(attack="kill", start=0, end=100, tolerates=frozenset({BROKEN, "engine_unavailable"}))
    assert faults(ending(Outcome.BROKEN), windows=(window,)) == {}
    assert faults(ending(Outcome.LOST), ending(Outcome.HUNG), windows=(window,)) == {Fault.LOST: 1, Fault.HUNG: 1}


def test_attackers_may_get_any_error_with_a_reason() -> None:
    own = frozenset({ANY_REASON})
    assert faults(ending(Outcome.REFUSED, code="invalid_media", tolerates=own)) == {}
    for code in ("internal_error", "http:503", "grpc:UNKNOWN"):
        assert faults(ending(Outcome.REFUSED, code=code, tolerates=own)) == {Fault.UNEXPECTED: 1}

"""The ledger: each request's ending, and whether an attack that ran at the time explains it."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from tests.chaos.transcript import Outcome

BROKEN = "broken connection"
"""What an attack tolerates if it kills the process that holds the clients' connections."""
ANY_REASON = "any reason"
"""What an attacker's own request may get: any error with a reason, but none in Glimpse itself."""
SLACK_SECONDS = 1.5
"""How long after an attack its effects are still ascribed to it: Envoy's health checks follow with a delay."""


class Fault(StrEnum):
    """What fails a campaign."""

    LOST = "lost"
    TWICE = "twice"
    HUNG = "hung"
    WRONG = "wrong"
    UNEXPECTED = "unexpected"
    """An error that no attack at the time explains: somebody felt what another one did."""
    UNFINISHED = "unfinished"
    """An attack that failed itself or took too long: what it should have shown is not known."""


_FAULTS = {
    Outcome.LOST: Fault.LOST,
    Outcome.TWICE: Fault.TWICE,
    Outcome.HUNG: Fault.HUNG,
    Outcome.WRONG: Fault.WRONG,
    Outcome.UNFINISHED: Fault.UNFINISHED,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """A request and how it ended. Times are of the monotonic clock, which processes share."""

    who: str
    """The bystander, or the attack, that sent it."""
    start: float
    end: float
    outcome: Outcome
    code: str = ""
    detail: str = ""
    tolerates: frozenset[str] = frozenset()
    """Codes of errors that are right for this request, whatever runs."""


@dataclass(slots=True, kw_only=True)
class Window:
    """The time of an attack, and what others may suffer from it."""

    attack: str
    start: float
    end: float = float("inf")
    tolerates: frozenset[str] = frozenset()

    def overlaps(self, start: float, end: float) -> bool:
        return start <= self.end + SLACK_SECONDS and self.start <= end


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """A fault, and the attacks that ran meanwhile."""

    fault: Fault
    ending: Ending
    attacks: tuple[str, ...]

    def __str__(self) -> str:
        what = ": ".join(filter(None, dict.fromkeys((self.ending.code, self.ending.detail))))
        attacks = ", ".join(self.attacks) or "no attack"
        seconds = self.ending.end - self.ending.start
        return f"{self.fault}: {self.ending.who}: {what} (after {seconds:.1f} s, during {attacks})"


@dataclass(slots=True)
class Ledger:
    """All endings and all attacks of a campaign. An attack is entered when it begins."""

    endings: list[Ending] = field(default_factory=list[Ending])
    windows: list[Window] = field(default_factory=list[Window])
    _faults: list[Judged] = field(default_factory=list[Judged])
    _num_judged: int = 0

    def add(self, ending: Ending) -> None:
        self.endings.append(ending)

    def faults(self) -> Sequence[Judged]:
        """Returns the endings that nothing excuses.

        Each is judged once: every attack that explains it has begun before it is entered.
        """
        new = [each for each in self.endings[self._num_judged :] if each.outcome not in (Outcome.OK, Outcome.LEFT)]
        self._num_judged = len(self.endings)
        if new:
            start, end = min(each.start for each in new), max(each.end for each in new)
            self._faults += self._judge(new, [window for window in self.windows if window.overlaps(start, end)])
        return self._faults

    def _judge(self, endings: Iterable[Ending], near: Sequence[Window]) -> Iterator[Judged]:
        for ending in endings:
            windows = [window for window in near if window.overlaps(ending.start, ending.end)]
            if (fault := _fault_of(ending, windows)) is not None:
                yield Judged(fault=fault, ending=ending, attacks=tuple(dict.fromkeys(w.attack for w in windows)))

    def outcomes(self) -> Counter[str]:
        """Counts the endings by outcome."""
        return Counter(ending.outcome.value for ending in self.endings)

    def codes(self) -> Counter[str]:
        """Counts the errors by code."""
        return Counter(ending.code for ending in self.endings if ending.outcome is Outcome.REFUSED)


def fault_counts(faults: Iterable[Judged]) -> dict[Fault, int]:
    """Counts faults by kind; every kind has an entry."""
    counts = Counter(each.fault for each in faults)
    return {fault: counts[fault] for fault in Fault}


def _fault_of(ending: Ending, windows: Iterable[Window]) -> Fault | None:
    tolerated = ending.tolerates.union(*(window.tolerates for window in windows))
    match ending.outcome:
        case Outcome.REFUSED:
            is_explained = ending.code in tolerated or (ANY_REASON in tolerated and _has_reason(ending.code))
            return None if is_explained else Fault.UNEXPECTED
        case Outcome.BROKEN:
            return None if BROKEN in tolerated else Fault.LOST
        case _:
            return _FAULTS[ending.outcome]


def _has_reason(code: str) -> bool:
    """Whether an error is one that Glimpse explains; "http:503" and "grpc:UNKNOWN" stand for those without a reason."""
    return ":" not in code and code != "internal_error"

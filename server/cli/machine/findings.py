"""What `glimpse doctor` finds out, and how it is shown."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


class Verdict(StrEnum):
    """How a thing is."""

    OK = "ok"
    SLOW = "slow"
    """Glimpse serves, but slower or less than this machine could."""
    MISSING = "missing"
    """Glimpse does not serve."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A thing that was looked at."""

    name: str
    verdict: Verdict = Verdict.OK
    text: str
    """What is so."""
    remedy: str = ""
    """What to do about it."""


def findings_text(findings: Sequence[Finding]) -> str:
    """Returns a line for each finding, a line for its remedy, and a sentence about all."""
    names, verdicts = (max(map(len, column)) for column in zip(*((f.name, f.verdict) for f in findings), strict=True))
    lines: list[str] = []
    for finding in findings:
        lines.append(f"{finding.verdict:{verdicts}}  {finding.name:{names}}  {finding.text}")
        if finding.remedy:
            lines.append(f"{'':{verdicts + names + 4}}→ {finding.remedy}")
    return "\n".join([*lines, "", _summary(findings)])


def _summary(findings: Sequence[Finding]) -> str:
    missing = [finding.name for finding in findings if finding.verdict is Verdict.MISSING]
    slow = [finding.name for finding in findings if finding.verdict is Verdict.SLOW]
    if missing:
        return f"Glimpse cannot serve here yet: {', '.join(missing)}."
    if slow:
        return f"Glimpse can serve here, not as fast as it could: {', '.join(slow)}."
    return "Glimpse can serve here, and nothing slows it down."

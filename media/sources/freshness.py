"""Freshness lifetime of HTTP responses, computed from header texts. Pure functions, independent of connections."""

import re

MAX_FRESH_SECONDS = 3600.0
"""Upper limit, whatever a server allows."""

_FORBIDDEN = frozenset({"no-store", "no-cache", "private"})
_MAX_AGE = re.compile(r"max-age\s*=\s*\"?(\d{1,10})\"?")


def fresh_seconds(cache_control: str, age: str = "") -> float:
    """Returns the seconds for which `Cache-Control` explicitly allows reuse, minus `Age`; 0 if it does not."""
    directives = [directive.strip().lower() for directive in cache_control.split(",")]
    if _FORBIDDEN.intersection(directive.partition("=")[0].strip() for directive in directives):
        return 0.0
    allowed = [int(match[1]) for directive in directives if (match := _MAX_AGE.fullmatch(directive))]
    passed = int(age) if age.isascii() and age.isdigit() and len(age) <= 10 else 0
    return min(max(min(allowed, default=0) - passed, 0), MAX_FRESH_SECONDS)

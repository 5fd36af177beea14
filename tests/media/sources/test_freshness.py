"""Freshness lifetimes of HTTP responses."""

import pytest

from glimpse.media.sources.fetch import MAX_FRESH_SECONDS, fresh_seconds


@pytest.mark.parametrize(
    ("cache_control", "age", "seconds"),
    [
        ("", "", 0),
        ("public", "", 0),
        ("max-age=60", "", 60),
        ("Public, Max-Age=60", "", 60),
        ('max-age="60"', "", 60),
        ("max-age=60", "15", 45),
        ("max-age=60", "61", 0),
        ("max-age=60", "soon", 60),
        ("max-age=60, max-age=10", "", 10),
        ("max-age=99999999", "", MAX_FRESH_SECONDS),
        ("max-age=99999999999999999999", "", 0),
        ("max-age=-1", "", 0),
        ("max-age=1e9", "", 0),
        ("max-age=60, no-store", "", 0),
        ("no-cache, max-age=60", "", 0),
        ("private, max-age=60", "", 0),
        ('private="set-cookie", max-age=60', "", 0),
        ("s-maxage=60", "", 0),
    ],
)
def test_only_explicit_freshness_counts(cache_control: str, age: str, seconds: float) -> None:
    assert fresh_seconds(cache_control, age) == seconds

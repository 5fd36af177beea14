"""Flags of the server under attack."""

from tests.chaos.options import DEFAULT_SERVE_ARGS
from tests.chaos.stack import replaced


def test_given_flags_follow_the_defaults() -> None:
    assert replaced(DEFAULT_SERVE_ARGS, ["--max-sequences=4"]) == (*DEFAULT_SERVE_ARGS, "--max-sequences=4")


def test_a_given_flag_replaces_its_default() -> None:
    assert replaced(DEFAULT_SERVE_ARGS, ["--dtype", "bfloat16"]) == (
        "--media-cache-bytes=16MiB",
        "--encoder-cache-bytes=16MiB",
        "--dtype",
        "bfloat16",
    )

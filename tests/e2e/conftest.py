"""Running stacks for all end-to-end tests: one with the embedded model, one that says what it is told."""

from collections.abc import Iterator

import pytest

from tests.e2e.stack import Stack, start_saying_stack, start_stack


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    # float32: random weights turn bfloat16's rounding, which differs with the size of a chunk, into other words.
    running = start_stack(tmp_path_factory.mktemp("stack"), "--dtype=float32")
    yield running
    assert running.stop() == 0


@pytest.fixture(scope="session")
def saying(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    running = start_saying_stack(tmp_path_factory.mktemp("saying"))
    yield running
    assert running.stop() == 0

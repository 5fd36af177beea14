"""One running stack for all end-to-end tests."""

from collections.abc import Iterator

import pytest

from tests.e2e.stack import Stack, start_stack


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    running = start_stack(tmp_path_factory.mktemp("stack"))
    yield running
    assert running.stop() == 0

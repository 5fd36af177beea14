"""The limit of open files, in processes of their own that get a limit first."""

import subprocess
import sys

import pytest

from tests.paths import ROOT

ALLOW = """
import resource
from glimpse.native.open_files import allow_files
allow_files()
print(*resource.getrlimit(resource.RLIMIT_NOFILE))
"""
CONNECTIONS = "from glimpse.gateway.run import connections_here; print(connections_here())"


def printed(limit: str, code: str) -> str:
    command = ["sh", "-c", f'{limit}; exec "$@"', "sh", sys.executable, "-c", code]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True).stdout.strip()


def test_raises_the_soft_limit() -> None:
    assert printed("ulimit -Sn 300; ulimit -Hn 800", ALLOW) == "800 800"


@pytest.mark.parametrize(("most", "connections"), [(1024, 768), (5000, 4000)])
def test_connections_get_three_quarters_of_few_files_and_all_but_1000_of_many(most: int, connections: int) -> None:
    assert printed(f"ulimit -n {most}", CONNECTIONS) == str(connections)

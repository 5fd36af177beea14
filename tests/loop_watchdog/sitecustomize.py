"""What Python imports first in servers under test and in their children, so it imports little itself."""

import os

if "GLIMPSE_TESTS_FORK_SERVERS" in os.environ:
    __import__("fork_client").run_as_fork()  # does not return in what a fork runs

import builtins
import sys
from typing import Any

_SERVER = "glimpse.server.lifecycle.server"
_import = builtins.__import__


def _import_and_watch(name: str, *args: Any, **kwargs: Any) -> Any:
    module = _import(name, *args, **kwargs)
    if name == _SERVER and _SERVER in sys.modules and hasattr(sys.modules[_SERVER], "Server"):
        builtins.__import__ = _import
        _import("loop_watch").watch_once_ready(sys.modules[_SERVER])
    return module


builtins.__import__ = _import_and_watch

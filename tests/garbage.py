"""Finds what only the cycle collector can free."""

import gc
import socket
import types
from collections.abc import Generator
from contextlib import contextmanager

from tests.paths import ROOT

_OWN_CODE = f"{ROOT / 'src'}/"


@contextmanager
def no_cycles(*, most_bytes: int = 1 << 16) -> Generator[None]:
    """Turns the collector off in the block, and fails if our own code leaves reference cycles.

    Args:
        most_bytes: the size from which on bytes that foreign cycles hold are an error too.
    """
    gc.collect()
    gc.disable()
    try:
        yield
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        found = sorted({described for each in gc.garbage if (described := _describe(each, most_bytes))})
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
        gc.collect()
    assert not found, f"only the cycle collector frees {found}"


def _describe(value: object, most_bytes: int) -> str | None:
    """Returns what an object is, if it is ours or holds many bytes."""
    match value:
        case types.FrameType():
            code = value.f_code
        case types.TracebackType():
            code = value.tb_frame.f_code
        case types.CoroutineType():
            code = value.cr_code
        case types.AsyncGeneratorType():
            code = value.ag_code
        case types.GeneratorType():
            code = value.gi_code
        case socket.socket():  # asyncio's transports refer to themselves, and to their sockets
            return None
        case _:
            code = None
    if code is not None and code.co_filename.startswith(_OWN_CODE):
        return f"{type(value).__name__} of {code.co_qualname}"
    if type(value).__module__.startswith("glimpse."):
        return f"{type(value).__module__}.{type(value).__qualname__}"
    if any(isinstance(held, bytes | bytearray | str) and len(held) >= most_bytes for held in gc.get_referents(value)):
        return f"many bytes in a {type(value).__module__}.{type(value).__qualname__}"
    return None

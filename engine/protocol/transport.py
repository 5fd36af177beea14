"""The socket between an engine process and its front end, or the supervisor of several."""

import socket

from glimpse.engine.protocol.messages import FromEngine, ToEngine
from glimpse.frames import BlockingChannel, Frames

TO_ENGINE = Frames[ToEngine](ToEngine)
FROM_ENGINE = Frames[FromEngine](FromEngine)


class Channel(BlockingChannel[FromEngine, ToEngine]):
    """The engine's end of the socket."""

    def __init__(self, connection: socket.socket) -> None:
        super().__init__(connection, TO_ENGINE)

"""A process that decodes video files, so that what a hostile one does to a decoder happens here and to nobody else.

`python -m media.clip_worker MEMORY_BYTES`: jobs come on standard input, results go to standard output, and the process
ends when its input does. It may have no more memory than said, and leaves no core.
"""

import os
import resource
import signal
import sys

from media.clip_file import clip_of_file
from media.clip_jobs import Decoded, Refused, read_job, write_message
from media.errors import MediaError, MediaErrorCode


def main() -> None:
    """Serves jobs."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the front end, which lets running answers end
    _limit(memory_bytes=int(sys.argv[1]))
    results = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints is no result
    while (received := read_job(sys.stdin.buffer)) is not None:
        job, data = received
        try:
            clip = clip_of_file(data, job.processing, job.options)
        except MediaError as error:
            write_message(results, Refused(code=error.code, message=error.message))
        except MemoryError:
            message = "the video takes more memory to decode than there is"
            write_message(results, Refused(code=MediaErrorCode.TOO_LARGE, message=message))
        else:
            frames, height, width, channels = clip.pixels.shape
            decoded = Decoded(shape=(frames, height, width, channels), frame_seconds=clip.frame_seconds, fps=clip.fps)
            write_message(results, decoded, clip.pixels.data.cast("B"))


def _limit(*, memory_bytes: int) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


if __name__ == "__main__":
    main()

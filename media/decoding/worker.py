"""A process that decodes files, so that what a hostile one does to a decoder happens here and to nobody else.

`python -m glimpse.media.decoding.worker MEMORY_BYTES CPU_SECONDS`: jobs come on standard input, results go to standard
output, and the process ends when its input does. It may have no more memory than said, and no more processor time for
one job; it leaves no core.
"""

import os
import signal
import sys
from typing import assert_never

from glimpse.media.containers.still import open_image
from glimpse.media.decoding.audio_file import samples_from_file
from glimpse.media.decoding.jobs import (
    AudioJob,
    Decoded,
    FramesJob,
    ImageJob,
    Job,
    Refused,
    VideoJob,
    read_job,
    write_result,
)
from glimpse.media.decoding.rlimits import limit_memory, limit_time
from glimpse.media.decoding.video_file import video_from_file
from glimpse.media.decoding.video_frames import video_from_image_files
from glimpse.media.errors import MediaError, MediaErrorCode
from glimpse.media.native.library import native_resizer
from glimpse.media.processing.image import image_pixels
from glimpse.media.processing.video import Video


def main() -> None:
    """Serves jobs."""
    memory_bytes, cpu_seconds = map(int, sys.argv[1:3])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the front end, which lets running answers end
    limit_memory(memory_bytes)
    native_resizer()  # opened before there is a job that would wait
    results = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints is no result
    while (received := read_job(sys.stdin.buffer)) is not None:
        limit_time(cpu_seconds)
        write_result(results, *answer(*received))
        del received  # files take memory, and the next job may be long in coming


def answer(job: Job, files: list[bytes]) -> tuple[Decoded | Refused, bytes | memoryview]:
    """A job's result and the elements that follow it."""
    try:
        return decode(job, files)
    except MediaError as error:
        return Refused(code=error.code, message=error.message), b""
    except MemoryError:
        message = "it takes more memory to decode than there is"
        return Refused(code=MediaErrorCode.TOO_LARGE, message=message), b""


def decode(job: Job, files: list[bytes]) -> tuple[Decoded, memoryview]:
    """Raises MediaError."""
    match job:
        case ImageJob():
            pixels = image_pixels(open_image(files[0], max_pixels=job.max_decoded_pixels), job.processing)
            return Decoded(shape=pixels.shape), pixels.data.cast("B")
        case VideoJob():
            return _decoded_video(video_from_file(files[0], job.processing, job.options))
        case FramesJob():
            clip = video_from_image_files(
                files, job.frame_indices, job.processing, job.options, max_decoded_pixels=job.max_decoded_pixels
            )
            return _decoded_video(clip)
        case AudioJob():
            samples = samples_from_file(files[0], job.processing)
            return Decoded(shape=samples.shape), samples.data.cast("B")
        case _:
            assert_never(job)


def _decoded_video(clip: Video) -> tuple[Decoded, memoryview]:
    decoded = Decoded(shape=clip.pixels.shape, frame_seconds=clip.frame_seconds, fps=clip.fps)
    return decoded, clip.pixels.data.cast("B")


if __name__ == "__main__":
    main()

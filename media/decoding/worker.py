"""Worker process that decodes files, so that a hostile file can harm nothing but the worker.

`python -m glimpse.media.decoding.worker MEMORY_BYTES CPU_SECONDS` reads jobs from standard input, writes results to
standard output and exits at the end of its input. It limits its address space, and its CPU time for each job.
"""

import os
import sys
from typing import assert_never

import msgspec

from glimpse.frames import write_message
from glimpse.media.containers.still import decoded_bytes, open_image
from glimpse.media.decoding.audio_file import samples_from_file
from glimpse.media.decoding.document_file import document_from_file, page_from_file
from glimpse.media.decoding.jobs import (
    AudioJob,
    Decoded,
    DecodeFailed,
    DecodeLimits,
    DocumentJob,
    FramesJob,
    ImageJob,
    Job,
    NeedsMemory,
    NeedsMemoryError,
    PageJob,
    VideoJob,
    read_job,
)
from glimpse.media.decoding.video_file import video_from_file
from glimpse.media.decoding.video_frames import video_from_image_files
from glimpse.media.errors import MediaError, MediaErrorCode
from glimpse.media.native.library import native_resizer
from glimpse.media.processing.image import image_pixels
from glimpse.media.processing.video import Video
from glimpse.media.workers.rlimits import limit_memory, limit_time


def main() -> None:
    """Runs jobs until the input ends."""
    memory_bytes, cpu_seconds = map(int, sys.argv[1:3])
    limit_memory(memory_bytes)
    native_resizer()  # loaded before the first job
    results = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # keeps what libraries print out of the results
    while (received := read_job(sys.stdin.buffer)) is not None:
        limit_time(cpu_seconds)
        write_message(results, *answer(*received))
        del received  # frees the files while waiting for the next job


def answer(
    job: Job, files: list[bytes], limits: DecodeLimits
) -> tuple[Decoded | DecodeFailed | NeedsMemory, bytes | memoryview]:
    """Returns a job's result and the elements that follow it."""
    try:
        return decode(job, files, limits)
    except NeedsMemoryError as error:
        return NeedsMemory(num_bytes=error.num_bytes), b""
    except MediaError as error:
        return DecodeFailed(code=error.code, message=error.message), b""
    except MemoryError:
        message = "decoding the file exceeds the decoder's memory limit"
        return DecodeFailed(code=MediaErrorCode.TOO_LARGE, message=message), b""


def decode(job: Job, files: list[bytes], limits: DecodeLimits) -> tuple[Decoded, memoryview]:
    """Decodes a job's files. Raises MediaError; NeedsMemoryError before it takes more than it may."""
    match job:
        case ImageJob():
            image = open_image(files[0], max_pixels=limits.max_pixels)
            limits.check_memory(decoded_bytes(image, max_pixels=limits.max_pixels))
            pixels, placement = image_pixels(image, job.processing, max_decoded_pixels=limits.max_pixels)
            return Decoded(shape=pixels.shape, source=placement.source), pixels.data.cast("B")
        case VideoJob():
            video = video_from_file(files[0], job.processing, job.options, on_size=limits.check_memory)
            return _decoded_video(video)
        case FramesJob():
            video = video_from_image_files(
                files,
                job.frame_indices,
                job.processing,
                job.options,
                max_decoded_pixels=limits.max_pixels,
                on_size=limits.check_memory,
            )
            return _decoded_video(video)
        case AudioJob():
            samples = samples_from_file(files[0], job.processing)
            return Decoded(shape=samples.shape), samples.data.cast("B")
        case DocumentJob():
            document = document_from_file(files[0], job)
            texts = msgspec.msgpack.encode(document.texts)
            return Decoded(shape=(len(texts),), num_pages=document.num_pages), memoryview(texts)
        case PageJob():
            pixels, placement = page_from_file(
                files[0], job, max_decoded_pixels=limits.max_pixels, on_size=limits.check_memory
            )
            return Decoded(shape=pixels.shape, source=placement.source), pixels.data.cast("B")
        case _:
            assert_never(job)


def _decoded_video(video: Video) -> tuple[Decoded, memoryview]:
    decoded = Decoded(
        shape=video.pixels.shape,
        frame_seconds=video.frame_seconds,
        fps=video.fps,
        duration_seconds=video.duration_seconds,
    )
    return decoded, video.pixels.data.cast("B")


if __name__ == "__main__":
    main()

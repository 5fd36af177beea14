"""Decoding in this process."""

from collections.abc import Callable, Sequence
from typing import assert_never

from glimpse.media.containers.still import open_image
from glimpse.media.decoding.audio_file import audio_from_file
from glimpse.media.decoding.document_file import document_from_file, page_from_file
from glimpse.media.decoding.jobs import (
    AudioJob,
    DecodedMedia,
    DocumentJob,
    FramesJob,
    ImageJob,
    Job,
    PageJob,
    VideoJob,
)
from glimpse.media.decoding.video_file import video_from_file
from glimpse.media.decoding.video_frames import video_from_image_files
from glimpse.media.processing.image import image_from_pixels, prepare_image


def decode(job: Job, files: Sequence[bytes], max_decoded_pixels: int, stopped: Callable[[], bool]) -> DecodedMedia:
    """Decodes the files of one media input. Raises MediaError, also once `stopped` returns true."""
    match job:
        case ImageJob(processing=processing):
            image = open_image(files[0], max_pixels=max_decoded_pixels)
            return prepare_image(image, processing, max_decoded_pixels=max_decoded_pixels)
        case AudioJob(processing=processing):
            return audio_from_file(files[0], processing, stopped=stopped)
        case VideoJob(processing=processing, options=options):
            return video_from_file(files[0], processing, options, stopped=stopped)
        case FramesJob(processing=processing, options=options, frame_indices=indices):
            return video_from_image_files(
                files, indices, processing, options, max_decoded_pixels=max_decoded_pixels, stopped=stopped
            )
        case DocumentJob():
            return document_from_file(files[0], job)
        case PageJob(processing=processing):
            return image_from_pixels(*page_from_file(files[0], job, max_decoded_pixels=max_decoded_pixels), processing)
        case _:
            assert_never(job)

"""Pictures, their files, and arrays → a clip whose frames they are."""

from collections.abc import Callable, Iterable, Iterator, Sequence

import PIL.Image

from glimpse.media.containers.still import load_pixels, open_image
from glimpse.media.errors import MediaError, MediaErrorCode
from glimpse.media.processing.frame_sampling import MAX_FRAMES, evenly_spaced, num_frames_requested
from glimpse.media.processing.rgb import upright_rgb
from glimpse.media.processing.video import Video, VideoProcessing, make_video
from glimpse.media.processing.video_options import VideoOptions, check_options

_MAX_LISTED_PIXELS = 4_000_000_000
"""Pixels of all pictures of one clip before they are resized: about a minute of a processor."""


def sample_frame_indices(num_frames: int, options: VideoOptions, *, depth: int) -> list[int]:
    """Indices of the frames that are taken of a list: all, or as many as the options say.

    Raises:
        MediaError: INVALID_PARAMETER; INVALID_MEDIA for a list without frames.
    """
    check_options(options, of_frames=True)
    if not num_frames:
        raise MediaError(MediaErrorCode.INVALID_MEDIA, "the clip has no frames")
    max_frames = options.max_frames or MAX_FRAMES
    if options.num_frames is None and num_frames <= max_frames:
        return list(range(num_frames))
    wanted = options.num_frames or max_frames
    return evenly_spaced(num_frames, num_frames_requested(num_frames, wanted, max_frames=max_frames, depth=depth))


def video_from_images(
    pictures: Iterable[PIL.Image.Image],
    frame_indices: Sequence[int],
    processing: VideoProcessing,
    options: VideoOptions,
) -> Video:
    """Makes a clip of pictures of any mode, all of one size.

    Args:
        pictures: those that are taken; each is used before the next is asked for.
        taken: their indices among all, from `sample_frame_indices`.
        processing: the checkpoint's.
        options: the request's; `fps` is the rate of all pictures.

    Raises:
        MediaError: a picture is damaged or of another size, or they are too large together.
    """
    return make_video(
        _of_one_size(pictures, frame_indices, processing),
        len(frame_indices),
        processing.with_options(options),
        frame_seconds=() if options.fps is None else tuple(index / options.fps for index in frame_indices),
        fps=None,
    )


def video_from_image_files(
    files: Iterable[bytes],
    frame_indices: Sequence[int],
    processing: VideoProcessing,
    options: VideoOptions,
    *,
    max_decoded_pixels: int,
    stopped: Callable[[], bool] = lambda: False,
) -> Video:
    """As `video_from_images`, of pictures' files.

    Args:
        files: those that are taken.
        taken: as there.
        processing: as there.
        options: as there.
        max_decoded_pixels: the largest picture.
        stopped: asked between pictures whether nobody waits for the clip any more.

    Raises:
        MediaError: also for what is no picture.
    """
    return video_from_images(_opened(files, max_decoded_pixels, stopped), frame_indices, processing, options)


def _opened(files: Iterable[bytes], max_decoded_pixels: int, stopped: Callable[[], bool]) -> Iterator[PIL.Image.Image]:
    num_pixels = 0
    for file in files:
        if stopped():
            raise MediaError(MediaErrorCode.INVALID_MEDIA, "nobody waits for the clip any more")
        picture = open_image(file, max_pixels=max_decoded_pixels)
        num_pixels += picture.width * picture.height
        if num_pixels > _MAX_LISTED_PIXELS:
            message = f"the clip's pictures have more than {_MAX_LISTED_PIXELS} pixels together"
            raise MediaError(MediaErrorCode.TOO_LARGE, message)
        yield picture


def _of_one_size(
    pictures: Iterable[PIL.Image.Image], frame_indices: Sequence[int], processing: VideoProcessing
) -> Iterator[PIL.Image.Image]:
    size: tuple[int, int] | None = None
    for index, picture in zip(frame_indices, pictures, strict=True):
        load_pixels(picture)
        frame = upright_rgb(picture, processing.background)
        size = size or frame.size
        if frame.size != size:
            message = (
                f"frame {index} is {frame.width}×{frame.height} pixels and "
                f"frame {frame_indices[0]} {size[0]}×{size[1]}: "
                "a clip's frames are of one size"
            )
            raise MediaError(MediaErrorCode.INVALID_MEDIA, message)
        yield frame

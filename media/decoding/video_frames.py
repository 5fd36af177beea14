"""Videos given as a list of images: samples the frames, decodes and preprocesses them."""

from collections.abc import Callable, Iterable, Iterator, Sequence

import PIL.Image

from glimpse.media.containers.decode_errors import cancelled
from glimpse.media.containers.still import decoded_bytes, load_pixels, open_image
from glimpse.media.errors import MediaError, MediaErrorCode
from glimpse.media.processing.frame_sampling import MAX_FRAMES, FrameSampling
from glimpse.media.processing.rgb import upright_rgb
from glimpse.media.processing.video import Video, VideoProcessing, make_video
from glimpse.media.processing.video_options import VideoOptions, check_options

_MAX_LISTED_PIXELS = 4_000_000_000
"""Limit on the pixels of all sampled frames before resizing: about a minute of CPU time."""


def sample_frame_indices(num_frames: int, options: VideoOptions, sampling: FrameSampling) -> list[int]:
    """Returns the sampled indices of a list of frames: all, or as many as the options request.

    Raises:
        MediaError: INVALID_PARAMETER; INVALID_MEDIA for an empty list.
    """
    check_options(options, of_frames=True)
    if not num_frames:
        raise MediaError(MediaErrorCode.INVALID_MEDIA, "expected a video of at least 1 frame, got no frames")
    max_frames = options.max_frames or MAX_FRAMES
    if options.num_frames is None and num_frames <= max_frames:
        return list(range(num_frames))
    return sampling.requested(num_frames, options.num_frames or max_frames, max_frames=max_frames)


def video_from_images(
    images: Iterable[PIL.Image.Image],
    frame_indices: Sequence[int],
    processing: VideoProcessing,
    options: VideoOptions,
    *,
    seconds: Sequence[float] | None = None,
    on_size: Callable[[int], None] = lambda _: None,
) -> Video:
    """Preprocesses images of any mode and equal size as the frames of a video.

    Args:
        images: The sampled frames. Each is used before the next is requested.
        frame_indices: Indices of `images` among all frames, from `sample_frame_indices`.
        options: The request's options; `fps` is the frame rate of all frames.
        seconds: Times of all frames, in place of `fps`.

    Raises:
        MediaError: An image is corrupt or of another size, or they are too large in total.
    """
    if seconds is not None:
        frame_seconds = tuple(seconds[index] for index in frame_indices)
    else:
        frame_seconds = () if options.fps is None else tuple(index / options.fps for index in frame_indices)
    return make_video(
        _of_one_size(images, frame_indices, processing),
        len(frame_indices),
        processing.with_options(options),
        frame_seconds=frame_seconds,
        fps=None,
        on_size=on_size,
    )


def video_from_image_files(
    files: Iterable[bytes],
    frame_indices: Sequence[int],
    processing: VideoProcessing,
    options: VideoOptions,
    *,
    max_decoded_pixels: int,
    stopped: Callable[[], bool] = lambda: False,
    on_size: Callable[[int], None] = lambda _: None,
) -> Video:
    """Like `video_from_images`, for image files.

    Args:
        stopped: Called between images; True cancels the decoding.
        on_size: See `make_video`. Also called with the memory of each image before it is decoded.

    Raises:
        MediaError: See `video_from_images`; or a file is not an image.
    """
    images = _opened(files, max_decoded_pixels, stopped, on_size)
    return video_from_images(images, frame_indices, processing, options, on_size=on_size)


def _opened(
    files: Iterable[bytes], max_decoded_pixels: int, stopped: Callable[[], bool], on_size: Callable[[int], None]
) -> Iterator[PIL.Image.Image]:
    num_pixels = 0
    for file in files:
        if stopped():
            raise cancelled("video")
        image = open_image(file, max_pixels=max_decoded_pixels)
        num_pixels += image.width * image.height
        if num_pixels > _MAX_LISTED_PIXELS:
            message = f"expected frames of at most {_MAX_LISTED_PIXELS} pixels in total, got more"
            raise MediaError(MediaErrorCode.TOO_LARGE, message)
        on_size(decoded_bytes(image, max_pixels=max_decoded_pixels))
        load_pixels(image, max_pixels=max_decoded_pixels)
        yield image


def _of_one_size(
    images: Iterable[PIL.Image.Image], frame_indices: Sequence[int], processing: VideoProcessing
) -> Iterator[PIL.Image.Image]:
    size: tuple[int, int] | None = None
    for index, image in zip(frame_indices, images, strict=True):
        load_pixels(image)
        frame = upright_rgb(image, processing.background)
        size = size or frame.size
        if frame.size != size:
            message = (
                f"expected frames of one size, got {size[0]}×{size[1]} pixels for frame {frame_indices[0]} "
                f"and {frame.width}×{frame.height} for frame {index}"
            )
            raise MediaError(MediaErrorCode.INVALID_MEDIA, message)
        yield frame

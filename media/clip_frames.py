"""Pictures and arrays → a clip whose frames they are."""

from collections.abc import Iterable, Iterator, Sequence

import PIL.Image

from media.clip import Clip, VideoProcessing, make_clip
from media.clip_options import ClipOptions, check_options
from media.decode import load_pixels
from media.errors import MediaError, MediaErrorCode
from media.rgb import upright_rgb
from media.sampling import MAX_FRAMES, number_asked_for, spread


def taken_frames(num_frames: int, options: ClipOptions, *, depth: int) -> list[int]:
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
    return spread(num_frames, number_asked_for(num_frames, wanted, max_frames=max_frames, depth=depth))


def clip_of_frames(
    pictures: Iterable[PIL.Image.Image], taken: Sequence[int], processing: VideoProcessing, options: ClipOptions
) -> Clip:
    """Makes a clip of pictures of any mode, all of one size.

    Args:
        pictures: those that are taken; each is used before the next is asked for.
        taken: their indices among all, from `taken_frames`.
        processing: the checkpoint's.
        options: the request's; `fps` is the rate of all pictures.

    Raises:
        MediaError: a picture is damaged or of another size, or they are too large together.
    """
    return make_clip(
        _of_one_size(pictures, taken, processing),
        len(taken),
        processing.bounded(options),
        frame_seconds=() if options.fps is None else tuple(index / options.fps for index in taken),
        fps=None,
    )


def _of_one_size(
    pictures: Iterable[PIL.Image.Image], taken: Sequence[int], processing: VideoProcessing
) -> Iterator[PIL.Image.Image]:
    size: tuple[int, int] | None = None
    for index, picture in zip(taken, pictures, strict=True):
        load_pixels(picture)
        frame = upright_rgb(picture, processing.background)
        size = size or frame.size
        if frame.size != size:
            message = (
                f"frame {index} is {frame.width}×{frame.height} pixels and frame {taken[0]} {size[0]}×{size[1]}: "
                "a clip's frames are of one size"
            )
            raise MediaError(MediaErrorCode.INVALID_MEDIA, message)
        yield frame

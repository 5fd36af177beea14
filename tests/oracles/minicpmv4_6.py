"""The oracle of tests: transformers' MiniCPM-V 4.6, and what its processor writes for media. The engine never imports
this."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import PIL.Image
import torch
from transformers import MiniCPMV4_6ImageProcessorPil, MiniCPMV4_6Processor

from glimpse.engine.protocol.media import MediaSpan
from glimpse.media.kind import MediaKind
from tests.checkpoints.minicpmv4_6 import PATCH, PREPROCESSOR
from tests.oracles.answers import Answer, generate, load_oracle

Pixels = npt.NDArray[np.uint8]
IMAGE_TOKEN, VIDEO_TOKEN = "<|image_pad|>", "<|video_pad|>"


@torch.inference_mode()
def greedy_answer(
    path: Path, prompt: Sequence[int], spans: Sequence[MediaSpan], media: Sequence[Pixels], num_tokens: int
) -> Answer:
    """Continues a prompt with media, whose pixels are as in `AdaptiveSlices` and `ScaledFrames`."""
    inputs: dict[str, Any] = {}
    for kind, pixels_name, sizes_name in (
        (MediaKind.IMAGE, "pixel_values", "target_sizes"),
        (MediaKind.VIDEO, "pixel_values_videos", "target_sizes_videos"),
    ):
        slices = [each for span, pixels in zip(spans, media, strict=True) if span.kind is kind
                  for each in slices_of(pixels, span.grid)]  # fmt: skip
        if slices:
            patches = np.concatenate([each.reshape(-1, PATCH, PATCH, 3) for each in slices])
            packed = torch.from_numpy(patches.transpose(3, 1, 0, 2).reshape(1, 3, PATCH, -1).copy())
            inputs[pixels_name] = packed / 127.5 - 1
            inputs[sizes_name] = torch.tensor([each.shape[:2] for each in slices], dtype=torch.int32)
    return generate(load_oracle(path), prompt, num_tokens, **inputs)


def slices_of(pixels: Pixels, grid: Sequence[int]) -> list[Pixels]:
    """Returns the overview and the slices of an image, or the frames of a video, as rows and columns of patches."""
    if len(grid) == 3:
        num_frames, rows, columns = grid
        return list(pixels.reshape(num_frames, rows, PATCH, columns, PATCH, 3).swapaxes(2, 3))
    own_rows, own_columns, rows, columns, slice_rows, slice_columns = grid
    overview, others = np.split(pixels, [own_rows * own_columns])
    lines = others.reshape(rows, slice_rows, columns, slice_columns, *pixels.shape[1:]).swapaxes(1, 2)
    return [overview.reshape(own_rows, own_columns, *pixels.shape[1:]), *(each for line in lines for each in line)]


def image_processor(**fields: Any) -> MiniCPMV4_6ImageProcessorPil:
    names = ("scale_resolution", "patch_size", "max_slice_nums", "downsample_mode", "slice_mode", "use_image_id")
    return MiniCPMV4_6ImageProcessorPil(**({name: PREPROCESSOR[name] for name in names} | fields))


def processed(image: PIL.Image.Image, **fields: Any) -> tuple[list[Pixels], tuple[int, int]]:
    """Returns the overview and the slices of an image, and how many rows and columns of slices there are.

    Args:
        fields: of the processor, where they are not the checkpoint's.
    """
    found: Any = image_processor(**fields)([image], do_rescale=False, do_normalize=False)
    side = fields.get("patch_size", PATCH)
    patches = np.asarray(found["pixel_values"])[0].reshape(3, side, -1, side).transpose(2, 1, 3, 0)
    sizes = [tuple(map(int, size)) for size in found["target_sizes"]]
    parts = np.split(patches, np.cumsum([rows * columns for rows, columns in sizes])[:-1])
    rows, columns = found["grids"][0]
    return [part.reshape(*size, side, side, 3) for part, size in zip(parts, sizes, strict=True)], (rows, columns)


def write_media(text: str, images: Sequence[PIL.Image.Image], videos: Sequence[Sequence[int]]) -> str:
    """Returns a rendered prompt with its media. Frames have neither slices nor numbers, as the model cards ask for.

    Args:
        videos: frames, and rows and columns of patches in a frame.
    """
    processor: Any = object.__new__(MiniCPMV4_6Processor)
    processor.image_processor, processor.slice_mode, processor.video_slice_mode = image_processor(), True, True
    processor.image_token, processor.video_token = IMAGE_TOKEN, VIDEO_TOKEN
    for name in ("image", "slice", "image_id"):
        setattr(processor, f"{name}_start_token", f"<{name}>")
        setattr(processor, f"{name}_end_token", f"</{name}>")
    written = processor._process_images(list(images))[1] if images else []
    numbered = processor._prepend_local_ids([text], written, IMAGE_TOKEN)
    for token, texts in ((IMAGE_TOKEN, numbered), (VIDEO_TOKEN, [_video_text(processor, each) for each in videos])):
        for each in texts:
            text = text.replace(token, each.replace(token, "\0"), 1)
        text = text.replace("\0", token)
    return text


def _video_text(processor: Any, video: Sequence[int]) -> str:
    num_frames, rows, columns = video
    inputs = {
        "target_sizes_videos": np.array([[rows, columns]] * num_frames),
        "num_frames_per_video": [num_frames],
        "grids_videos": np.zeros((num_frames, 2), int),
    }
    return processor.replace_video_token(inputs, 0, video_token_divisor=16)

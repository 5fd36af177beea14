"""Media of Gemma 4: how they are processed, and their tokens in a prompt."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from glimpse.engine.checkpoint.families.spec import LargestMedium
from glimpse.engine.checkpoint.families.token_layout import LayoutContext, TokenLayout, marked_runs
from glimpse.engine.checkpoint.model_config.encoders import Gemma4VisionConfig, PixelsConfig, WaveConfig
from glimpse.engine.checkpoint.model_config.model import ModelConfig
from glimpse.media.kind import MediaKind
from glimpse.media.processing.audio import AudioProcessing
from glimpse.media.processing.frame_sampling import CountSampling
from glimpse.media.processing.image import ImageProcessing
from glimpse.media.processing.media_processing import MediaProcessing
from glimpse.media.processing.preprocessor import (
    PREPROCESSOR,
    PROCESSOR,
    VIDEO_PREPROCESSOR,
    check_resampling,
    positive,
    read_image_processor,
    read_json,
)
from glimpse.media.processing.sizing.patches.budget_frames import BudgetFrames
from glimpse.media.processing.sizing.patches.patch_budget import BUDGETS, PatchBudget
from glimpse.media.processing.video import Video, VideoProcessing

if TYPE_CHECKING:
    from glimpse.media.medium import Medium

_Vision = Gemma4VisionConfig | PixelsConfig
NUM_MEL_BINS = 128
_EXTRACTOR: Mapping[str, Any] = {
    "feature_size": NUM_MEL_BINS,
    "sampling_rate": 16_000,
    "frame_length": 320,
    "hop_length": 160,
    "fft_length": 512,
    "fft_overdrive": False,
    "min_frequency": 0.0,
    "max_frequency": 8000.0,
    "mel_floor": 1e-3,
    "preemphasis": 0.0,
    "dither": 0.0,
    "input_scale_factor": 1.0,
    "per_bin_mean": None,
    "per_bin_stddev": None,
}
"""The supported extractor of features, which is that of published checkpoints."""
_DEFAULT_FPS = 24
"""Rate of frames without times, as in the reference."""
_MAX_SECONDS = 5999
"""Requests may set any frame rate; a later time would have many digits."""


def read_media(path: Path, config: ModelConfig) -> MediaProcessing:
    """Reads the processing of media: from the file of all media as published, or from files of their own."""
    whole = read_json(path / PROCESSOR, is_optional=True)
    vision = _vision_of(config)
    name = f"{PROCESSOR}: 'image_processor." if "image_processor" in whole else f"{PREPROCESSOR}: '"
    images = _budget(read_image_processor(path), name, vision, 280, do_normalize=False)
    nested = whole.get("video_processor")
    videos = nested or read_json(path / VIDEO_PREPROCESSOR, is_optional=True)
    name = f"{PROCESSOR}: 'video_processor." if nested else f"{VIDEO_PREPROCESSOR}: '"
    frames = _budget(videos, name, vision, 70, image_mean=[0, 0, 0], image_std=[1, 1, 1])
    sampling = CountSampling(
        fps=float(videos.get("fps") or 0), num_frames=positive("num_frames", videos.get("num_frames") or 32)
    )
    return MediaProcessing(
        images=ImageProcessing(sizing=images),
        videos=VideoProcessing(sizing=BudgetFrames(images=frames), sampling=sampling),
        audio=_audio_processing(whole, vision),
    )


def _vision_of(config: ModelConfig) -> _Vision:
    assert isinstance(config.encoder, Gemma4VisionConfig | PixelsConfig)
    return config.encoder


def _budget(processor: Mapping[str, Any], name: str, vision: _Vision, default: int, **expected: Any) -> PatchBudget:
    """Returns how images or frames are resized.

    Args:
        processor: its fields, of which the default is that without the field.
        name: file and beginning of the fields' names, for errors.
        default: budget of tokens of a document without any.
        expected: the only supported values of further fields.
    """
    check_resampling(processor)
    expected = {
        "do_resize": True,
        "do_rescale": True,
        "patch_size": vision.patch_size,
        "pooling_kernel_size": vision.pool_size,
        **expected,
    }
    for field, value in expected.items():
        if processor.get(field, value) != value:
            raise ValueError(f"{name}{field}': expected {value!r}, got {processor[field]!r}")
    if not math.isclose(factor := processor.get("rescale_factor", 1 / 255), 1 / 255, rel_tol=1e-6):
        raise ValueError(f"{name}rescale_factor': expected 1/255, got {factor!r}")
    budget = processor.get("max_soft_tokens", default)
    if budget not in BUDGETS:
        raise ValueError(f"{name}max_soft_tokens': expected one of {BUDGETS}, got {budget!r}")
    return PatchBudget(patch_size=vision.patch_size, pool_size=vision.pool_size, max_tokens=budget)


def _audio_processing(whole: Mapping[str, Any], vision: _Vision) -> AudioProcessing | None:
    """Reads the processing of audio, of up to 30 s. Without any, it is the published one's."""
    if vision.audio is None:
        return None
    expected = _EXTRACTOR
    if isinstance(vision.audio, WaveConfig):
        size = vision.audio.width
        expected = {"feature_size": size, "sampling_rate": 16_000, "audio_samples_per_token": size}
    extractor = {**expected, **(whole.get("feature_extractor") or {})}
    for name, value in expected.items():
        if extractor[name] != value:
            raise ValueError(f"{PROCESSOR}: 'feature_extractor.{name}': expected {value!r}, got {extractor[name]!r}")
    if isinstance(vision.audio, WaveConfig):
        size = vision.audio.width
        return AudioProcessing(
            sampling_rate=16_000,
            num_mel_bins=size,
            fft_size=size,
            hop=size,
            max_samples=480_000 // size * size,
            pads_to_max=False,
            is_raw=True,
        )
    return AudioProcessing(
        sampling_rate=16_000, num_mel_bins=NUM_MEL_BINS, fft_size=512, hop=160, max_samples=480_000, floor=1e-3
    )


def layout(medium: "Medium", context: LayoutContext) -> TokenLayout:
    """Returns the tokens of an image, one for each square of patches, or of audio, one for 40 ms or a row of
    embeddings; between two marks. A video is an image for each frame, after its time."""
    encoder = _vision_of(context.model)
    if isinstance(medium, Video):
        return _video_layout(medium, context, encoder)
    if medium.kind is MediaKind.AUDIO and encoder.audio is not None:
        _, num_bins, size = medium.grid
        num_tokens = size if num_bins == 1 else encoder.audio.num_tokens(size)
        encoder = encoder.audio
    else:
        num_tokens = math.prod(medium.grid) // encoder.pool_size**2
    return TokenLayout(kind=medium.kind, pieces=((encoder.start_token_id,), num_tokens, (encoder.end_token_id,)))


def _video_layout(video: Video, context: LayoutContext, encoder: _Vision) -> TokenLayout:
    _, rows, columns = video.grid
    num_tokens = rows * columns // encoder.pool_size**2
    times = video.times(_DEFAULT_FPS, _MAX_SECONDS)
    first, *others = ("{:02d}:{:02d}".format(*divmod(int(time), 60)) for time in times)
    texts = (context.encode(f" {stamp} ") for stamp in others)
    pieces = marked_runs([encoder.start_token_id], [encoder.end_token_id], texts, num_tokens)
    return TokenLayout(kind=video.kind, leading=f"{first} ", pieces=pieces)


def embedding_grid(config: ModelConfig, kind: MediaKind, num_rows: int) -> tuple[int, ...]:
    """See `FamilySpec`."""
    if kind is MediaKind.AUDIO:
        return (1, 1, num_rows)
    if num_rows > BUDGETS[-1]:
        raise ValueError(f"expected at most {BUDGETS[-1]} tokens of an image")
    side = _vision_of(config).pool_size
    return (1, side, side * num_rows)


def largest_medium(config: ModelConfig, num_tokens: int) -> LargestMedium:
    """Returns images of about `num_tokens` tokens, one under the other."""
    encoder = _vision_of(config)
    side = max(1, math.isqrt(min(num_tokens, BUDGETS[-1]))) * encoder.pool_size
    count = max(1, num_tokens // BUDGETS[-1])
    return LargestMedium(
        kind=MediaKind.IMAGE,
        grid=(count, side, side),
        num_bytes=3 * count * (side * encoder.patch_size) ** 2,
        num_positions=count * side**2,
        width=encoder.width,
        intermediate_size=encoder.intermediate_size if isinstance(encoder, Gemma4VisionConfig) else encoder.width,
    )

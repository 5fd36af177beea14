"""The server's settings for media: how they are read, where they may come from, and how much memory they get.

The docstring under a field is its help text. Nothing here opens a file or a socket.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter
from pydantic import (
    BaseModel,
    ByteSize,
    Field,
    FilePath,
    IPvAnyNetwork,
    ValidationInfo,
    field_validator,
)

from glimpse.media.kind import MediaKind, parse_limit
from glimpse.media.limits import FETCH_TIMEOUTS, MAX_DECODED_PIXELS, MAX_FILE_BYTES, MAX_VIDEO_SECONDS
from glimpse.media.shared.address import parse_store_url
from glimpse.media.sources.policy import WEB_PORTS, host_name
from glimpse.server.setting_types import FROZEN, Folder, Lifetime, NamedPath, Names, Port, Size

_Byte = Annotated[int, Field(ge=0, le=255)]


class ImageIoSettings(BaseModel):
    """Options for reading images, named as in vLLM."""

    model_config = FROZEN

    rgba_background_color: Annotated[tuple[_Byte, _Byte, _Byte], Parameter(negative="")] = (255, 255, 255)
    """Background of transparent pixels: red, green and blue, 0 to 255."""


class VideoSampling(BaseModel):
    """Which frames of video files are sampled; at most one of both."""

    model_config = FROZEN

    fps: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """Frames per second. Default: the model family's, 1 to 3."""
    num_frames: Annotated[int, Field(ge=1)] | None = None
    """Number of frames, evenly spaced."""

    @field_validator("num_frames")
    @classmethod
    def _check_number(cls, num_frames: int | None, others: ValidationInfo) -> int | None:
        if num_frames is not None and others.data.get("fps") is not None:
            raise ValueError("expected either fps or num_frames, got both")
        return num_frames

    @property
    def is_set(self) -> bool:
        return self.fps is not None or self.num_frames is not None


class MediaIoSettings(BaseModel):
    """Options for reading media, named as in vLLM. A request's own come first."""

    model_config = FROZEN

    image: ImageIoSettings = ImageIoSettings()
    """Options for images."""
    video: VideoSampling = VideoSampling()
    """Options for videos."""


class MediaProcessorSettings(VideoSampling):
    """Options for resizing and sampling media, named as in vLLM. A request's own come first."""

    min_pixels: Annotated[int, Field(ge=1)] | None = None
    """Area to which smaller images and frames are enlarged. Default: the model family's."""
    max_pixels: Annotated[int, Field(ge=1)] | Literal["checkpoint"] | None = None
    """Area to which larger images and frames are reduced. checkpoint: the checkpoint's own bound."""

    @field_validator("max_pixels", mode="before")
    @classmethod
    def _check_max_pixels(cls, value: object) -> object:
        if isinstance(value, str) and value != "checkpoint" and not value.isdecimal():
            raise ValueError("expected an integer or 'checkpoint'")
        return value


class MediaSettings(BaseModel):
    """Media that requests may carry, and where they may come from."""

    model_config = FROZEN

    limit_mm_per_prompt: str = "image=16,video=4,audio=4,document=16"
    """Most media in a request, by kind; also as JSON: {"image": 2}. A kind that is left out keeps its default. Pages of
    documents count as images."""
    media_egress: Literal["on", "off"] = "on"
    """off: fetch no URLs; requests must carry their media."""
    allowed_media_domains: Names = ()
    """Host that media may be fetched from; repeatable. Default: any public host."""
    allowed_media_networks: Annotated[tuple[IPvAnyNetwork, ...], Parameter(negative="", show_default=False)] = ()
    """Private network that media may be fetched from, such as 10.1.0.0/16; repeatable. Default: none."""
    allowed_media_ports: Annotated[tuple[Port, ...], Parameter(negative="")] = tuple(sorted(WEB_PORTS))
    """Port that media may be fetched from; repeatable."""
    allowed_local_media_path: Folder | None = None
    """Folder whose files requests may name by file: URLs. Default: file: URLs are refused."""
    media_io_kwargs: MediaIoSettings = MediaIoSettings()
    """Defaults for reading media, as JSON: {"image": {"rgba_background_color": [0, 0, 0]}, "video": {"num_frames": 8}}.
    Of videos num_frames or fps."""
    mm_processor_kwargs: MediaProcessorSettings = MediaProcessorSettings()
    """Defaults for resizing and sampling media, as JSON: {"max_pixels": 12845056, "fps": 2}. Also min_pixels and
    num_frames. max_pixels may be "checkpoint", the checkpoint's own. Default: 1280 tokens for an image at most."""
    fast_jpeg: bool = False
    """Decode large JPEGs at half size or less if the model sees no more. Faster, with slightly different pixels."""
    image_fetch_timeout: Annotated[float, Field(gt=0)] = FETCH_TIMEOUTS[MediaKind.IMAGE]
    """Seconds that fetching an image may take."""
    video_fetch_timeout: Annotated[float, Field(gt=0)] = FETCH_TIMEOUTS[MediaKind.VIDEO]
    """Seconds that fetching a video may take; a list of frames, all of them together."""
    audio_fetch_timeout: Annotated[float, Field(gt=0)] = FETCH_TIMEOUTS[MediaKind.AUDIO]
    """Seconds that fetching an audio file may take."""
    document_fetch_timeout: Annotated[float, Field(gt=0)] = FETCH_TIMEOUTS[MediaKind.DOCUMENT]
    """Seconds that fetching a document may take."""
    max_image_file_bytes: Annotated[Size, Field(ge=1)] = ByteSize(MAX_FILE_BYTES[MediaKind.IMAGE])
    """Largest image file. What comes in a request is bounded by the request's body too, 64 MiB."""
    max_video_file_bytes: Annotated[Size, Field(ge=1)] = ByteSize(MAX_FILE_BYTES[MediaKind.VIDEO])
    """Largest video file, all files of a video's frames together, and largest upload."""
    max_audio_file_bytes: Annotated[Size, Field(ge=1)] = ByteSize(MAX_FILE_BYTES[MediaKind.AUDIO])
    """Largest audio file."""
    max_document_file_bytes: Annotated[Size, Field(ge=1)] = ByteSize(MAX_FILE_BYTES[MediaKind.DOCUMENT])
    """Largest document."""
    max_image_pixels: Annotated[int, Field(ge=1, le=256_000_000), Parameter(show_default=True)] = MAX_DECODED_PIXELS
    """Most pixels of an image as decoded, or of a page as drawn, before it is resized; larger JPEGs are decoded at 1/2,
    1/4 or 1/8 of their size. A worker that decodes has 3 GiB of address space."""
    max_video_seconds: Annotated[float, Field(gt=0, allow_inf_nan=False)] = MAX_VIDEO_SECONDS
    """Longest part of a video file that is read."""
    max_request_media_bytes: Annotated[Size, Field(ge=1)] = ByteSize(1 << 30)
    """Memory for the media of one request, files and decoded pixels together."""
    media_cache_bytes: Size = ByteSize(512 << 20)
    """Memory of the media cache, for files and decoded pixels; 0 turns it off."""
    media_in_flight_bytes: Size = ByteSize(2 << 30)
    """Memory for the media of all running requests, half of it for one client. More is refused as overloaded (429)."""
    upload_cache_bytes: Size = ByteSize(512 << 20)
    """Memory for uploads; the least recently used are evicted, of the tenant that has most. 0 refuses uploads."""
    upload_ttl: Lifetime = 3600.0
    """Seconds after which an upload expires."""
    response_store_bytes: Size = ByteSize(128 << 20)
    """Memory for stored responses; the least recently used leave, of the tenant that has most. 0 stores none."""
    response_ttl: Lifetime = 3600.0
    """Seconds after which a stored response expires."""
    state_folder: NamedPath | None = None
    """Folder that keeps uploads, stored responses and batches on disk, so that they outlive the server. Default: they
    are in memory, or in --media-store."""
    media_store: Annotated[str | None, Parameter(show_default=False)] = None
    """Redis that keeps uploads, uuids and fetched files for all servers that name it, and counts quotas (--tenants):
    redis://[[USER]:PASSWORD@]HOST[:PORT][/DATABASE], or rediss:// for TLS. Default: each server has its own."""
    media_store_ca: FilePath | None = None
    """File with the authorities that may sign the certificate of a rediss:// store. Default: the system's."""
    media_store_prefix: Annotated[str, Field(min_length=1, max_length=64)] = "glimpse:"
    """Beginning of all keys in the media store. Servers that share media have the same."""
    enable_mm_embeds: bool = False
    """Accept embeddings, computed elsewhere, instead of media."""

    @field_validator("limit_mm_per_prompt")
    @classmethod
    def _check_limit(cls, limit: str) -> str:
        _limits(limit)
        return limit

    @field_validator("mm_processor_kwargs")
    @classmethod
    def _check_sampling(cls, own: MediaProcessorSettings, others: ValidationInfo) -> MediaProcessorSettings:
        io = others.data.get("media_io_kwargs")
        if isinstance(io, MediaIoSettings) and io.video.is_set and own.is_set:
            raise ValueError("expected fps and num_frames here or in --media-io-kwargs, got them in both")
        return own

    @field_validator("media_store")
    @classmethod
    def _check_store(cls, url: str | None, others: ValidationInfo) -> str | None:
        if url is not None:
            parse_store_url(url)
        if url is not None and others.data.get("state_folder") is not None:
            raise ValueError("expected without --state-folder: it keeps the uploads and batches of all its servers")
        return url

    @field_validator("media_store_ca")
    @classmethod
    def _check_store_ca(cls, ca: Path | None, others: ValidationInfo) -> Path | None:
        url = others.data.get("media_store")
        if ca is not None and url is not None:
            parse_store_url(url, ca)
        if ca is not None and url is None:
            raise ValueError("expected together with --media-store")
        return ca

    @field_validator("media_store_prefix")
    @classmethod
    def _check_store_prefix(cls, prefix: str, others: ValidationInfo) -> str:
        # Processes hand settings on whole, the defaults too.
        if others.data.get("media_store") is None and prefix != cls.model_fields["media_store_prefix"].default:
            raise ValueError("expected together with --media-store")
        return prefix

    @field_validator("allowed_media_domains", "allowed_media_networks", "allowed_media_ports")
    @classmethod
    def _check_egress(cls, allowed: tuple[object, ...], others: ValidationInfo) -> tuple[object, ...]:
        # Processes hand settings on whole, the defaults too.
        if others.data.get("media_egress") == "off" and allowed != cls.model_fields[str(others.field_name)].default:
            raise ValueError("expected with --media-egress on, got it with off, which fetches nothing")
        return allowed

    @field_validator("allowed_media_domains")
    @classmethod
    def _check_domains(cls, domains: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(map(host_name, domains))

    @property
    def max_media(self) -> Mapping[MediaKind, int]:
        """Returns the most media of each kind in a request."""
        return _DEFAULT_LIMITS | _limits(self.limit_mm_per_prompt)


_DEFAULT_LIMITS = {MediaKind.IMAGE: 16, MediaKind.VIDEO: 4, MediaKind.AUDIO: 4, MediaKind.DOCUMENT: 16}

_LARGEST_LIMIT = (1 << 32) - 1  # of `Capabilities.max_images`


def _limits(text: str) -> dict[MediaKind, int]:
    """Parses limits such as "image=2,video=1" or, as JSON, {"image": 2, "video": 1}. Raises ValueError."""
    limits: dict[MediaKind, int] = {}
    for kind, count in _json_limits(text) if text.lstrip().startswith("{") else _written_limits(text):
        if kind not in _DEFAULT_LIMITS or kind in limits or count is None:
            kinds = ", ".join(f"{kind}=N" for kind in _DEFAULT_LIMITS)
            raise ValueError(f"expected {kinds}, or several of these with commas or as JSON")
        if count > _LARGEST_LIMIT:
            raise ValueError(f"expected at most {_LARGEST_LIMIT} of a kind")
        limits[MediaKind(kind)] = count
    return limits


def _written_limits(text: str) -> Iterator[tuple[str, int | None]]:
    for limit in text.split(","):
        kind, _, count = limit.strip().partition("=")
        yield kind, int(count) if count.isdecimal() else None


def _json_limits(text: str) -> Iterator[tuple[str, int | None]]:
    try:
        limits: dict[str, object] = json.loads(text)
    except ValueError:
        yield "", None
        return
    for kind, count in limits.items():
        yield kind, parse_limit(count)

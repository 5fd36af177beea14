"""The server's settings, from which flags, environment variables (GLIMPSE_…) and the help text are made.

Parsed values: sizes in bytes, limits as numbers. Nothing here opens a file or a socket.
"""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Group, Parameter
from pydantic import (
    BaseModel,
    ByteSize,
    ConfigDict,
    DirectoryPath,
    Field,
    IPvAnyNetwork,
    TypeAdapter,
    ValidationError,
    field_validator,
)

from glimpse.engine.config import EngineConfig, EngineOptions
from glimpse.media.kind import MediaKind
from glimpse.media.sources.policy import WEB_PORTS, host_name

_SIZE = TypeAdapter(ByteSize)
_FROZEN = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

ToolCallParser = Literal["auto", "hermes", "llama", "mistral", "json"]
Port = Annotated[int, Field(ge=0, le=65535)]
Byte = Annotated[int, Field(ge=0, le=255)]
Size = Annotated[ByteSize, Parameter(show_default=ByteSize.human_readable)]
Names = Annotated[tuple[str, ...], Parameter(negative="", show_default=False)]


def _show_default(value: object) -> Any:
    """Shows sizes with their unit: of the defaults, exactly the sizes are a million or more. None shows nothing."""
    if value is None:
        return None
    return ByteSize(value).human_readable() if isinstance(value, int) and value >= 1 << 20 else str(value)


def _parse_size(value: object) -> object:
    """Returns the number of bytes of a size such as "8GiB", and anything else as it is, for its field to refuse."""
    try:
        return int(_SIZE.validate_python(value)) if isinstance(value, str) else value
    except ValidationError:
        return value


class ListenSettings(BaseModel):
    """Where the server listens and how it stops."""

    model_config = _FROZEN

    host: str = "127.0.0.1"
    """Address to listen on. Nothing asks callers who they are: let other machines in only through a proxy that does."""
    port: Port = 50051
    """Port of gRPC."""
    metrics_host: str = "127.0.0.1"
    """Address of Prometheus' /metrics."""
    metrics_port: Port = 9090
    """Port of Prometheus' /metrics."""
    drain_delay: Annotated[float, Field(ge=0)] = 3.0
    """Seconds between turning NOT_SERVING and closing the port on SIGTERM, so that proxies notice; none on Ctrl-C."""
    drain_timeout: Annotated[float, Field(ge=0)] = 60.0
    """Seconds that running answers have to end when the server stops."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """The least severe messages that are logged."""


class EngineSettings(BaseModel):
    """Which model is served, and how."""

    model_config = _FROZEN

    model: str | None = None
    """Folder of a checkpoint, or its name on the Hugging Face hub. Default: the small one that comes with Glimpse."""
    served_model_name: Names = ()
    """Name under which the model is served; may be given several times. Default: the checkpoint's own."""
    chat_template: Path | None = None
    """File with a Jinja chat template that replaces the checkpoint's."""
    tool_call_parser: ToolCallParser = "auto"
    """How the model writes calls of tools; auto: as its chat template teaches it."""
    options: Annotated[EngineOptions, Parameter(name="*", show_default=_show_default)] = EngineOptions()
    """The engine's own options."""
    engine_timeout: Annotated[float, Field(gt=0)] = 600
    """Seconds without a sign from the engine, while requests wait, after which it is taken for hung and replaced."""

    @field_validator("options", mode="before")
    @classmethod
    def _parse_sizes(cls, options: object) -> object:
        if not isinstance(options, dict):
            return options
        return {name: _parse_size(value) if name.endswith("_bytes") else value for name, value in options.items()}

    def engine_config(self, checkpoint: Path) -> EngineConfig:
        """Returns the configuration of an engine that serves the checkpoint in this folder."""
        return EngineConfig(model_path=str(checkpoint), **asdict(self.options))


class ImageReading(BaseModel):
    """How pictures are read, in vLLM's words."""

    model_config = _FROZEN

    rgba_background_color: Annotated[tuple[Byte, Byte, Byte], Parameter(negative="")] = (255, 255, 255)
    """Red, green and blue, 0 to 255, of what shows through where a picture is transparent."""


class MediaReading(BaseModel):
    """How media are read where a request does not say it, in vLLM's words."""

    model_config = _FROZEN

    image: ImageReading = ImageReading()
    """Of pictures."""


class MediaSettings(BaseModel):
    """What media requests may have, and from where."""

    model_config = _FROZEN

    limit_mm_per_prompt: str = "image=16,video=4,audio=4"
    """Most media in a request, by kind; a kind that is not named keeps its default."""
    media_egress: Literal["on", "off"] = "on"
    """off: no URL is ever fetched; media come in the request."""
    allowed_media_domains: Names = ()
    """Host from which media may be fetched; may be given several times. Default: any public one."""
    allowed_media_networks: Annotated[tuple[IPvAnyNetwork, ...], Parameter(negative="", show_default=False)] = ()
    """Network that is not public and from which media may be fetched all the same, such as 10.1.0.0/16."""
    allowed_media_ports: Annotated[tuple[Port, ...], Parameter(negative="")] = tuple(sorted(WEB_PORTS))
    """Port from which media may be fetched; may be given several times."""
    allowed_local_media_path: DirectoryPath | None = None
    """Folder of this host whose files clients may name by file: URLs. Default: none may be named."""
    media_io_kwargs: MediaReading = MediaReading()
    """How media are read, as JSON: {"image": {"rgba_background_color": [0, 0, 0]}}."""
    fast_jpeg: bool = False
    """Decode JPEGs that are much larger than what the model sees at half size or less: sooner, and not quite alike."""
    image_fetch_timeout: Annotated[float, Field(gt=0)] = 5.0
    """Seconds that fetching a picture may take."""
    video_fetch_timeout: Annotated[float, Field(gt=0)] = 30.0
    """Seconds that fetching a clip may take, all of its frames together where they are pictures."""
    audio_fetch_timeout: Annotated[float, Field(gt=0)] = 10.0
    """Seconds that fetching a sound may take."""
    media_cache_bytes: Size = ByteSize(512 << 20)
    """Memory for the files and pixels of media that may be asked about again; 0 keeps none."""
    media_in_flight_bytes: Size = ByteSize(2 << 30)
    """Memory for the media of requests that are being served; one that would need more is refused (429)."""
    upload_cache_bytes: Size = ByteSize(512 << 20)
    """Memory for uploads, of which the longest unused give way; 0 takes none."""
    upload_ttl: Annotated[float, Field(gt=0)] = 3600.0
    """Seconds for which an upload is kept at most."""
    enable_mm_embeds: bool = False
    """Accept embeddings, computed elsewhere, in the place of media."""

    @field_validator("limit_mm_per_prompt")
    @classmethod
    def _check_limit(cls, limit: str) -> str:
        _limits(limit)
        return limit

    @field_validator("allowed_media_domains")
    @classmethod
    def _check_domains(cls, domains: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(map(host_name, domains))

    @property
    def max_media(self) -> Mapping[MediaKind, int]:
        """The most media of each kind that is served."""
        return _DEFAULT_LIMITS | _limits(self.limit_mm_per_prompt)


class Settings(BaseModel):
    """All of the server's settings."""

    model_config = _FROZEN

    engine: Annotated[EngineSettings, Parameter(name="*", group=Group("Model", sort_key=1))] = EngineSettings()
    media: Annotated[MediaSettings, Parameter(name="*", group=Group("Media", sort_key=2))] = MediaSettings()
    listen: Annotated[ListenSettings, Parameter(name="*", group=Group("Listening", sort_key=3))] = ListenSettings()


_DEFAULT_LIMITS = {MediaKind.IMAGE: 16, MediaKind.VIDEO: 4, MediaKind.AUDIO: 4}


def _limits(text: str) -> dict[MediaKind, int]:
    limits: dict[MediaKind, int] = {}
    for limit in text.split(","):
        kind, separator, count = limit.strip().partition("=")
        if kind not in _DEFAULT_LIMITS or kind in limits or not separator or not count.isdecimal():
            raise ValueError("expected image=N, video=N, audio=N, or several of these with commas")
        limits[MediaKind(kind)] = int(count)
    return limits

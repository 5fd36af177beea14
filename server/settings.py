"""The server's settings. Flags, environment variables (GLIMPSE_…) and help texts are made from them.

The docstring under a field is its help text. Nothing here opens a file or a socket.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from ipaddress import IPv4Network, IPv6Network
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Group, Parameter
from pydantic import (
    BaseModel,
    ByteSize,
    ConfigDict,
    DirectoryPath,
    Field,
    FilePath,
    IPvAnyNetwork,
    TypeAdapter,
    ValidationError,
    ValidationInfo,
    field_validator,
)

from glimpse.engine.config import EngineConfig, EngineOptions
from glimpse.media.kind import MediaKind
from glimpse.media.shared.address import parse_store_url
from glimpse.media.sources.policy import WEB_PORTS, host_name

_SIZE = TypeAdapter(ByteSize)
_FROZEN = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

ToolCallParser = Literal["auto", "hermes", "llama", "mistral", "mistral_args", "phi4_mini", "qwen3_coder", "json"]
ReasoningParser = Literal["auto", "deepseek_r1", "qwen3", "none"]
MetricsNames = Literal["glimpse", "vllm", "both"]
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
    """Addresses to listen on, how to stop, and what to log."""

    model_config = _FROZEN

    host: str = "127.0.0.1"
    """Address to listen on. Without --api-keys let other machines in only through a proxy that authenticates."""
    port: Port = 50051
    """Port for gRPC; 0 takes a free one."""
    tls_certificate: FilePath | None = None
    """PEM file of the gRPC port's certificate. Turns TLS on; read again when it changes. Default: plain text."""
    tls_key: Annotated[FilePath | None, Field(validate_default=True)] = None
    """PEM file of the certificate's private key."""
    tls_client_ca: FilePath | None = None
    """PEM file of the CA that signs client certificates, which are then required (mutual TLS)."""
    metrics_host: str = "127.0.0.1"
    """Address of the Prometheus endpoint, /metrics."""
    metrics_port: Port = 9090
    """Port of the Prometheus endpoint, /metrics; 0 takes a free one."""
    metrics_names: MetricsNames = "glimpse"
    """Names of the metrics. vllm: those that vLLM gives to the same quantities, for inference gateways and dashboards
    that read them. both: vLLM's and Glimpse's own."""
    trusted_proxies: Annotated[tuple[IPvAnyNetwork, ...], Parameter(negative="", show_default=False)] = (
        IPv4Network("127.0.0.0/8"),
        IPv6Network("::1/128"),
    )
    """Network whose proxies may give a client's address as x-glimpse-client-address; repeatable. Default: this host."""
    body_in_flight_bytes: Size = ByteSize(512 << 20)
    """Memory for request bodies until their media are loaded. A body that would exceed it is refused (429)."""
    drain_delay: Annotated[float, Field(ge=0)] = 3.0
    """Seconds between reporting NOT_SERVING and closing the port on SIGTERM, so that proxies notice. None on Ctrl-C."""
    drain_timeout: Annotated[float, Field(ge=0)] = 60.0
    """Seconds that running requests get to end when the server stops; then they end with UNAVAILABLE."""
    keepalive_time: Annotated[float, Field(ge=1)] = 20.0
    """Seconds after which a silent gRPC connection is pinged; after as many more without a reply its requests end."""
    max_connection_age: Annotated[float, Field(ge=1)] | None = None
    """Seconds after which a gRPC client is told to connect anew, so that load spreads. Open calls end first. Default:
    never."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Least severe level that is logged."""

    @field_validator("tls_key", "tls_client_ca")
    @classmethod
    def _check_tls(cls, path: Path | None, values: ValidationInfo) -> Path | None:
        certificate = values.data.get("tls_certificate")
        if values.field_name == "tls_key" and path is None and certificate is not None:
            raise ValueError("expected the private key of --tls-certificate, which is given")
        if path is not None and certificate is None:
            raise ValueError("requires --tls-certificate")
        return path


class NameSettings(BaseModel):
    """The model to serve, and its names."""

    model_config = _FROZEN

    model: str | None = None
    """Folder of a checkpoint, or its id on the Hugging Face Hub. Default: the small model that comes with Glimpse."""
    served_model_name: Names = ()
    """Name that requests give as `model`; repeatable. Default: the folder's name, or the id on the hub."""


class ModelSettings(BaseModel):
    """What decides whether a model can be served."""

    model_config = _FROZEN

    companion: Names = ()
    """ID=FOLDER, where the checkpoint named ID in the model's config.json is a folder here; repeatable. Ultravox names
    its decoder and its encoder so. Default: ID is a folder, or a model on the Hugging Face Hub."""
    chat_template: Path | None = None
    """File with a Jinja chat template, to use instead of the checkpoint's."""
    tool_template: Literal["auto", "off"] = "auto"
    """auto: show tools to Qwen2-VL and Qwen2.5-VL as to Qwen2.5, if the checkpoint's template ignores them. off: refuse
    them. Prompts without tools are the same."""
    tool_call_parser: ToolCallParser = "auto"
    """Format in which the model writes tool calls. auto: the one that its chat template describes."""
    reasoning_parser: ReasoningParser = "auto"
    """Tags between which the model reasons. auto: those of its chat template. none: it is part of the content."""
    options: Annotated[EngineOptions, Parameter(name="*", show_default=_show_default)] = EngineOptions()
    """Options of the engine."""

    @field_validator("options", mode="before")
    @classmethod
    def _parse_sizes(cls, options: object) -> object:
        if not isinstance(options, dict):
            return options
        return {name: _parse_size(value) if name.endswith("_bytes") else value for name, value in options.items()}

    @field_validator("companion")
    @classmethod
    def _check_companions(cls, companions: tuple[str, ...]) -> tuple[str, ...]:
        for companion in companions:
            if not all(companion.partition("=")):
                raise ValueError(f"expected ID=FOLDER, got {companion!r}")
        return companions

    @property
    def companions(self) -> Mapping[str, str]:
        """Returns the folder of each companion that has one, by its name in `config.json`."""
        return dict(companion.split("=", 1) for companion in self.companion)

    def engine_config(self, checkpoint: Path, folders: Mapping[str, str] | None = None) -> EngineConfig:
        """Returns the configuration of an engine that serves the checkpoint in this folder, with the folders of its
        companions as `resolve_companions` returns them."""
        return EngineConfig(model_path=str(checkpoint), companions=folders or {}, **asdict(self.options))


class EngineSettings(ModelSettings, NameSettings):
    """The model to serve, and how to serve it."""

    generation_config: Annotated[str, Field(min_length=1)] = "none"
    """Where the defaults of temperature, top_p, top_k, min_p, repetition_penalty and the token limit of conversations
    come from. auto: the checkpoint's generation_config.json. none (or vllm): the API's own. Else a folder with such a
    file."""
    max_queue_seconds: Annotated[float, Field(gt=0)] = 60.0
    """Seconds that a request may be expected to wait for others of the same client; longer, and it is refused (429)."""
    engine_timeout: Annotated[float, Field(gt=0)] = 600
    """Seconds without a message from an engine that has requests, after which it counts as hung and is restarted."""
    spare_engine: bool = True
    """Keep a second engine process that has imported torch but loaded nothing, so that restarts take less time."""


class ImageIoSettings(BaseModel):
    """Options for reading images, named as in vLLM."""

    model_config = _FROZEN

    rgba_background_color: Annotated[tuple[Byte, Byte, Byte], Parameter(negative="")] = (255, 255, 255)
    """Background of transparent pixels: red, green and blue, 0 to 255."""


class VideoSampling(BaseModel):
    """Which frames of video files are sampled; at most one of both."""

    model_config = _FROZEN

    fps: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """Frames per second. Default: the model family's, 1 or 2."""
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

    model_config = _FROZEN

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

    model_config = _FROZEN

    limit_mm_per_prompt: str = "image=16,video=4,audio=4"
    """Most media in a request, by kind; also as JSON: {"image": 2}. A kind that is left out keeps its default."""
    media_egress: Literal["on", "off"] = "on"
    """off: fetch no URLs; requests must carry their media."""
    allowed_media_domains: Names = ()
    """Host that media may be fetched from; repeatable. Default: any public host."""
    allowed_media_networks: Annotated[tuple[IPvAnyNetwork, ...], Parameter(negative="", show_default=False)] = ()
    """Private network that media may be fetched from, such as 10.1.0.0/16; repeatable. Default: none."""
    allowed_media_ports: Annotated[tuple[Port, ...], Parameter(negative="")] = tuple(sorted(WEB_PORTS))
    """Port that media may be fetched from; repeatable."""
    allowed_local_media_path: DirectoryPath | None = None
    """Folder whose files requests may name by file: URLs. Default: file: URLs are refused."""
    media_io_kwargs: MediaIoSettings = MediaIoSettings()
    """Defaults for reading media, as JSON: {"image": {"rgba_background_color": [0, 0, 0]}, "video": {"num_frames": 8}}.
    Of videos num_frames or fps."""
    mm_processor_kwargs: MediaProcessorSettings = MediaProcessorSettings()
    """Defaults for resizing and sampling media, as JSON: {"max_pixels": 12845056, "fps": 2}. Also min_pixels and
    num_frames. max_pixels may be "checkpoint", the checkpoint's own. Default: 1280 tokens for an image at most."""
    fast_jpeg: bool = False
    """Decode large JPEGs at half size or less if the model sees no more. Faster, with slightly different pixels."""
    image_fetch_timeout: Annotated[float, Field(gt=0)] = 5.0
    """Seconds that fetching an image may take."""
    video_fetch_timeout: Annotated[float, Field(gt=0)] = 30.0
    """Seconds that fetching a video may take; a list of frames, all of them together."""
    audio_fetch_timeout: Annotated[float, Field(gt=0)] = 10.0
    """Seconds that fetching an audio file may take."""
    max_image_file_bytes: Annotated[Size, Field(ge=1)] = ByteSize(50 << 20)
    """Largest image file. What comes in a request is bounded by the request's body too, 64 MiB."""
    max_video_file_bytes: Annotated[Size, Field(ge=1)] = ByteSize(100 << 20)
    """Largest video file, all files of a video's frames together, and largest upload."""
    max_audio_file_bytes: Annotated[Size, Field(ge=1)] = ByteSize(50 << 20)
    """Largest audio file."""
    max_image_pixels: Annotated[int, Field(ge=1, le=256_000_000), Parameter(show_default=True)] = 64_000_000
    """Most pixels of an image before it is resized. A worker that decodes has 3 GiB of address space."""
    max_video_seconds: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 3600.0
    """Longest part of a video file that is read."""
    max_request_media_bytes: Annotated[Size, Field(ge=1)] = ByteSize(1 << 30)
    """Memory for the media of one request, files and decoded pixels together."""
    media_cache_bytes: Size = ByteSize(512 << 20)
    """Memory of the media cache, for files and decoded pixels; 0 turns it off."""
    media_in_flight_bytes: Size = ByteSize(2 << 30)
    """Memory for the media of all running requests. A request that would exceed it is refused as overloaded (429)."""
    upload_cache_bytes: Size = ByteSize(512 << 20)
    """Memory for uploads; the least recently used are evicted, of the tenant that has most. 0 refuses uploads."""
    upload_ttl: Annotated[float, Field(gt=0)] = 3600.0
    """Seconds after which an upload expires."""
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
    def _check_store(cls, url: str | None) -> str | None:
        if url is not None:
            parse_store_url(url)
        return url

    @field_validator("media_store_ca")
    @classmethod
    def _check_store_ca(cls, ca: Path | None, others: ValidationInfo) -> Path | None:
        url = others.data.get("media_store")
        if ca is not None and url is not None:
            parse_store_url(url, ca)
        if ca is not None and url is None:
            raise ValueError("this needs a media store, which --media-store names")
        return ca

    @field_validator("allowed_media_domains")
    @classmethod
    def _check_domains(cls, domains: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(map(host_name, domains))

    @property
    def max_media(self) -> Mapping[MediaKind, int]:
        """Returns the most media of each kind in a request."""
        return _DEFAULT_LIMITS | _limits(self.limit_mm_per_prompt)


class AccessSettings(BaseModel):
    """Who may call, and what they may do."""

    model_config = _FROZEN

    api_keys: Path | None = None
    """File with the hashes of API keys and their tenants; `glimpse key` makes its lines. It is read again when it
    changes. Requests then need a key, except for health. Default: everyone may call."""
    jwt_jwks: str | None = None
    """File or URL with the public keys (JWKS) of an identity provider, whose JWTs are then credentials too. It is read
    again: a file when it changes, a URL every 5 minutes."""
    jwt_jwks_ca: Path | None = None
    """File with the authorities that may sign the certificate of --jwt-jwks, an https:// URL. Default: the system's."""
    jwt_issuer: str | None = None
    """Issuer (`iss`) of valid JWTs."""
    jwt_audience: str | None = None
    """Audience (`aud`) of valid JWTs."""
    jwt_tenant_claim: str = "sub"
    """Claim of JWTs that names the tenant."""
    tenant_header: Annotated[bool, Parameter(negative="")] = False
    """Believe the tenant that a gateway sends as x-glimpse-tenant, if it is one of --trusted-proxies. The gateway must
    authenticate, and nobody else on those networks may reach this port."""
    tenant_from_certificate: Annotated[bool, Parameter(negative="")] = False
    """The tenant is the first URI, else the first DNS name, of the client's certificate. Requires --tls-client-ca."""
    tenants: Path | None = None
    """TOML file with limits of tenants: requests, tokens, priority, media. It is read again when it changes. Default:
    only the server's own limits apply."""


class Settings(BaseModel):
    """All settings of the server."""

    model_config = _FROZEN

    engine: Annotated[EngineSettings, Parameter(name="*", group=Group("Model", sort_key=1))] = EngineSettings()
    media: Annotated[MediaSettings, Parameter(name="*", group=Group("Media", sort_key=2))] = MediaSettings()
    listen: Annotated[ListenSettings, Parameter(name="*", group=Group("Server", sort_key=3))] = ListenSettings()
    access: Annotated[AccessSettings, Parameter(name="*", group=Group("Access", sort_key=4))] = AccessSettings()


_DEFAULT_LIMITS = {MediaKind.IMAGE: 16, MediaKind.VIDEO: 4, MediaKind.AUDIO: 4}


def _limits(text: str) -> dict[MediaKind, int]:
    """Parses limits such as "image=2,video=1" or, as JSON, {"image": 2, "video": 1}. Raises ValueError."""
    limits: dict[MediaKind, int] = {}
    for kind, count in _json_limits(text) if text.lstrip().startswith("{") else _written_limits(text):
        if kind not in _DEFAULT_LIMITS or kind in limits or count is None:
            raise ValueError("expected image=N, video=N, audio=N, or several of these with commas or as JSON")
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
        yield kind, count if isinstance(count, int) and not isinstance(count, bool) and count >= 0 else None

"""The server's settings, from which flags, environment variables (GLIMPSE_…) and the help text are made.

Parsed values: sizes in bytes, limits as numbers. Nothing here opens a file or a socket.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Group, Parameter
from pydantic import BaseModel, ByteSize, ConfigDict, DirectoryPath, Field, IPvAnyNetwork, field_validator

from glimpse.engine.config import Backend, Device, DType, EngineConfig, Quantization, Speculative
from glimpse.media.kind import MediaKind
from glimpse.media.sources.policy import WEB_PORTS, host_name

_FROZEN = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

ToolCallParser = Literal["auto", "hermes", "llama", "mistral", "json"]
Port = Annotated[int, Field(ge=0, le=65535)]
Positive = Annotated[int, Field(ge=1)]
Byte = Annotated[int, Field(ge=0, le=255)]
Size = Annotated[ByteSize, Parameter(show_default=ByteSize.human_readable)]
Names = Annotated[tuple[str, ...], Parameter(negative="")]


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
    device: Device = "auto"
    """Where the model computes; auto: CUDA where there is a device."""
    dtype: DType = "auto"
    """Type of weights and activations; auto: the checkpoint's own, or what the CPU is quick at."""
    backend: Backend = "auto"
    """What computes; auto: the kernels that Glimpse compiles where they run (bfloat16 on a CPU), else torch."""
    quantization: Quantization = "none"
    """Of the decoder's weights, made at load. int8: half the memory, and decoding in about 0.6 of the time on a CPU.
    fp8: half the memory, for GPUs with FP8 arithmetic; elsewhere torch computes it, slowly. int4: a quarter of the
    memory, for GPUs; the CPU's own kernels unpack it to bfloat16. Checkpoints in AWQ, GPTQ or FP8 need no flag."""
    max_model_len: Positive | None = None
    """Context window in tokens, prompt and answer together. Default: the checkpoint's."""
    block_size: Positive = 32
    """Tokens in a block of the KV cache."""
    kv_cache_size: ByteSize | None = None
    """Memory for keys and values, such as 512MiB or 8GiB. Default: 1 GiB on a CPU; on a GPU what is left."""
    gpu_memory_utilization: Annotated[float, Field(gt=0, le=1)] = 0.9
    """Share of a GPU's memory to be used, weights and all, where --kv-cache-size is not given."""
    encoder_cache_size: Size = ByteSize(256 << 20)
    """Memory for encoded pictures."""
    max_batch_tokens: Positive = 2048
    """Most tokens computed in one step; longer prompts are computed in chunks."""
    max_decode_slowdown: Annotated[float, Field(ge=1)] = 2.35
    """How much slower running answers may become, as a factor, while prompts come in."""
    max_sequences: Positive = 256
    """Most answers computed at the same time."""
    max_waiting: Positive = 4096
    """Most requests waiting; one more is refused (429)."""
    prefix_caching: bool = True
    """Keep computed prompts for requests that begin alike."""
    cuda_graphs: bool = True
    """Record decode steps on a GPU and replay them; without, each of their operations is launched by itself."""
    speculative: Speculative = "off"
    """ngram: guess what comes next from what followed the same tokens before. Answers are the same, often sooner."""
    tensor_parallel_size: Positive = 1
    """GPUs that share each step, where one has too little memory or is too slow; see docs/gpu.md."""

    engine_timeout: Annotated[float, Field(gt=0)] = 600
    """Seconds without a sign from the engine, while requests wait, after which it is taken for hung and replaced."""

    def engine_config(self, checkpoint: Path) -> EngineConfig:
        """What the engine is told."""
        return EngineConfig(
            model_path=str(checkpoint),
            device=self.device,
            dtype=self.dtype,
            backend=self.backend,
            quantization=self.quantization,
            max_model_len=self.max_model_len,
            block_size=self.block_size,
            kv_cache_bytes=None if self.kv_cache_size is None else int(self.kv_cache_size),
            gpu_memory_utilization=self.gpu_memory_utilization,
            encoder_cache_bytes=int(self.encoder_cache_size),
            max_batch_tokens=self.max_batch_tokens,
            max_decode_slowdown=self.max_decode_slowdown,
            max_sequences=self.max_sequences,
            max_waiting=self.max_waiting,
            prefix_caching=self.prefix_caching,
            cuda_graphs=self.cuda_graphs,
            speculative=self.speculative,
            tensor_parallel_size=self.tensor_parallel_size,
        )


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
    allowed_media_networks: Annotated[tuple[IPvAnyNetwork, ...], Parameter(negative="")] = ()
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
    media_cache_size: Size = ByteSize(512 << 20)
    """Memory for the files and pixels of media that may be asked about again; 0 keeps none."""
    media_in_flight_size: Size = ByteSize(2 << 30)
    """Memory for the media of requests that are being served; one that would need more is refused (429)."""
    upload_cache_size: Size = ByteSize(512 << 20)
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
            raise ValueError("expected image=N, video=N, audio=N or several with commas; there are no other kinds")
        limits[MediaKind(kind)] = int(count)
    return limits

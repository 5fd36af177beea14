"""The server's settings. Flags, environment variables (GLIMPSE_…) and help texts are made from them.

The docstring under a field is its help text. Nothing here opens a file or a socket.
"""

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from ipaddress import IPv4Network, IPv6Network
from pathlib import Path
from typing import Annotated, Any, Literal, cast

from cyclopts import Group, Parameter
from pydantic import (
    BaseModel,
    ByteSize,
    Field,
    IPvAnyNetwork,
    field_validator,
)

from glimpse.engine.protocol.config import EngineConfig, EngineOptions
from glimpse.engine.protocol.option_values import read_units
from glimpse.identity.authentication import NO_AUTHENTICATION, AuthenticationOptions
from glimpse.identity.tls import PLAIN_TEXT, ListenerTls
from glimpse.server.media_settings import MediaSettings
from glimpse.server.setting_types import FROZEN, Folder, Lifetime, NamedPath, Names, Port, Size

ToolCallParser = Literal[
    "auto", "hermes", "llama", "mistral", "mistral_args", "phi4_mini", "gemma4", "glm45", "lfm2", "qwen3_coder", "json"
]
ReasoningParser = Literal["auto", "deepseek_r1", "gemma4", "glm45", "qwen3", "none"]
MetricsNames = Literal["glimpse", "vllm", "both"]

_MAX_GRPC_SECONDS = 2_000_000
"""23 days. gRPC counts milliseconds in 32 bits."""


def _show_default(value: object) -> Any:
    """Shows sizes with their unit: of the defaults, exactly the sizes are a million or more. None shows nothing."""
    if value is None:
        return None
    return ByteSize(value).human_readable() if isinstance(value, int) and value >= 1 << 20 else str(value)


def _check_differ(names: Sequence[str]) -> None:
    if twice := [name for name in names if names.count(name) > 1]:
        raise ValueError(f"expected different names, got {twice[0]!r} twice")


class ListenSettings(BaseModel):
    """Addresses to listen on, how to stop, and what to log."""

    model_config = FROZEN

    host: str = "127.0.0.1"
    """Address to listen on. Without --api-keys let other machines in only through a proxy that authenticates."""
    port: Port = 50051
    """Port for gRPC; 0 takes a free one."""
    front_ends: Annotated[int, Field(ge=1, le=64)] = 1
    """Processes that serve gRPC on this port and share the engine; one is enough for some 10,000 tokens/s.
    More than one: only on Linux, and with --media-store, where they share uploads, quotas and purges."""
    tls: Annotated[ListenerTls, Parameter(name="*")] = PLAIN_TEXT
    """TLS of the gRPC port."""
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
    body_in_flight_bytes: Annotated[Size, Field(ge=1)] = ByteSize(512 << 20)
    """Memory for request bodies until their media are loaded, half of it for one client. More is refused (429)."""
    drain_delay: Annotated[float, Field(ge=0, le=_MAX_GRPC_SECONDS)] = 3.0
    """Seconds between reporting NOT_SERVING and closing the port on SIGTERM, so that proxies notice. None on Ctrl-C."""
    drain_timeout: Annotated[float, Field(ge=0, le=_MAX_GRPC_SECONDS)] = 60.0
    """Seconds that running requests get to end when the server stops; then they end with UNAVAILABLE."""
    keepalive_time: Annotated[float, Field(ge=1, le=_MAX_GRPC_SECONDS)] = 20.0
    """Seconds after which a silent gRPC connection is pinged; after as many more without a reply its requests end.
    Silent streams of REST get a comment or a ping event as often."""
    max_connection_age: Annotated[float, Field(ge=1, le=_MAX_GRPC_SECONDS)] | None = None
    """Seconds after which a gRPC client is told to connect anew, so that load spreads. Open calls end first. Default:
    never."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Least severe level that is logged."""

    @field_validator("front_ends")
    @classmethod
    def _check_front_ends(cls, number: int) -> int:
        if number > 1 and sys.platform != "linux":  # elsewhere the kernel does not spread connections over a port
            raise ValueError(f"expected 1 on this system, got {number}; several front ends need Linux")
        return number


class NameSettings(BaseModel):
    """The model to serve, and its names."""

    model_config = FROZEN

    model: str | None = None
    """Folder of a checkpoint, a GGUF file, or an id on the Hugging Face Hub; ORG/NAME:Q4_K_M for its GGUF file of this
    type. Default: the small model that comes with Glimpse."""
    served_model_name: Names = ()
    """Name that requests give as `model`; repeatable. Default: the name of the folder or file, or the id on the
    hub."""

    @field_validator("served_model_name")
    @classmethod
    def _check_names(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        if not all(names):
            raise ValueError("expected a name, got ''")
        _check_differ(names)
        return names

    @field_validator("model")
    @classmethod
    def _check_model(cls, model: str | None) -> str | None:
        if model is not None and "/" not in model and not (model and Path(model).expanduser().exists()):
            raise ValueError("expected a folder or a GGUF file that exists, or an id of the hub: ORG/NAME")
        return model


class ModelSettings(BaseModel):
    """What decides whether a model can be served."""

    model_config = FROZEN

    mmproj: NamedPath | None = None
    """GGUF file with the encoder of a GGUF file's model. Default: the one named mmproj beside it that belongs to it."""
    companion: Names = ()
    """ID=FOLDER, where the checkpoint named ID in the model's config.json is a folder here; repeatable. Ultravox names
    its decoder and its encoder so. Default: ID is a folder, or a model on the Hugging Face Hub."""
    lora_modules: Names = ()
    """NAME=FOLDER, a LoRA adapter as PEFT saves it, and the name that requests give as `model` for it; repeatable."""
    allowed_lora_path: Folder | None = None
    """Folder below which administrators may load further LoRA adapters while the server runs. Default: nowhere."""
    chat_template: NamedPath | None = None
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
    def _read_units(cls, options: object) -> object:
        return read_units(cast("dict[str, object]", options)) if isinstance(options, dict) else options

    @field_validator("companion")
    @classmethod
    def _check_companions(cls, companions: tuple[str, ...]) -> tuple[str, ...]:
        for companion in companions:
            if not all(companion.partition("=")):
                raise ValueError(f"expected ID=FOLDER, got {companion!r}")
        _check_differ([companion.partition("=")[0] for companion in companions])
        return companions

    @field_validator("lora_modules")
    @classmethod
    def _check_adapters(cls, adapters: tuple[str, ...]) -> tuple[str, ...]:
        for adapter in adapters:
            if not all(adapter.partition("=")) or adapter.startswith("{"):
                raise ValueError(f"expected NAME=FOLDER, got {adapter!r}")
        _check_differ([adapter.partition("=")[0] for adapter in adapters])
        return adapters

    @property
    def adapters(self) -> Mapping[str, str]:
        """Returns the folder of each LoRA adapter, by its name."""
        pairs = (adapter.split("=", 1) for adapter in self.lora_modules)
        return {name: str(Path(folder).expanduser().resolve()) for name, folder in pairs}

    @property
    def lora_folder(self) -> str:
        """Returns the absolute path of `allowed_lora_path`; empty without one."""
        return os.path.abspath(self.allowed_lora_path) if self.allowed_lora_path else ""  # noqa: PTH100 - keeps links

    @property
    def companions(self) -> Mapping[str, str]:
        """Returns the folder of each companion that has one, by its name in `config.json`."""
        return dict(companion.split("=", 1) for companion in self.companion)

    def engine_config(self, checkpoint: Path, folders: Mapping[str, str] | None = None) -> EngineConfig:
        """Returns the configuration of an engine that serves the checkpoint in this folder, with the folders of its
        companions as `resolve_companions` returns them."""
        return EngineConfig(
            model_path=str(checkpoint),
            companions=folders or {},
            lora_modules=self.adapters,
            allowed_lora_path=self.lora_folder,
            **asdict(self.options),
        )


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


class AccessSettings(BaseModel):
    """Who may call, and what they may do."""

    model_config = FROZEN

    api_keys: NamedPath | None = None
    """File with the hashes of API keys and their tenants; `glimpse key` makes its lines. It is read again when it
    changes. Requests then need a key, except for health. Default: everyone may call."""
    authentication: Annotated[AuthenticationOptions, Parameter(name="*")] = NO_AUTHENTICATION
    """Tokens and certificates that are credentials too."""
    tenant_header: Annotated[bool, Parameter(negative="")] = False
    """Believe the tenant that a gateway sends as x-glimpse-tenant, if it is one of --trusted-proxies. The gateway must
    authenticate, and nobody else on those networks may reach this port."""
    tenants: NamedPath | None = None
    """TOML file with limits of tenants: requests, tokens, priority, media. It is read again when it changes. Default:
    only the server's own limits apply."""


class BatchSettings(BaseModel):
    """Files of requests that are answered when nothing more urgent is to be done."""

    model_config = FROZEN

    batch_store_bytes: Size = ByteSize(1 << 30)
    """Disk, or memory, for the requests and answers of batches. 0 refuses batches."""
    batch_ttl: Lifetime = 7 * 86400.0
    """Seconds for which a batch and its answers are kept after its end."""
    batch_requests: Annotated[int, Field(ge=1, le=1_000_000)] = 50_000
    """Most requests of a batch."""
    batch_at_once: Annotated[int, Field(ge=1, le=1024)] = 16
    """Requests of one tenant's batches in progress; as many again for all other tenants."""


class Settings(BaseModel):
    """All settings of the server."""

    model_config = FROZEN

    engine: Annotated[EngineSettings, Parameter(name="*", group=Group("Model", sort_key=1))] = EngineSettings()
    media: Annotated[MediaSettings, Parameter(name="*", group=Group("Media", sort_key=2))] = MediaSettings()
    listen: Annotated[ListenSettings, Parameter(name="*", group=Group("Server", sort_key=3))] = ListenSettings()
    access: Annotated[AccessSettings, Parameter(name="*", group=Group("Access", sort_key=4))] = AccessSettings()
    batches: Annotated[BatchSettings, Parameter(name="*", group=Group("Batches", sort_key=5))] = BatchSettings()

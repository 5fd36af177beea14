"""Where the servers under attack listen."""

from dataclasses import dataclass

HOST = "127.0.0.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A gateway and the server behind it."""

    http_port: int
    """Envoy's."""
    grpc_port: int
    metrics_port: int
    media_port: int = 0
    """From which the server may fetch media, if an attack listens there."""
    adapters: str = ""
    """Folder below which the server loads LoRA adapters."""

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.http_port}"

    @property
    def grpc_target(self) -> str:
        """The server's own port."""
        return f"{HOST}:{self.grpc_port}"

    @property
    def envoy_target(self) -> str:
        """Envoy's port, which speaks gRPC too."""
        return f"{HOST}:{self.http_port}"

    @property
    def metrics_url(self) -> str:
        return f"http://{HOST}:{self.metrics_port}/metrics"

"""What is told of the engine and of the stores: metrics, load reports, admission and health."""

from dataclasses import dataclass

from prometheus_client.registry import Collector

from glimpse.engine.client.supervisor import EngineState
from glimpse.engine.protocol.messages import Ready, StepStats
from glimpse.server.call.admission import Admission
from glimpse.server.lifecycle.addresses import PortError
from glimpse.server.rpc.load_meter import LoadMeter
from glimpse.server.services.health import Health
from glimpse.server.settings import ListenSettings
from glimpse.server.telemetry.metrics import Metrics
from glimpse.server.telemetry.metrics_server import MetricsServer
from glimpse.server.telemetry.vllm_names import named_registry


@dataclass(frozen=True, slots=True, kw_only=True)
class Observers:
    """Observers of one front end."""

    metrics: Metrics
    load: LoadMeter
    admission: Admission
    health: Health

    def engine_changed(self, state: EngineState, ready: Ready | None) -> None:
        """The engine has a new state; `ready` is its last Ready message."""
        self.metrics.engine_changed(state, ready)
        if state is not EngineState.STALLED:  # its load is what it was
            self.load.engine_changed(num_blocks=0 if ready is None else ready.num_blocks)
        self.health.set(state is EngineState.READY)

    def engine_stepped(self, stats: StepStats) -> None:
        self.metrics.engine_stepped(stats)
        self.load.engine_stepped(stats)
        self.admission.engine_stepped(stats)


def serve_metrics(metrics: Metrics, listen: ListenSettings, *, merged: Collector | None = None) -> MetricsServer:
    """Starts the Prometheus endpoint. Raises PortError.

    Args:
        listen: Says where and under which names.
        merged: The families of `metrics` summed over all processes. Default: this process is the only one.
    """
    own = merged or metrics.registry
    registry = named_registry(own, listen.metrics_names, model_name=metrics.model_name, ready=lambda: metrics.ready)
    try:
        return MetricsServer(registry, listen.metrics_host, listen.metrics_port)
    except OSError as error:
        raise PortError(listen.metrics_host, listen.metrics_port, "--metrics-port") from error

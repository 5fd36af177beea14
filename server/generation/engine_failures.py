"""What the engine's state and its last events mean for requests."""

from glimpse.engine.client.engine import Engine
from glimpse.engine.client.supervisor import EngineState
from glimpse.engine.errors import EngineError, EngineErrorCode
from glimpse.engine.protocol.messages import FinishReason, Ready, TokenEvent
from glimpse.server.errors import ServerStoppingError

_UNAVAILABLE_MESSAGES = {
    EngineState.RESTARTING: "The engine is being restarted.",
    EngineState.FAILED: "The engine has failed and is not running.",
    EngineState.STOPPED: "The server is stopping.",
}


def check_ready(engine: Engine) -> Ready:
    """Returns what the engine reported when it became ready. Raises EngineError (LOADING, UNAVAILABLE) if it is not."""
    if engine.state is EngineState.LOADING:
        stage = f": {engine.loading.stage}" if engine.loading is not None else ""
        message = f"The model is still loading{stage}."
        raise EngineError(EngineErrorCode.LOADING, message, retry_after_seconds=engine.retry_after_seconds)
    if not engine.state.takes_requests or engine.ready is None:
        message = _UNAVAILABLE_MESSAGES.get(engine.state, "The engine is starting.")
        raise EngineError(EngineErrorCode.UNAVAILABLE, message, retry_after_seconds=engine.retry_after_seconds)
    return engine.ready


def check_end(engine: Engine, event: TokenEvent) -> None:
    """Raises EngineError for a last event that reports a failure, ServerStoppingError if the engine was stopped."""
    match event.finish:
        case FinishReason.ERROR:
            code = event.error or EngineErrorCode.INTERNAL
            is_gone = code in (EngineErrorCode.UNAVAILABLE, EngineErrorCode.DIED)
            retry_after_seconds = engine.retry_after_seconds if is_gone else event.retry_after_seconds
            raise EngineError(code, event.message, retry_after_seconds=retry_after_seconds)
        case FinishReason.CANCELLED:
            # Not cancelled by us: events of requests that we cancel are not awaited.
            raise ServerStoppingError
        case _:
            return

"""Configures logging: to standard error, readable on a terminal and as JSON elsewhere.

Lines of the standard library's loggers, such as the engine client's, have the same format. A terminal shows RPCs that
failed, and others at level debug only: their lines would push away the commands that are printed there.
"""

import logging
import sys

import structlog

from glimpse.log_writer import LogWriter

_GRPC_LOGGER = "grpc._cython.cygrpc"
"""Logs the values of headers that are not UTF-8, which may be secret."""

_QUIET_LOGGERS = ("httpx", "httpx2")
"""Log each request of a download from the Hugging Face Hub, at level info."""

_ACCESS_LOGGER = "access"


def configure_logging(level: str) -> None:
    """Configures logging for this process. `level` is the least severe level that is written."""
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    structlog.configure(
        processors=[structlog.stdlib.filter_by_level, *shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=True,
    )
    handler = LogWriter()
    handler.setFormatter(structlog.stdlib.ProcessorFormatter(foreign_pre_chain=shared, processors=_renderers()))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    for name in _QUIET_LOGGERS:
        logging.getLogger(name).setLevel(logging.WARNING)
    logging.getLogger(_GRPC_LOGGER).addFilter(_has_no_header_value)
    if sys.stderr.isatty() and level != "debug":
        logging.getLogger(_ACCESS_LOGGER).addFilter(_has_failed)


def _has_no_header_value(record: logging.LogRecord) -> bool:
    return not str(record.msg).startswith("Invalid encoding on")


def _has_failed(record: logging.LogRecord) -> bool:
    return not isinstance(record.msg, dict) or record.msg.get("code") != "OK"


def _renderers() -> list[structlog.typing.Processor]:
    remove_meta = structlog.stdlib.ProcessorFormatter.remove_processors_meta
    if sys.stderr.isatty():
        return [remove_meta, structlog.dev.ConsoleRenderer()]
    return [remove_meta, structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]

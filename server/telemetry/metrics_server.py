"""Serves metrics to Prometheus."""

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, make_wsgi_app, start_http_server

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

_LOCAL_HOSTS = ("localhost", "127.0.0.1", "[::1]")


class MetricsServer:
    """Serves metrics to Prometheus over HTTP, in a thread of its own."""

    def __init__(self, registry: CollectorRegistry, host: str, port: int) -> None:
        """Raises OSError if the port cannot be listened on. Port 0 picks a free one."""
        self._server, self._thread = start_http_server(port, host, registry)
        if host in ("localhost", "::1") or host.startswith("127."):
            # The web page of a host name that resolves to this machine could read the metrics.
            self._server.set_app(_only_hosts({*_LOCAL_HOSTS, host}, make_wsgi_app(registry)))
        self.port = self._server.server_port

    def close(self) -> None:
        """Blocks until the thread has ended. Idempotent."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _only_hosts(names: Iterable[str], app: "WSGIApplication") -> "WSGIApplication":
    """Returns the application, which answers requests to other hosts with 403."""

    def checked(environ: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
        host = re.sub(r":\d*$", "", environ.get("HTTP_HOST", "localhost")).lower()
        if host in names:
            return app(environ, start_response)
        start_response("403 Forbidden", [("Content-Type", "text/plain")])
        return [b"'Host': expected a name of this machine\n"]

    return checked

"""Environment variables of flags: which are read, and which are refused."""

import os
import sys
from typing import Annotated

import pytest
from cyclopts import App, CycloptsError, Parameter

from glimpse.engine.worker.native import compile_kernels, library, tuning
from glimpse.gateway import cli as gateway
from glimpse.media.native import compile_resampler
from glimpse.server.cli import app as cli
from glimpse.usage import UsageError
from glimpse.variables import Variables, tell_unknown, variables_of

app = App(config=Variables("GLIMPSE_", command=False))


@app.default
def flags(
    *,
    api_keys: str = "",
    metrics_port: int = 1,
    page: bool = True,
    prefix_caching: bool = True,
    system: Annotated[str, Parameter(show_env_var=False)] = "",
) -> tuple[str, int, bool, bool, str]:
    return api_keys, metrics_port, page, prefix_caching, system


def call(*arguments: str) -> object:
    return app(arguments, exit_on_error=False, print_error=False, result_action="return_value")


def test_a_flag_precedes_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLIMPSE_METRICS_PORT", "2")
    monkeypatch.setenv("GLIMPSE_PAGE", "false")
    assert call() == ("", 2, False, True, "")
    assert call("--metrics-port=3", "--page") == ("", 3, True, True, "")


@pytest.mark.parametrize("name", ["GLIMPSE_API_KEY", "GLIMPSE_METRICS_HOST", "GLIMPSE_SERVICE_HOST", "GLIMPSE_SYSTEM"])
def test_variables_of_other_commands_and_programs_are_theirs(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "other")
    assert call() == ("", 1, True, True, "")


def test_links_to_services_of_kubernetes_are_no_ports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLIMPSE_METRICS_PORT", "tcp://10.0.0.1:9090")
    monkeypatch.setenv("GLIMPSE_METRICS_PORT_9090_TCP", "tcp://10.0.0.1:9090")
    monkeypatch.setenv("GLIMPSE_METRIC_PORT", "tcp://10.0.0.1:9090")  # of a service that is named glimpse-metric
    assert call() == ("", 1, True, True, "")
    assert call("--metrics-port=3") == ("", 3, True, True, "")


@pytest.mark.parametrize(
    ("sent", "meant"),
    [("GLIMPSE_APIKEYS", "GLIMPSE_API_KEYS"), ("GLIMPSE_PREFIX_CACHIGN", "GLIMPSE_PREFIX_CACHING")],
)
def test_a_misspelled_variable_is_refused(monkeypatch: pytest.MonkeyPatch, sent: str, meant: str) -> None:
    monkeypatch.setenv(sent, "1")
    with pytest.raises(UsageError, match=f"^'{sent}': unknown environment variable; did you mean '{meant}'"):
        call()


@pytest.mark.parametrize("name", ["PAGE", "PREFIX_CACHING"])
def test_the_variable_of_a_negated_flag_is_refused_which_meant_the_opposite(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(f"GLIMPSE_NO_{name}", "1")
    with pytest.raises(UsageError, match=f"^'GLIMPSE_NO_{name}': expected GLIMPSE_{name}, which is true or false"):
        call()


def test_servers_refuse_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLIMPSE_NO_PREFIX_CACHING", "1")
    with pytest.raises(UsageError, match="GLIMPSE_NO_PREFIX_CACHING"):
        cli.app.parse_args(["serve"], exit_on_error=False, print_error=False)


def test_no_command_refuses_the_variables_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    variables = dict(variables_of(cli.app, "GLIMPSE_"))
    # `glimpse key` alone reads GLIMPSE_TENANT. A server that ignored it in place of GLIMPSE_TENANTS would let all in.
    for name in set[str]().union(*variables.values()) - {"GLIMPSE_TENANT"}:
        monkeypatch.setenv(name, "other")
    for command, own in variables.items():
        with pytest.MonkeyPatch.context() as patch:
            for name in own:
                patch.delenv(name, raising=False)
            try:
                cli.app.parse_args(command.split(), exit_on_error=False, print_error=False)
            except UsageError as error:
                pytest.fail(f"glimpse {command}: {error}")
            except CycloptsError:
                pass  # an argument is missing


WITHOUT_FLAG = [
    compile_kernels.KERNELS.variable,
    compile_resampler.KERNELS.variable,
    library.LEVEL_VARIABLE,
    tuning.VARIABLE,
]
KUBERNETES = {
    "GLIMPSE_SERVICE_HOST": "10.0.0.1",
    "GLIMPSE_WEB_SERVICE_PORT": "8080",
    "GLIMPSE_WEB_SERVICE_PORT_HTTP": "8080",
    "GLIMPSE_PORT": "tcp://10.0.0.1:8080",
    "GLIMPSE_WEB_PORT_8080_TCP": "tcp://10.0.0.1:8080",
    "GLIMPSE_PORT_8080_TCP_PROTO": "tcp",
    "GLIMPSE_PORT_8080_TCP_PORT": "8080",
    "GLIMPSE_PORT_8080_TCP_ADDR": "10.0.0.1",
}


@pytest.mark.parametrize("others", [{}, KUBERNETES], ids=["alone", "beside services of Kubernetes"])
def test_variables_that_no_command_reads_are_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, others: dict[str, str]
) -> None:
    for name in [name for name in os.environ if name.startswith("GLIMPSE_")]:
        monkeypatch.delenv(name)
    variables = dict(variables_of(cli.app, "GLIMPSE_"))
    for name in [*set[str]().union(*variables.values()), *WITHOUT_FLAG, "GLIMPSE_GATEWAY_LISTEN"]:
        monkeypatch.setenv(name, "1")
    for name, value in others.items():
        monkeypatch.setenv(name, value)
    tell_unknown(cli.app, "GLIMPSE_")
    assert not caplog.messages
    monkeypatch.setenv("GLIMPSE_WORKERS", "secret")
    monkeypatch.setenv("GLIMPSE_SEQS", "4")
    tell_unknown(cli.app, "GLIMPSE_")
    assert caplog.messages == [
        "environment variables without effect, which no command reads: GLIMPSE_SEQS, GLIMPSE_WORKERS"
    ]


def test_variables_of_the_gateway_that_it_does_not_read_are_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("LISTEN", "SEQS", "SERVICE_HOST"):
        monkeypatch.setenv(f"GLIMPSE_GATEWAY_{name}", "1")
    tell_unknown(gateway.app, "GLIMPSE_GATEWAY_")
    assert caplog.messages == ["environment variables without effect, which no command reads: GLIMPSE_GATEWAY_SEQS"]


def test_variables_that_glimpse_up_overrides_are_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("LISTEN", "ACCESS_LOG", "WORKERS"):
        monkeypatch.setenv(f"GLIMPSE_GATEWAY_{name}", "1")
    monkeypatch.setattr(gateway, "Envoy", lambda *_args, **_options: sys.exit())
    with pytest.raises(SystemExit):
        gateway.app(["run", "--public={}", "--listen=127.0.0.1:0"], exit_on_error=False)
    assert caplog.messages == [
        "environment variables without effect, since `glimpse up` has flags of its own (`--help-all`): "
        "GLIMPSE_GATEWAY_ACCESS_LOG, GLIMPSE_GATEWAY_LISTEN"
    ]

"""What a start says that cannot listen."""

import pytest

from glimpse.server.lifecycle.addresses import PortError


@pytest.mark.parametrize(
    ("host", "flag", "host_flag"),
    [
        ("nothing.invalid", "--port", "--host"),
        ("192.0.2.1", "--http-port", "--host"),
        ("x" * 64 + ".invalid", "--metrics-port", "--metrics-host"),
    ],
)
def test_an_address_of_no_interface_is_told_apart_from_a_taken_port(host: str, flag: str, host_flag: str) -> None:
    message = str(PortError(host, 8080, flag))
    assert "expected an address of this machine, or its name, got" in message
    assert message.endswith(f"choose another with {host_flag}")


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0", "localhost"])
def test_a_taken_port_is_told(host: str) -> None:
    message = str(PortError(host, 8080, "--metrics-port"))
    assert message.endswith("the port is taken or not permitted; choose another with --metrics-port")

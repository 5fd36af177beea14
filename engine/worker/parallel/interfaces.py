"""Names of network interfaces, by which NCCL is told where to bind its sockets."""

import fcntl
import ipaddress
import socket
import struct
from pathlib import Path

_SIOCGIFADDR = 0x8915
_IPV6_ADDRESSES = Path("/proc/net/if_inet6")


def interface_of(address: str) -> str | None:
    """Returns the interface of this machine that has an IP address; None if none is found. Linux only."""
    wanted = ipaddress.ip_address(address)
    if wanted.is_loopback:
        return "lo"
    if wanted.version == 6:
        lines = _IPV6_ADDRESSES.read_text().splitlines() if _IPV6_ADDRESSES.exists() else []
        return next((line.split()[-1] for line in lines if bytes.fromhex(line.split()[0]) == wanted.packed), None)
    return next((name for _, name in socket.if_nameindex() if _ipv4_address(name) == wanted.packed), None)


def _ipv4_address(interface: str) -> bytes | None:
    """Returns the interface's first IPv4 address, as `ioctl` writes it into a `struct ifreq` (netdevice(7))."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        try:
            answer = fcntl.ioctl(any_socket, _SIOCGIFADDR, struct.pack("256s", interface.encode()[:15]))
        except OSError:
            return None
    return answer[20:24]

"""What this machine's network says of a place to meet: names, addresses, interfaces, ports and who holds them.

Knows sockets. Does not know what is said over them (wire).
"""

from __future__ import annotations

import errno
import queue
import socket
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import ip_address

# A resolver asks each dead name server several times; nobody wants to wait that long for a mistyped name.
_RESOLVE_S = 10.0


class NotResolved(Exception):
    """A name of a host that nobody knows, or that no name server answers for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PortTaken:
    """Why a port cannot be had: the system's words, and the process that holds it where that may be read."""

    reason: str
    owner: str


def addresses_of(host: str, *, timeout_s: float = _RESOLVE_S) -> tuple[str, ...]:
    """The addresses of a host, the preferred one first; NotResolved with the reason where there is none in time."""
    answers: queue.Queue[tuple[str, ...] | NotResolved] = queue.Queue()

    def ask() -> None:
        try:
            found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as trouble:
            answers.put(NotResolved((getattr(trouble, "strerror", None) or str(trouble)).lower()))
        else:
            answers.put(tuple(dict.fromkeys(str(entry[4][0]) for entry in found)))

    threading.Thread(target=ask, daemon=True).start()
    try:
        answer = answers.get(timeout=timeout_s)
    except queue.Empty:
        raise NotResolved(f"no name server has answered for {timeout_s:.0f} s") from None
    if isinstance(answer, NotResolved):
        raise answer
    return answer


def is_here(address: str) -> bool:
    """Whether an address belongs to this machine."""
    with socket.socket(_family(address), socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
    return True


def is_of_nobody(address: str) -> bool:
    """Whether an address is none that a machine could have: that of all, of any, or of a group."""
    value = ip_address(address.partition("%")[0])
    return value.is_unspecified or value.is_multicast or address == "255.255.255.255"


def source_of(address: str, port: int) -> str | None:
    """The address of this machine from which packets leave for another; None without a way. Nothing is sent."""
    with socket.socket(_family(address), socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((address, port))
        except OSError:
            return None
        return str(probe.getsockname()[0])


def interface_of(address: str) -> str | None:
    """The interface that has an address of this machine."""
    import psutil

    wanted = address.removeprefix("::ffff:").partition("%")[0]
    for name, entries in psutil.net_if_addrs().items():
        if any(entry.address.partition("%")[0] == wanted for entry in entries):
            return str(name)
    return "lo" if wanted.startswith("127.") else None


def interface_to(addresses: Sequence[str], port: int) -> str | None:
    """The interface that leads to the first of some addresses that any does; that of this machine's own addresses."""
    for address in addresses:
        source = source_of(address, port)
        if source is not None:
            return interface_of(source)
    return None


def listen(port: int) -> socket.socket | PortTaken:
    """A socket that listens at a port of all of this machine's addresses, as torchrun's will, or why there is none."""
    listener = _listener()
    try:
        # Connections of a run that has just ended keep the port for a minute; they are no reason to wait.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("", port))
        listener.listen(128)
    except OSError as trouble:
        listener.close()
        reason = (
            "is taken" if trouble.errno == errno.EADDRINUSE else f"cannot be had: {(trouble.strerror or '').lower()}"
        )
        return PortTaken(reason=reason, owner=owner_of(port))
    return listener


def _listener() -> socket.socket:
    """A socket for both families where the system has IPv6."""
    try:
        listener = socket.socket(socket.AF_INET6, socket.SOCK_STREAM)
    except OSError:
        return socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    except OSError:
        listener.close()
        return socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    return listener


def owner_of(port: int) -> str:
    """`process 4711 (python3)` that has a TCP port of this machine; empty where that may not be read."""
    import psutil

    try:
        held = [link for link in psutil.net_connections("tcp") if link.laddr and link.laddr.port == port]
    except (psutil.AccessDenied, OSError):
        return ""
    held.sort(key=lambda link: link.status != psutil.CONN_LISTEN)
    for link in held:
        if link.pid is None:
            continue
        try:
            return f"process {link.pid} ({psutil.Process(link.pid).name()})"
        except psutil.NoSuchProcess:
            continue
        except psutil.AccessDenied:
            return f"process {link.pid}"
    return ""


def _family(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET

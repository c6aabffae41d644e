"""Names, addresses and ports of this machine, by its real sockets."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator

import psutil
import pytest

from titancli.launch import network


@pytest.fixture
def taken() -> Iterator[int]:
    """A port of one address that somebody listens at."""
    with socket.create_server(("127.0.0.1", 0)) as holder:
        yield holder.getsockname()[1]


def test_name_that_nobody_knows_is_not_resolved() -> None:
    with pytest.raises(network.NotResolved):
        network.addresses_of("no-such-host.invalid")


def test_c44_name_servers_that_never_answer_are_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    silent = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [silent.wait()][1:])
    with pytest.raises(network.NotResolved, match="no name server has answered for 0 s"):
        network.addresses_of("node0", timeout_s=0.05)
    silent.set()


def test_addresses_resolve_to_themselves() -> None:
    assert network.addresses_of("127.0.0.1") == ("127.0.0.1",)
    assert network.addresses_of("::1") == ("::1",)


def test_own_addresses_are_told_from_others() -> None:
    assert network.is_here("127.0.0.1")
    assert network.is_here("127.0.1.1")
    assert not network.is_here("192.0.2.1")


def test_interface_is_the_one_with_the_address() -> None:
    (loopback,) = [
        name for name, entries in psutil.net_if_addrs().items() if any(each.address == "127.0.0.1" for each in entries)
    ]
    assert network.interface_to(("127.0.0.1",), 29500) == loopback
    assert network.interface_of("::ffff:127.0.0.1") == loopback
    assert network.interface_of("192.0.2.1") is None


def test_c44_taken_port_is_told_with_its_owner_whichever_address_it_is_on(taken: int) -> None:
    name = psutil.Process().name()
    assert network.listen(taken) == network.PortTaken(reason="is taken", owner=f"process {os.getpid()} ({name})")


def test_port_is_free_again_though_its_connections_linger() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()):
        port = server.getsockname()[1]
        # Who closes first keeps the port in TIME_WAIT.
        server.accept()[0].close()
    listener = network.listen(port)
    assert isinstance(listener, socket.socket)
    listener.close()


def test_port_that_nobody_has_has_no_owner(taken: int) -> None:
    assert network.owner_of(1) == ""
    assert network.owner_of(taken) != ""

"""What can be a place to meet, with real names, addresses and ports of this machine."""

from __future__ import annotations

import os
import socket
from dataclasses import replace

import pytest

from engine.errors import TitanError
from titancli.launch.meeting import Meeting
from titancli.launch.meeting_place import check_place, listener_of


def test_c44_name_that_does_not_resolve_is_told() -> None:
    with pytest.raises(TitanError, match=r"R146.*the host no-such-host.invalid of --rdzv-endpoint does not resolve"):
        check_place(Meeting(nodes=2, rank=1, host="no-such-host.invalid", port=29500))


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "0", "255.255.255.255", "224.0.0.1"])
@pytest.mark.parametrize("rank", [0, 1])
def test_address_that_no_machine_has_is_no_place(host: str, rank: int) -> None:
    with pytest.raises(TitanError, match=r"R144.* is no address that other machines can come to"):
        check_place(Meeting(nodes=2, rank=rank, host=host, port=29500))


def test_only_machine_0_has_to_have_the_address() -> None:
    there = Meeting(nodes=2, rank=0, host="192.0.2.1", port=29500)
    with pytest.raises(TitanError, match=r"R154.*192\.0\.2\.1 is no address of this machine"):
        check_place(there)
    assert check_place(replace(there, rank=1)) == ("192.0.2.1",)


def test_c44_taken_port_is_told_with_its_owner() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(TitanError, match=f"R155.*port {port} of this machine is taken by process {os.getpid()} "):
            listener_of(Meeting(nodes=2, rank=0, host="127.0.0.1", port=port))

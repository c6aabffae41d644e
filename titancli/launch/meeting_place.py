"""The place where the launchers of several machines meet: whether it can be one, and its port on machine 0.

Knows addresses and the port of --rdzv-endpoint as this machine sees them. Does not know who comes (roll_call).
"""

from __future__ import annotations

import socket

from engine.errors import TitanError
from titancli import report
from titancli.launch import network
from titancli.launch.meeting import Meeting


def check_place(meeting: Meeting) -> tuple[str, ...]:
    """The addresses of the place to meet; TitanError where its name has none, or machine 0 has none of them itself."""
    try:
        addresses = network.addresses_of(meeting.host)
    except network.NotResolved as trouble:
        message = f"the host {meeting.host} of --rdzv-endpoint does not resolve: {trouble}"
        fix = "give a name that every node can look up, or node 0's address"
        raise TitanError(report.error("R146", message, fix)) from None
    if all(map(network.is_of_nobody, addresses)):
        message = f"{meeting.host} of --rdzv-endpoint is no address that other machines can come to"
        raise TitanError(report.error("R144", message, "give a name or address of node 0, the same on all of them"))
    if meeting.is_head and not any(network.is_here(address) for address in addresses):
        meant = f" ({', '.join(addresses)})" if addresses != (meeting.host,) else ""
        message = (
            f"{meeting.host}{meant} is no address of this machine ({socket.gethostname()}), "
            "and node 0 is where the others come"
        )
        fix = "give an address of this machine, or --node-rank 0 to the machine that has that one"
        raise TitanError(report.error("R154", message, fix))
    return addresses


def look_at_place(meeting: Meeting, *, starts: bool) -> None:
    """TitanError where the place is none to meet at, before anything that takes long; `starts`: its port is needed."""
    check_place(meeting)
    if starts and meeting.is_head:
        listener_of(meeting).close()


def listener_of(meeting: Meeting) -> socket.socket:
    """Machine 0's listening socket; TitanError naming who has the port."""
    listener = network.listen(meeting.port)
    if isinstance(listener, network.PortTaken):
        by = f" by {listener.owner}" if listener.owner else ""
        message = f"port {meeting.port} of this machine {listener.reason}{by}"
        fix = "end that, or give another free port in --rdzv-endpoint on all nodes"
        raise TitanError(report.error("R155", message, fix))
    return listener

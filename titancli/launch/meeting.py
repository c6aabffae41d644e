"""Several machines that run one launch together, as the command line names them.

Knows the flags --nnodes, --node-rank and --rdzv-endpoint and what is wrong with them by themselves. Does not know
the network (network), the place (meeting_place) nor who comes (roll_call).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from engine.errors import Finding, TitanError
from engine.sources import Loaded
from titancli import report

if TYPE_CHECKING:
    from titancli.launch import Options

_HOST = re.compile(r"[A-Za-z0-9_.:-]+")
_EXAMPLE = "--rdzv-endpoint node0:29500"


@dataclass(frozen=True, slots=True, kw_only=True)
class Meeting:
    """How many machines meet, which of them this is, and where: an address of node 0 and a free port there.

    `interface` is this machine's, by which the others are to be reached; None while that is not known.
    """

    nodes: int
    rank: int
    host: str
    port: int
    interface: str | None = None

    @property
    def endpoint(self) -> str:
        """The place as torchrun and a person write it."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_head(self) -> bool:
        """Whether the others come to this machine."""
        return self.rank == 0


def meeting_of(options: Options, loaded: Loaded) -> Meeting | None:
    """What the flags say; None where this machine is the only one and no place to meet is given.

    TitanError with everything that is wrong with them.
    """
    nodes = loaded.config.cluster.nodes
    given = {
        name: value
        for name, value in (
            ("--nnodes", options.nnodes),
            ("--node-rank", options.node_rank),
            ("--rdzv-endpoint", options.rdzv_endpoint),
        )
        if value is not None
    }
    if not given:
        return None
    scheduler = loaded.config.launch.scheduler
    if scheduler != "local":
        message = f"{', '.join(given)}: launch.scheduler = {scheduler} starts the run on its nodes by itself"
        fix = 'leave them out and set cluster.nodes, or set launch.scheduler = "local"'
        raise TitanError(report.error("R140", message, fix))
    rank, wrong_rank = _rank(options.node_rank, nodes, is_counted=options.nnodes is not None or _is_said(loaded))
    host, port, wrong_place = _place(options.rdzv_endpoint, nodes)
    wrong = [finding for finding in (wrong_rank, wrong_place) if finding is not None]
    if nodes > 1 and not loaded.config.job.name:
        message = f"{nodes} nodes need one name for their run"
        wrong.append(report.error("R145", message, "give --name NAME, the same on all of them", key="job.name"))
    if wrong:
        raise TitanError(*wrong)
    return Meeting(nodes=nodes, rank=rank, host=host, port=port) if host else None


def _is_said(loaded: Loaded) -> bool:
    """Whether this very call says how many nodes there are, as a script for any number of them does."""
    return loaded.origins["cluster.nodes"].kind in ("flag", "environment")


def _rank(given: str | None, nodes: int, *, is_counted: bool) -> tuple[int, Finding | None]:
    """Which machine this is, or what is wrong with that; `is_counted`: the caller has said that it may be one only."""
    if given is None:
        if nodes == 1:
            return 0, None
        message = f"one of {nodes} nodes needs to know which one it is"
        return 0, report.error(
            "R141", message, f"give --node-rank K: 0 where they meet, up to {nodes - 1} on the others"
        )
    if not re.fullmatch(r"[0-9]{1,6}", given) or int(given) >= nodes:
        fix = "leave it out, or give --nnodes N too" if nodes == 1 else f"give one of 0 to {nodes - 1}"
        message = f"--node-rank = {given} is none of {nodes} node{'s' if nodes > 1 else ''}, which are counted from 0"
        return 0, report.error("R142", message, fix)
    if nodes == 1 and not is_counted:
        message = f"--node-rank = {given} tells one of several nodes, and this run has one"
        return 0, report.error("R142", message, "give --nnodes N too, the same on all of them, or leave it out")
    return int(given), None


def _place(given: str | None, nodes: int) -> tuple[str, int, Finding | None]:
    """Host and port of the endpoint, or what is wrong with it; an empty host where there is none and none is needed."""
    if given is None:
        if nodes == 1:
            return "", 0, None
        message = f"{nodes} nodes need a place to meet"
        fix = f"give {_EXAMPLE}: a name or address of node 0 and a free port there, the same on all of them"
        return "", 0, report.error("R143", message, fix)
    bracketed = re.fullmatch(r"\[(?P<host>[^\[\]]*)\](?::(?P<port>.*))?", given.strip())
    if bracketed is None and given.count(":") > 1:
        message = f"--rdzv-endpoint = {given} does not tell its port from its address"
        return "", 0, report.error("R144", message, "write an IPv6 address in brackets: [fd00::1]:29500")
    host, _, port = given.strip().partition(":") if bracketed is None else (bracketed["host"], ":", bracketed["port"])
    if not host or not _HOST.fullmatch(host):
        message = f"--rdzv-endpoint = {given} names no host"
        return "", 0, report.error("R144", message, f"give a name or address of node 0 and a port: {_EXAMPLE}")
    if not port:
        message = f"--rdzv-endpoint = {given} has no port"
        fix = f"give one that is free on node 0: --rdzv-endpoint {given.strip().rstrip(':')}:29500"
        return "", 0, report.error("R144", message, fix)
    if not re.fullmatch(r"[0-9]{1,5}", port) or not 1 <= int(port) <= 65535:
        message = f"--rdzv-endpoint = {given}: {port} is not a port"
        return (
            "",
            0,
            report.error("R144", message, "give a number from 1 to 65535 that is free on node 0, such as 29500"),
        )
    return host, int(port), None

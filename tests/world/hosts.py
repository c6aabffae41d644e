"""Machines for tests: network namespaces on one bridge, each with its own address and host name.

Needs root and `ip`. The processes of all of them share this machine's processors, disk and process ids, and nothing
of its network.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

IMPOSSIBLE = "needs root, ip and unshare to make network namespaces"
_NET = "10.107"


@dataclass(frozen=True)
class Host:
    """One machine: its name, its address and the namespace that it is."""

    name: str
    address: str
    namespace: str

    def start(self, words: Sequence[str], *, cwd: Path, environ: Mapping[str, str]) -> subprocess.Popen[str]:
        """Starts a process there; what it writes is read from its pipes."""
        inside = ("unshare", "--uts", "sh", "-c", 'hostname "$0" && exec "$@"', self.name, *words)
        return subprocess.Popen(
            ("ip", "netns", "exec", self.namespace, *inside),
            cwd=cwd,
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def cut_off(self) -> None:
        """Takes its cable out: nobody is told, and nothing arrives any more."""
        _ip("-n", self.namespace, "link", "set", "eth0", "down")


@cache
def are_possible() -> bool:
    """Whether this process may make them here."""
    if os.geteuid() != 0 or not all(map(shutil.which, ("ip", "unshare", "hostname"))):
        return False
    try:
        with hosts(1):
            return True
    except (subprocess.CalledProcessError, OSError):
        return False


@contextmanager
def hosts(count: int) -> Iterator[tuple[Host, ...]]:
    """That many machines, reachable from each other by address, and gone with all their processes afterwards."""
    mark = f"{os.getpid() % 0xFFFF:04x}{os.urandom(1).hex()}"
    subnet = os.urandom(1)[0]
    switch = f"tn-{mark}"
    made: list[Host] = []
    try:
        # The bridge too is in a namespace of its own: two tests may choose one subnet, and the machine has another net.
        _ip("netns", "add", switch)
        _ip("-n", switch, "link", "add", "br0", "type", "bridge")
        _ip("-n", switch, "link", "set", "br0", "up")
        for number in range(count):
            host = Host(f"host{number}", f"{_NET}.{subnet}.{number + 1}", f"{switch}-{number}")
            _ip("netns", "add", host.namespace)
            made.append(host)
            end = ("peer", "name", "eth0", "netns", host.namespace)
            _ip("-n", switch, "link", "add", f"p{number}", "type", "veth", *end)
            _ip("-n", switch, "link", "set", f"p{number}", "master", "br0", "up")
            _ip("-n", host.namespace, "addr", "add", f"{host.address}/24", "dev", "eth0")
            _ip("-n", host.namespace, "link", "set", "eth0", "up")
            _ip("-n", host.namespace, "link", "set", "lo", "up")
        yield tuple(made)
    finally:
        for namespace in (*(host.namespace for host in made), switch):
            with contextlib.suppress(subprocess.CalledProcessError):
                for pid in _ip("netns", "pids", namespace).split():
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(int(pid), 9)
                _ip("netns", "del", namespace)


def _ip(*words: str) -> str:
    return subprocess.run(("ip", *words), check=True, capture_output=True, text=True).stdout

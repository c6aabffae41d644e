"""What goes over this host's network: InfiniBand and RoCE ports where it has any that are up, else Ethernet.

Knows the system's own counters of all that the host sends and receives. Does not know which process it was for, nor
what stays within the host.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from engine.meters.figures import (
    NOT_SUPPORTED,
    Figure,
    Figures,
    Missing,
    Rate,
    none_of,
    read_each,
)

NETWORK_METERS = ("network_rx_bytes_per_s", "network_tx_bytes_per_s")
_SYSTEM = Path("/sys/class")
_ETHERNET = "1"
_LARGEST_SPEED_MBIT = 4_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Port:
    """One way out of the host: files that count, in `unit` bytes, and its speed one way, None where it is not told."""

    name: str
    received: Path
    sent: Path
    unit: int = 1
    bytes_per_s: float | None = None


class NetworkMeters:
    """Reads all ports again and again; rates are means between two reads."""

    def __init__(self, system: Path = _SYSTEM, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._system, self._clock = system, clock
        self.ports = ports(system)
        self._rates = {name: Rate() for name in NETWORK_METERS}

    def read(self) -> Figures:
        """NETWORK_METERS."""
        if not self.ports:
            return none_of(NETWORK_METERS, NOT_SUPPORTED)
        return read_each({name: partial(self._counted, name) for name in NETWORK_METERS})

    def peak_bytes_per_s(self) -> float | None:
        """What all ports carry one way; None where one of them does not tell its speed."""
        speeds = [port.bytes_per_s for port in self.ports]
        known = [speed for speed in speeds if speed is not None]
        return sum(known) if speeds and len(known) == len(speeds) else None

    def _counted(self, name: str) -> Figure:
        try:
            counts = [
                int((port.received if "_rx_" in name else port.sent).read_text("ascii")) * port.unit
                for port in self.ports
            ]
        except (OSError, ValueError) as trouble:
            # A port that went away, or is another one now: from here on those that there are.
            self.ports = ports(self._system)
            self._rates = {each: Rate() for each in NETWORK_METERS}
            raise Missing("permission" if isinstance(trouble, PermissionError) else "no data") from trouble
        return self._rates[name].per_s(sum(counts), self._clock())


def ports(system: Path = _SYSTEM) -> tuple[Port, ...]:
    """The ports that count: InfiniBand and RoCE, else physical Ethernet, else any but bridges (in containers)."""
    fabric = tuple(port for path in _listed(system / "infiniband", "*/ports/*") if (port := _fabric(path)) is not None)
    if fabric:
        return fabric
    found = [path for path in _listed(system / "net", "*") if _is_up(path)]
    physical = [path for path in found if (path / "device").exists()]
    return tuple(_ethernet(path) for path in physical or found if not (path / "bridge").exists())


def _fabric(path: Path) -> Port | None:
    """A port that is up. Its counters count words of four bytes (kernel, sysfs-class-infiniband, port_rcv_data)."""
    received, sent = path / "counters" / "port_rcv_data", path / "counters" / "port_xmit_data"
    if "ACTIVE" not in _text(path / "state") or not received.exists() or not sent.exists():
        return None
    rate = _text(path / "rate").split()
    gbit_per_s = _float(rate[0]) if rate else None
    return Port(
        name=f"{path.parent.parent.name}/{path.name}",
        received=received,
        sent=sent,
        unit=4,
        bytes_per_s=None if gbit_per_s is None else gbit_per_s * 1e9 / 8,
    )


def _is_up(path: Path) -> bool:
    return _text(path / "type") == _ETHERNET and _text(path / "operstate") in ("up", "unknown")


def _ethernet(path: Path) -> Port:
    mbit_per_s = _float(_text(path / "speed"))
    # Of a virtual interface it is -1, or the largest number that fits.
    known = mbit_per_s is not None and 0 < mbit_per_s <= _LARGEST_SPEED_MBIT
    return Port(
        name=path.name,
        received=path / "statistics" / "rx_bytes",
        sent=path / "statistics" / "tx_bytes",
        bytes_per_s=mbit_per_s * 1e6 / 8 if known and mbit_per_s is not None else None,
    )


def _listed(folder: Path, pattern: str) -> list[Path]:
    return sorted(folder.glob(pattern)) if folder.is_dir() else []


def _text(file: Path) -> str:
    """What a file of the system says; empty where it says nothing."""
    try:
        return file.read_text("ascii", errors="replace").strip()
    except OSError:
        return ""


def _float(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None

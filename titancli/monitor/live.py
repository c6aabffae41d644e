"""What the ranks that are on this machine do right now, by its own meters rather than by what they wrote.

Knows which ranks are here: by the UUID of a GPU, and by process id on this host. Does not know events (fold), nor which
figures of both are shown (rows). A machine without NVML, or one where nothing of the run is, has nothing to add.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from engine.hardware import kind_of
from engine.meters.background import Background
from engine.meters.figures import FIRST_LOOK, Figures, Paced
from engine.meters.gpu import GpuMeters
from engine.meters.network import NetworkMeters
from engine.meters.peaks import PERCENTS, Asked, explained, peaks_of, percents
from engine.meters.process import GONE, ProcessMeters
from engine.nvml import NoAnswer, Nvml, open_nvml
from titancli.monitor.run_state import Rank
from titancli.monitor.values import as_number

Row = dict[str, Any]
_PATIENCE_S = 2.0
_END_S = 0.2


class LiveMeters:
    """The meters of this machine, for ranks of one run; made once, since rates are means between two reads.

    `config` is the run's config.toml as plain objects, for what its [cluster] says of links; `nvml` is pynvml, or its
    like. The first read takes two looks, `first_window_s` apart.
    """

    def __init__(
        self,
        *,
        config: Mapping[str, Any] | None = None,
        first_window_s: float = 0.15,
        nvml: Any = None,
        network: NetworkMeters | None = None,
    ) -> None:
        self._here = _Here(config or {}, nvml, network)
        self._first_window_s = first_window_s
        self._background: Background | None = None

    def read(self, ranks: Iterable[Rank]) -> dict[int, Row]:
        """By rank, the keys of a row that were read here and now, with `reasons` of those that are None, and `is_live`.

        Ranks that are elsewhere, or have ended, are left out. Never raises; empty where a driver hangs, which is waited
        for two seconds at most.
        """
        asked = tuple(rank for rank in ranks if not rank.has_ended)
        if self._background is None:
            self._background = Background("titan-meters", on_fault=lambda _: None)
        found: list[dict[int, Row]] = []
        done = threading.Event()

        def look() -> None:
            try:
                found.append(self._here.look(asked, first_window_s=self._first_window_s))
            finally:
                done.set()

        if self._background.busy_s() < _PATIENCE_S:
            self._background.ask(look)
            done.wait(_PATIENCE_S)
        return found[0] if found else {}

    def close(self) -> None:
        """Gives back what NVML holds; leaves behind what hangs."""
        if self._background is not None:
            self._background.finish(self._here.close, timeout_s=_END_S)
        self._background = None


@dataclass(frozen=True, slots=True)
class _Gpu:
    """A GPU of this machine: its meters, and what NVML says of its links."""

    meters: GpuMeters
    paced: Paced
    kind: str | None
    links: Mapping[str, object]


class _Here:
    """What of a run is on this machine. One thread asks it."""

    def __init__(self, config: Mapping[str, Any], module: Any, network: NetworkMeters | None) -> None:
        cluster = config.get("cluster")
        self._cluster: Mapping[str, Any] = cluster if isinstance(cluster, Mapping) else {}
        self._module, self._host = module, socket.gethostname()
        self._nvml: Nvml | None = None
        self._is_open = False
        self._gpus: dict[str, _Gpu | None] = {}
        self._processes: dict[tuple[int, float | None], Paced | None] = {}
        self._network = network or NetworkMeters()
        self._paced_network = Paced(self._network.read)
        self._has_looked = False

    def look(self, ranks: Iterable[Rank], *, first_window_s: float) -> dict[int, Row]:
        ranks = tuple(ranks)
        rows = self._rows(ranks)
        if rows and not self._has_looked:
            time.sleep(first_window_s)
            rows = self._rows(ranks)
        self._has_looked = self._has_looked or bool(rows)
        return rows

    def close(self) -> None:
        for gpu in self._gpus.values():
            if gpu is not None:
                gpu.meters.close()
        if self._nvml is not None:
            self._nvml.told("nvmlShutdown")
        self._gpus, self._nvml = {}, None

    def _rows(self, ranks: tuple[Rank, ...]) -> dict[int, Row]:
        hosts = [rank.host for rank in ranks]
        rows: dict[int, Row] = {}
        for rank in ranks:
            gpu = None if rank.uuid is None else self._gpu(rank.uuid)
            process = self._process(rank)
            host = self._paced_network.read()
            if gpu is not None:
                figures = host | gpu.paced.read() | (process or Figures())
                rows[rank.rank] = self._row(figures, gpu, hosts.count(rank.host))
            elif rank.uuid is None and process is not None:
                rows[rank.rank] = self._row(host | process | _used(process), None, hosts.count(rank.host))
        return rows

    def _row(self, figures: Figures, gpu: _Gpu | None, ranks_of_host: int) -> Row:
        told = {**({} if gpu is None else gpu.links), "network_bytes_per_s": self._network.peak_bytes_per_s()}
        peaks = peaks_of(None if gpu is None else gpu.kind, told=told, asked=self._asked(ranks_of_host))
        use = percents(figures.values, peaks)
        reasons = explained(use, figures.reasons) | dict(figures.reasons)
        row: Row = {**figures.values, **use}
        if gpu is None:
            # Its links are no rank's without a GPU.
            row = {key: value for key, value in row.items() if key not in PERCENTS or key == "network_pct"}
        # What a later look will have may stand in the run's events already.
        row = {key: value for key, value in row.items() if reasons.get(key) != FIRST_LOOK}
        return row | {"reasons": {key: why for key, why in reasons.items() if key in row}, "is_live": True}

    def _asked(self, ranks_of_host: int) -> Asked:
        told = {name: as_number(self._cluster.get(name)) for name in ("nvlink_gbyte_per_s", "pcie_gbyte_per_s")}
        network = as_number(self._cluster.get("network_gbit_per_s_per_gpu"))
        return Asked(**told, network_gbit_per_s_per_gpu=network, gpus_of_host=ranks_of_host)

    def _gpu(self, uuid: str) -> _Gpu | None:
        """The GPU of a UUID; None where it is on another machine, or nobody here can tell."""
        if not self._is_open:
            self._is_open = True
            try:
                self._nvml = open_nvml(self._module)
            except NoAnswer:
                self._nvml = None
        if self._nvml is None:
            return None
        if uuid not in self._gpus:
            self._gpus[uuid] = self._first_seen(self._nvml, uuid)
        return self._gpus[uuid]

    def _first_seen(self, nvml: Nvml, uuid: str) -> _Gpu | None:
        meters = GpuMeters(nvml, uuid)
        paced = Paced(meters.read)
        figures = paced.read()
        if set(figures.reasons.values()) == {"not found"}:
            return None
        kind = kind_of(meters.name() or "", int(figures.values.get("capacity_bytes") or 0))
        return _Gpu(meters, paced, kind, meters.peaks().values)

    def _process(self, rank: Rank) -> Figures | None:
        """What the process of a rank takes; None where it is not on this host, or not alive any more."""
        if rank.pid is None or rank.host != self._host:
            return None
        key = rank.pid, rank.began
        if key not in self._processes:
            try:
                meters = ProcessMeters(rank.pid, since=rank.last_time if rank.began is None else rank.began)
                self._processes[key] = Paced(meters.read)
            except (ProcessLookupError, ValueError, OverflowError):
                self._processes[key] = None
        found = self._processes[key]
        figures = None if found is None else found.read()
        return None if figures is None or GONE in figures.reasons.values() else figures


def _used(process: Figures) -> Figures:
    """Without a GPU, what a rank uses is what its process has of the host's memory."""
    used, why = process.values["host_rss_bytes"], process.reasons.get("host_rss_bytes")
    return Figures({"used_bytes": used}, {} if why is None else {"used_bytes": why})

"""The meters of one rank while it trains: a `gpu` event at each report, and what it takes of the processor.

Knows the fields of the event and that training never waits for a driver, nor ends by it. Does not know when a step is
reported (training).
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from engine.config import Cluster
from engine.events import Kind
from engine.hardware import kind_of
from engine.meters.background import Background
from engine.meters.figures import NOT_SUPPORTED, Figures, Paced, none_of
from engine.meters.gpu import GPU_METERS, GpuMeters
from engine.meters.network import NETWORK_METERS, NetworkMeters
from engine.meters.peaks import Asked, peaks_of
from engine.meters.process import OwnProcessor
from engine.nvml import NoAnswer, open_nvml

HANGS = "driver does not answer"
_PATIENCE_S = 2.0
_END_S = 1.0


class Writer(Protocol):
    """Where events go; threads may share it."""

    def write(self, kind: Kind, **fields: Any) -> None:
        """Writes one event."""


class GpuSource:
    """All that is read for a `gpu` event, in one thread: NVML, opened once, and the host's network."""

    def __init__(self, uuid: str, *, asked: Asked, nvml: Any = None, network: NetworkMeters | None = None) -> None:
        self._asked, self._network = asked, network or NetworkMeters()
        self._gpu: GpuMeters | None = None
        self._peaks: dict[str, float | None] | None = None
        self._without = NOT_SUPPORTED
        try:
            self._nvml = open_nvml(nvml)
            self._gpu = GpuMeters(self._nvml, uuid)
        except NoAnswer as trouble:
            self._without = trouble.reason
        self.read = Paced(self._read).read

    def more(self, figures: Figures) -> dict[str, Any]:
        """What a reader needs to make sense of the figures: where they come from, and what the links can carry."""
        if self._peaks is None:
            self._peaks = self._asked_for_peaks(figures)
        return {"source": None if self._gpu is None else self._gpu.source, "peaks": self._peaks}

    def close(self) -> None:
        """Gives back what NVML holds."""
        if self._gpu is not None:
            self._gpu.close()
            self._nvml.told("nvmlShutdown")

    def _read(self) -> Figures:
        gpu = none_of(GPU_METERS, self._without) if self._gpu is None else self._gpu.read()
        return gpu | self._network.read()

    def _asked_for_peaks(self, figures: Figures) -> dict[str, float | None]:
        told: dict[str, object] = {"network_bytes_per_s": self._network.peak_bytes_per_s()}
        if self._gpu is None:
            return peaks_of(None, told=told, asked=self._asked)
        kind = kind_of(self._gpu.name() or "", int(figures.values.get("capacity_bytes") or 0))
        return peaks_of(kind, told={**told, **self._gpu.peaks().values}, asked=self._asked)


class RankMeters:
    """What a rank measures from one report to the next. `source` makes what reads its GPU; None without one.

    A thread of its own reads and writes, at the moment of the report: means since the last one. Reports less than 0.1 s
    apart share one event. As long as the driver hangs, each report says so.
    """

    def __init__(self, uuid: str | None, writer: Writer, *, source: Callable[[], GpuSource] | None = None) -> None:
        self.processor = OwnProcessor()
        self._uuid, self._writer = uuid, writer
        self._writing, self._has_ended = threading.Lock(), False
        self._source: GpuSource | None = None
        self._last: Figures | None = None
        self._background: Background | None = None
        if source is not None:
            self._background = Background("titan-meters", on_fault=self._failed)
            self._background.ask(lambda: self._open(source))

    def __enter__(self) -> RankMeters:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def report(self) -> None:
        """A step is reported: the GPU's figures since the last report are read and written, soon and elsewhere."""
        if self._background is None:
            return
        if self._background.busy_s() > _PATIENCE_S:
            self._write_none(HANGS)
        else:
            self._background.ask(self._look)

    def close(self) -> None:
        """Writes what was asked, waits a moment for it at most, and writes nothing after."""
        if self._background is not None:
            self._background.finish(self._shut, timeout_s=_END_S)
        with self._writing:
            self._has_ended = True
        self._background = None

    def _open(self, source: Callable[[], GpuSource]) -> None:
        """The first look, at what later ones are compared with."""
        self._source = source()
        self._source.read()

    def _look(self) -> None:
        if self._source is None:
            return
        figures = self._source.read()
        if figures is not self._last:
            self._write(figures, **self._source.more(figures))
        self._last = figures

    def _shut(self) -> None:
        if self._source is not None:
            self._source.close()

    def _failed(self, fault: Exception) -> None:
        self._write_none(f"{type(fault).__name__}: {fault}")

    def _write_none(self, reason: str) -> None:
        self._write(none_of((*GPU_METERS, *NETWORK_METERS), reason), source=None, peaks=None)

    def _write(self, figures: Figures, **more: Any) -> None:
        # A disk that is full ends the run at its own next event.
        with self._writing, contextlib.suppress(OSError):
            if not self._has_ended:
                self._writer.write("gpu", uuid=self._uuid, **figures.values, reasons=dict(figures.reasons), **more)


def rank_meters(uuid: str | None, writer: Writer, *, cluster: Cluster, gpus_of_host: int) -> RankMeters:
    """The meters of a rank on the GPU of this UUID, or without one: then only `processor` has figures."""
    asked = Asked(
        nvlink_gbyte_per_s=cluster.nvlink_gbyte_per_s,
        pcie_gbyte_per_s=cluster.pcie_gbyte_per_s,
        network_gbit_per_s_per_gpu=cluster.network_gbit_per_s_per_gpu,
        gpus_of_host=gpus_of_host,
    )
    return RankMeters(uuid, writer, source=None if uuid is None else partial(GpuSource, uuid, asked=asked))

"""What torch's profiler saw: kernels, collectives, and when the host launched them.

Knows the names of events and torch's private ways to them, tried on 2.11 and 2.13. Does not know mesh axes (axes.py)
nor what counts as what (breakdown.py). On a GPU only the device's own records are taken, and the calls that launched
them: what the host does between would cost ten times as much.
"""

from __future__ import annotations

import gzip
import os
import shutil
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.autograd import DeviceType  # type: ignore[attr-defined]
from torch.autograd.profiler import profile

from engine.profile.spans import Span, union, without

# Its notes on every start and stop go to stderr, where people read.
os.environ.setdefault("KINETO_LOG_LEVEL", "99")
# CUPTI that stays attached between recordings makes every launch dearer: a run bound by its launches took 15 to 30 %
# longer on one H200 with torch 2.11 (0.12 to 0.14 s a step instead of 0.10), and 2 % when it is taken down.
os.environ.setdefault("TEARDOWN_CUPTI", "1")

_SYMMETRIC = ("wait_signal", "put_signal", "barrier_kernel", "multimem", "one_shot_all_reduce", "two_shot_all_reduce")
"""Kernels of torch's symmetric memory, with which async tensor parallel sends."""
_BY_PEER = ("Memcpy PtoP", *_SYMMETRIC)
_OF_HOST = ("Memcpy HtoD", "Memcpy DtoH", "Memset (Host")
_WAITS = ("c10d::", "_c10d_functional::", "gloo:", "record_param_comms")
_COMPUTES = ("aten::", "torchao::", "titan::", "Torch-Compiled Region", "## Call CompiledFxGraph")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """A collective or message: when the host began it, and its span; `kind` as torch names it (`gloo:send`)."""

    name: str
    begun: int
    span: Span
    is_symmetric: bool = False

    @property
    def is_between_two(self) -> bool:
        """Whether it goes from one rank to another."""
        name = self.name.lower()
        return "sendrecv" in name or name.startswith(("gloo:send", "gloo:recv"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """Spans in nanoseconds of the Unix clock. `launched` tells of each kernel of a GPU when the host asked for it."""

    computing: tuple[Span, ...]
    sent: tuple[Sent, ...]
    launched: tuple[tuple[int, Span], ...] = ()

    def end_of(self, launched_before: int) -> int | None:
        """When the device was done with all that was launched before a moment; None where that was nothing."""
        return max((span[1] for begun, span in self.launched if begun <= launched_before), default=None)

    def waiting_for_host(self) -> list[Span]:
        """Gaps in which the device ran nothing, and what it ran next had not been launched when they began."""
        gaps: list[Span] = []
        done = 0
        for begun, (begin, end) in sorted(self.launched, key=lambda each: each[1]):
            if done and begin > done and begun > done:
                gaps.append((done, begin))
            done = max(done, end)
        return gaps


class Recording:
    """A profiler from its start to its end; `with_host` records the host's operations too, for a trace people read."""

    def __init__(self, device: torch.device, *, with_host: bool) -> None:
        self._on_gpu = device.type == "cuda"
        self._profile = profile(
            use_cpu=with_host or not self._on_gpu, use_device="cuda" if self._on_gpu else None, use_kineto=True
        )
        # torch.profiler's own class makes objects of all events when it ends, which takes 70 us each.
        self._profile.__enter__()  # type: ignore[no-untyped-call]

    def stop(self) -> None:
        """Ends the recording; the caller has waited for the device."""
        self._profile.__exit__(None, None, None)  # type: ignore[no-untyped-call]

    def seen(self) -> Seen:
        """What was recorded."""
        results = self._profile.kineto_results
        assert results is not None, "a recording is stopped first"
        return _of_gpu(results.events()) if self._on_gpu else _of_cpu(results.events())

    def keep(self, path: Path) -> None:
        """Writes the trace for Perfetto or chrome://tracing, compressed."""
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(suffix=".json") as plain:
            self._profile.export_chrome_trace(plain.name)  # type: ignore[no-untyped-call]
            with open(plain.name, "rb") as text, gzip.open(path, "wb", compresslevel=1) as packed:
                shutil.copyfileobj(text, packed)


def _of_gpu(events: Iterable[Any]) -> Seen:
    kernels: list[tuple[str, int, Span]] = []
    begun: dict[int, int | None] = {}
    for event in events:
        if event.device_type() != DeviceType.CUDA:
            begun[event.correlation_id()] = begun.get(event.correlation_id()) or _launch(event)
        elif not event.is_user_annotation():
            start = event.start_ns()
            kernels.append((event.name(), event.correlation_id(), (start, start + event.duration_ns())))
    computing, sent, launched = [], [], []
    for name, correlation, span in kernels:
        start = begun.get(correlation) or span[0]
        launched.append((start, span))
        by_peer = any(part in name for part in _BY_PEER)
        if by_peer or name.startswith("nccl"):
            sent.append(Sent(name=name, begun=start, span=span, is_symmetric=by_peer))
        elif not name.startswith(_OF_HOST):
            computing.append(span)
    return Seen(computing=tuple(computing), sent=tuple(sent), launched=tuple(launched))


def _launch(event: Any) -> int | None:
    """When a call of CUDA began; None for operations of torch, which are counted in other numbers."""
    return int(event.start_ns()) if event.name().startswith("cu") else None


def _of_cpu(events: Iterable[Any]) -> Seen:
    """Of a CPU: the operations of the thread that trains, and collectives from when they are asked for until they are

    over. What an operation waits for within itself is not computing.
    """
    computing: list[Span] = []
    waits: list[Span] = []
    sent: list[Sent] = []
    for event in events:
        name, start = event.name(), event.start_ns()
        span = (start, start + event.duration_ns())
        if name.startswith("gloo:"):
            sent.append(Sent(name=name, begun=start, span=span))
        elif name.startswith(_WAITS):
            waits.append(span)
        elif name.startswith(_COMPUTES):
            computing.append(span)
    return Seen(computing=tuple(without(union(computing), union(waits))), sent=tuple(sent))

"""How long the phases of a step take on the device, without waiting for it.

Knows marks between phases: events of CUDA on a GPU, the clock on a CPU. Does not know what the phases do.
"""

from __future__ import annotations

import time
from itertools import pairwise
from typing import Any

import torch


class Phases:
    """Marks in the last step; each call of `begin` forgets those of the step before, unless they are kept."""

    def __init__(self, device: torch.device) -> None:
        self._on_gpu = device.type == "cuda"
        self._marks: list[tuple[str, Any]] = []
        self._kept: list[tuple[str, Any]] | None = None
        self._spare: list[Any] = []
        self._told: tuple[Any, float] | None = None

    def begin(self, name: str) -> None:
        """The first phase of a step begins, when the device comes to it."""
        if self._marks is not self._kept:
            self._spare += [mark for _, mark in self._marks] if self._on_gpu else []
        self._marks = []
        self.mark(name)

    def mark(self, name: str) -> None:
        """The phase before ends and the next begins."""
        self._marks.append((name, self._now()))

    def end(self) -> None:
        """The last phase ends."""
        self.mark("")

    def keep(self) -> None:
        """The step that ended is one whose `seconds` are asked for, maybe during the next."""
        self._kept = self._marks

    def seconds(self) -> dict[str, float]:
        """`{phase}_s` of the step that was kept; the caller has waited for it."""
        kept = self._kept or []
        return {f"{name}_s": self._between(mark, after) for (name, mark), (_, after) in pairwise(kept)}

    def ended_s(self) -> float:
        """When the step that was kept was over, in seconds of `time.perf_counter`; the caller has waited for it.

        The host may be in the midst of the next step. Of a GPU's clock only differences are known: it is set by the
        host's at the first call, which is to come as soon as that step is over.
        """
        assert self._kept, "no step is kept"
        _, mark = self._kept[-1]
        if not self._on_gpu:
            return float(mark)
        ended_s = time.perf_counter() if self._told is None else self._told[1] + self._between(self._told[0], mark)
        self._told = mark, ended_s
        return ended_s

    def _now(self) -> Any:
        if not self._on_gpu:
            return time.perf_counter()
        event = self._spare.pop() if self._spare else torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def _between(self, mark: Any, after: Any) -> float:
        return float(mark.elapsed_time(after)) / 1000 if self._on_gpu else float(after - mark)

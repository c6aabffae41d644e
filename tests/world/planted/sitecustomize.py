"""A fault that waits inside a worker: Python runs this file at its start where its folder is on PYTHONPATH.

Knows the variable FAULT (JSON, a list of faults) and the public places at which one can strike: an event that is
written, a batch that is asked for, gradients that are computed, bytes of a checkpoint that are written. Changes nothing
in processes that are no rank.

A fault: `do` (raise, kill, terminate, stop, sleep, nan, no_data, no_memory, pace), `rank` (null: all),
`at` (`start`, `batches`, `backward`, `write`, or a table of fields of an event after which it strikes), `step` (null:
every one; for `batches` and `backward`; of `write` the number of writes before), `once` (a file: whoever makes it
strikes, and nobody again), `seconds` (of `pace`).
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

MESSAGE = "boom-17"
"""The text of an exception that was planted."""
# More than any address space holds, so that no machine hands it out.
_TOO_MANY_BYTES = 1 << 50
_SIGNALS = {"kill": signal.SIGKILL, "terminate": signal.SIGTERM, "stop": signal.SIGSTOP}


class Planted:
    """The faults of this rank; `steps` tells of which step the batches are that were given, by their identity.

    `writes` counts those into files of checkpoints.
    """

    def __init__(self, faults: Sequence[dict[str, Any]]) -> None:
        self.faults = faults
        self.steps: dict[int, int] = {}
        self.writes = 0

    def at(self, place: str, step: int | None = None) -> list[dict[str, Any]]:
        """The faults that strike at a place in a step."""
        return [each for each in self.faults if each["at"] == place and each.get("step") in (None, step)]

    def after(self, event: dict[str, Any]) -> list[dict[str, Any]]:
        """The faults that strike after an event."""
        tables = [each for each in self.faults if isinstance(each["at"], dict)]
        return [each for each in tables if all(event.get(name) == value for name, value in each["at"].items())]


def strike(fault: dict[str, Any]) -> None:
    """Does what a fault does to the process; those that change a value are for who holds it."""
    if not _is_first(fault):
        return
    kind = fault["do"]
    if kind in _SIGNALS:
        os.kill(os.getpid(), _SIGNALS[kind])
    elif kind == "raise":
        raise ValueError(MESSAGE)
    elif kind == "no_memory":
        import torch

        torch.empty(_TOO_MANY_BYTES, dtype=torch.uint8)
    elif kind == "sleep":
        while True:
            time.sleep(3600)
    elif kind == "pace":
        time.sleep(fault["seconds"])


def _is_first(fault: dict[str, Any]) -> bool:
    if "once" not in fault:
        return True
    try:
        os.close(os.open(fault["once"], os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


def _in_events(module: ModuleType, planted: Planted) -> None:
    write = module.EventLog.write

    def struck(self: Any, kind: str, **fields: Any) -> None:
        write(self, kind, **fields)
        for fault in planted.after({"kind": kind, **fields}):
            strike(fault)

    module.EventLog.write = struck


def _in_loader(module: ModuleType, planted: Planted) -> None:
    batches = module.Loader.batches
    ended: list[int] = []

    def struck(self: Any, step: int) -> Any:
        found = batches(self, step)
        planted.steps[id(found)] = step
        for fault in planted.at("batches", step):
            if fault["do"] == "no_data":
                ended.append(step - 1)
                return None
            strike(fault)
        return found

    module.Loader.batches = struck
    if any(fault["do"] == "no_data" for fault in planted.faults):
        module.Loader.end_message = property(lambda _: f"the data ended after step {ended[-1]}")


def _in_step(module: ModuleType, planted: Planted) -> None:
    forward_backward = module.forward_backward

    def struck(built: Any, batches: Any, *rest: Any, **named: Any) -> Any:
        loss = forward_backward(built, batches, *rest, **named)
        for fault in planted.at("backward", planted.steps.get(id(batches))):
            if fault["do"] == "nan" and _is_first(fault):
                gradient = next(iter(built.weights.values())).grad
                getattr(gradient, "_local_tensor", gradient).fill_(float("nan"))
            else:
                strike(fault)
        return loss

    module.forward_backward = struck


def _in_store(module: ModuleType, planted: Planted) -> None:
    write = module._Stream.write

    def struck(self: Any, data: Any) -> Any:
        for fault in planted.at("write", planted.writes):
            strike(fault)
        planted.writes += 1
        return write(self, data)

    module._Stream.write = struck


PLACES: dict[str, Callable[[ModuleType, Planted], None]] = {
    "engine.events": _in_events,
    "engine.checkpoint.store": _in_store,
    "engine.data.loader": _in_loader,
    "engine.step": _in_step,
}
"""The modules that faults are planted in as soon as they are imported."""


class Finder(MetaPathFinder):
    """Finds those modules as Python would, and plants after they ran."""

    def __init__(self, planted: Planted) -> None:
        self._planted = planted

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """The module's own spec, with a loader that plants."""
        if name not in PLACES:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Planting(spec.loader, self._planted)
        return spec


class _Planting(Loader):
    def __init__(self, own: Loader, planted: Planted) -> None:
        self._own, self._planted = own, planted

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._own.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._own.exec_module(module)
        PLACES[module.__name__](module, self._planted)


def _plant() -> None:
    rank = int(os.environ["RANK"])
    faults = json.loads(os.environ["FAULT"])
    mine = Planted([fault for fault in faults if fault.get("rank") in (None, rank)])
    for fault in mine.at("start"):
        strike(fault)
    sys.meta_path.insert(0, Finder(mine))


if "FAULT" in os.environ and os.environ.get("RANK", "").isdigit():
    _plant()

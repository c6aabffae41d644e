"""A run as it is compared: its folder read once, whether it is over, half written or still going on.

Knows files, and how much of each is worth reading: all that rank 0 says of steps, the ends of the others. Does not know
what runs are like beside each other (beside), nor how they look.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.errors import TitanError
from engine.events import Event, event_file, read_all_but, read_ends
from titancli import report
from titancli.compare.curve import Curve, curve_of
from titancli.compare.idle import Shares, mean_of, shares_of
from titancli.compare.memory import Held, held_by
from titancli.monitor.failure import failures_of
from titancli.monitor.fold import fold
from titancli.monitor.follow import ENDED, Launcher, State, judge, read_config, read_plan
from titancli.monitor.run_state import RunState
from titancli.monitor.signs import is_held

_FILE = re.compile(r"rank-(\d+)\.jsonl")
# What is read of all ranks but the first together, shared among them.
_TAILS_BYTES = 8 << 20
_LEAST_TAIL_BYTES, _MOST_TAIL_BYTES = 12 << 10, 256 << 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run; `steps` is how many it is to do, `idle` the mean of ranks that were profiled; None is not known.

    `validation_loss` is that of its newest validation, after `validation_step`.
    """

    folder: Path
    state: State
    steps: int | None
    phase: str | None
    failure: str | None
    world_size: int | None
    gpu: str | None
    gpu_name: str | None
    versions: Mapping[str, Any]
    config: Mapping[str, Any]
    plan: Mapping[str, Any]
    curve: Curve
    held: Held | None
    idle: Shares | None
    validation_step: int | None = None
    validation_loss: float | None = None

    @property
    def step(self) -> int | None:
        """The last logged step; None before the first."""
        return self.curve.steps[-1] if self.curve.steps else None

    @property
    def is_over(self) -> bool:
        """Whether nothing more is to come of it by itself."""
        return self.state in ENDED


def read_run(folder: Path) -> Run:
    """What stands in a run folder now; TitanError where rank 0's events cannot be read."""
    # The launcher is read first: when it has written how the run ended, all events are there to be read.
    launcher = Launcher.read(folder)
    curve, first = _first(event_file(folder, 0))
    others = list(_others(folder))
    seen = fold(RunState(), first)
    for events in others:
        seen = fold(seen, events)
    state = judge(seen, launcher, holds=is_held(folder, launcher))
    failures = failures_of(folder, seen) if state == "failed" else []
    config, plan = read_config(folder), dict(seen.plan or read_plan(folder))
    training = config.get("training")
    steps = training.get("steps") if isinstance(training, dict) else None
    started = next((event for event in reversed(first) if event["kind"] == "run_started"), {})
    return Run(
        folder=folder,
        state=state,
        steps=steps if isinstance(steps, int) else None,
        phase=seen.phase,
        failure=f"rank {failures[0].rank}: {_headline(failures[0].type, failures[0].message)}" if failures else None,
        world_size=seen.world_size,
        gpu=seen.gpu or plan.get("gpu"),
        gpu_name=seen.ranks[0].gpu if 0 in seen.ranks else None,
        versions=_table(started.get("versions")),
        config=config,
        plan=plan,
        curve=curve,
        held=held_by(seen, plan),
        idle=mean_of(_idle(curve, others)),
        validation_step=seen.validation_step,
        validation_loss=seen.validation_loss,
    )


def _first(path: Path) -> tuple[Curve, list[Event]]:
    """Rank 0's curve, and what the state of a run follows from: all else it says but of meters, and its last step."""
    spoken: list[Event] = []
    try:
        curve = curve_of(_kept(read_all_but(path, "memory", "gpu"), spoken))
        # The peaks of a process only rise: of all that is said of memory, the last is enough.
        memory = [event for event in read_ends(path)[0] if event["kind"] == "memory"]
    except OSError as trouble:
        reason = (trouble.strerror or str(trouble)).lower()
        fix = "ask whoever owns the run for the right to read it"
        raise TitanError(report.error("U170", f"cannot read {path}: {reason}", fix)) from None
    started = max((index for index, event in enumerate(spoken) if event["kind"] == "run_started"), default=-1)
    return curve, [*spoken[: started + 1], *memory, *spoken[started + 1 :]]


def _kept(events: Iterator[Event], spoken: list[Event]) -> Iterator[Event]:
    """The same events, of which those that are no step are kept, and the last step."""
    step: Event | None = None
    for event in events:
        if event["kind"] == "step":
            step = event
        else:
            spoken += [event] if step is None else [step, event]
            step = None
        yield event
    spoken += [] if step is None else [step]


def _others(folder: Path) -> Iterator[list[Event]]:
    """The beginning and the end of what each other rank has said; a file that cannot be read is passed over."""
    events = folder / "events"
    paths = sorted(
        path for path in events.glob("rank-*.jsonl") if (match := _FILE.fullmatch(path.name)) and int(match[1])
    )
    tail_bytes = min(_MOST_TAIL_BYTES, max(_LEAST_TAIL_BYTES, _TAILS_BYTES // max(1, len(paths))))
    for path in paths:
        try:
            yield read_ends(path, tail_bytes=tail_bytes)[0]
        except OSError:
            continue


def _idle(curve: Curve, others: Sequence[Sequence[Event]]) -> Iterator[Shares]:
    """The mean of each rank that was profiled; the first steps of an attempt, which compile, do not count."""
    warm = [window.shares for window in curve.windows if window.is_warm and window.shares is not None]
    for profiled in (warm, *(_warm(events) for events in others)):
        mean = mean_of(profiled)
        if mean is not None:
            yield mean


def _warm(events: Sequence[Event]) -> list[Shares]:
    found, is_first = [], True
    for event in events:
        if event["kind"] == "run_started":
            is_first = True
        elif event["kind"] == "step":
            shares = None if is_first else shares_of(event)
            found += [] if shares is None else [shares]
            is_first = False
    return found


def _headline(type_: str, message: str) -> str:
    first = (message.splitlines() or [""])[0]
    return f"{type_}: {first}" if first else type_


def _table(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}

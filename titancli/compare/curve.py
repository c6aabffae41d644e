"""The curve of a run, whatever attempts it took: loss, tokens and seconds at each logged step.

Knows which steps count where some were done anew (the later ones), how many tokens and seconds lie before each, and how
a loss between two logged steps is found. Does not know files, configs or other runs.
"""

from __future__ import annotations

import statistics
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeAlias

from engine.events import Event
from titancli.compare.idle import Shares, shares_of
from titancli.monitor.fold import step_of
from titancli.monitor.values import as_number, as_whole

Along = Literal["steps", "tokens", "time"]
"""What a loss is held against: steps, valid tokens, or seconds of training."""
Points: TypeAlias = tuple[tuple[float, float], ...]
"""Places along an axis, ascending, each with its loss."""


# A tuple: a run may have a hundred thousand of them, and a frozen dataclass takes four times as long to make.
class Window(NamedTuple):
    """Steps after `after` up to `step`, which were reported together; None is not known.

    `loss` is that of the last one; `step_s` and `step_tokens` are means. `is_logged` is false for the part of a window
    that still counts once the rest was done anew. `is_warm`: not the first of an attempt, which compiles and connects.
    """

    after: int
    step: int
    loss: float | None
    step_s: float | None
    step_tokens: float | None
    step_slots: float | None
    tokens_per_s_per_gpu: float | None = None
    mfu_pct: float | None = None
    shares: Shares | None = None
    is_logged: bool = True
    is_warm: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """What was logged, step by step; `tokens` and `seconds` are None where one of them is not known.

    A loss is None where none was written. `redone` counts steps that were done again in a later attempt.
    """

    steps: tuple[int, ...] = ()
    losses: tuple[float | None, ...] = ()
    tokens: tuple[int, ...] | None = ()
    slots: tuple[int, ...] | None = ()
    seconds: tuple[float, ...] | None = ()
    redone: int = 0
    attempts: int = 0
    windows: tuple[Window, ...] = field(default=(), repr=False)

    def points(self, along: Along) -> Points:
        """Places and losses, without those that are not known; none where the axis is not."""
        places: Mapping[Along, Sequence[float] | None] = {
            "steps": self.steps,
            "tokens": self.tokens,
            "time": self.seconds,
        }
        pairs = zip(places[along] or (), self.losses, strict=False)
        return tuple((place, loss) for place, loss in pairs if loss is not None)

    @property
    def last_loss(self) -> float | None:
        """The loss at the last logged step."""
        return self.losses[-1] if self.losses else None

    def median(self, figure: Literal["tokens_per_s_per_gpu", "mfu_pct", "step_s"]) -> float | None:
        """The figure in the middle of the warm windows."""
        found = [getattr(window, figure) for window in self.windows if window.is_warm and window.is_logged]
        known = [value for value in found if value is not None]
        return statistics.median(known) if known else None


def curve_of(events: Iterable[Event]) -> Curve:
    """The curve that the events of rank 0 tell, in their order."""
    attempts = _Attempts()
    for event in events:
        if event["kind"] == "run_started":
            attempts.begin(event)
        elif event["kind"] == "step":
            attempts.add(event)
    windows = tuple(attempts.windows)
    logged = [index for index, window in enumerate(windows) if window.is_logged]
    return Curve(
        steps=tuple(windows[index].step for index in logged),
        losses=tuple(windows[index].loss for index in logged),
        tokens=_whole(_sums(windows, "step_tokens", logged, counts_before=True)),
        slots=_whole(_sums(windows, "step_slots", logged, counts_before=True)),
        seconds=_sums(windows, "step_s", logged, counts_before=False),
        redone=attempts.redone,
        attempts=attempts.count,
        windows=windows,
    )


class _Attempts:
    """Windows of one attempt after the other; a later one takes the place of what it does anew."""

    def __init__(self) -> None:
        self.windows: list[Window] = []
        self.redone = self.count = 0
        self._world_size: int | None = None
        self._after, self._is_first = 0, True

    def begin(self, event: Event) -> None:
        """All ranks begin again, after the step that the run goes on from."""
        self._world_size = as_whole(event.get("world_size")) or self._world_size
        self._after, self._is_first = step_of(event.get("resumed_from")) or 0, True
        self.count += 1
        self._cut(self._after)
        last = self.windows[-1] if self.windows else None
        if last is not None and last.step < self._after:
            # It died before it told of these steps, though they are saved: they took what those before them did.
            self.windows.append(_part(last, last.step, self._after))

    def add(self, event: Event) -> None:
        """A report of steps."""
        step = as_whole(event.get("step"))
        if step is None or step <= 0:
            return
        self._cut(step - 1)
        after = self.windows[-1].step if self.windows else min(self._after, step - 1)
        self.windows.append(_window(event, after, step, self._world_size, is_warm=not self._is_first))
        self._is_first = False

    def _cut(self, last: int) -> None:
        """Takes away what lies after a step; the part of a window that lies before it stays."""
        while self.windows and self.windows[-1].step > last:
            gone = self.windows.pop()
            self.redone += gone.step - max(gone.after, last)
            if gone.after < last:
                self.windows.append(_part(gone, gone.after, last))


def _part(window: Window, after: int, step: int) -> Window:
    """Some steps at the pace of a window, of whose losses nothing is known."""
    return window._replace(after=after, step=step, loss=None, is_logged=False, shares=None)


def _window(event: Event, after: int, step: int, world_size: int | None, *, is_warm: bool) -> Window:
    step_s, rate = as_number(event.get("step_s")), as_number(event.get("tokens_per_s_per_gpu"))
    slots, tokens = as_number(event.get("slots")), as_number(event.get("tokens"))
    if rate is not None and step_s is not None and world_size is not None:
        # The event counts tokens of its last step; the rate is that of all of them.
        tokens = rate * step_s * world_size
    return Window(
        after=after,
        step=step,
        loss=as_number(event.get("loss")),
        step_s=step_s,
        step_tokens=tokens if tokens is not None else slots,
        step_slots=slots,
        tokens_per_s_per_gpu=rate,
        mfu_pct=as_number(event.get("mfu_pct")),
        shares=shares_of(event),
        is_warm=is_warm,
    )


def _sums(
    windows: Sequence[Window], figure: str, logged: Sequence[int], *, counts_before: bool
) -> tuple[float, ...] | None:
    """What has come together by each logged window; steps before the first one count at its pace, or not."""
    total, sums = 0.0, []
    for index, window in enumerate(windows):
        value = getattr(window, figure)
        if value is None:
            return None
        first = 0 if index == 0 and counts_before else window.after
        total += value * (window.step - first)
        sums.append(total)
    return tuple(sums[index] for index in logged)


def _whole(sums: tuple[float, ...] | None) -> tuple[int, ...] | None:
    """Counts as what they are: a rate times its seconds is off by the last bits."""
    return None if sums is None else tuple(map(round, sums))


def loss_at(points: Points, place: float) -> float | None:
    """The loss at a place, linear between the two logged steps around it; None before the first and after the last."""
    index = bisect_left(points, place, key=lambda point: point[0])
    if index == len(points):
        # Sums of floats: the last place of one run may lie a hair after that of another.
        return points[-1][1] if points and place <= points[-1][0] * (1 + 1e-9) else None
    (right, loss) = points[index]
    if right == place:
        return loss
    if index == 0:
        return loss if place >= right * (1 - 1e-9) else None
    left, before = points[index - 1]
    return before + (loss - before) * (place - left) / (right - left)


def smoothed(points: Points, weight: float) -> Points:
    """Each loss as a mean that weighs what came before by `weight` from one logged step to the next (0: as it is).

    The sum of weights is made up for, so that the first losses are not drawn towards zero.
    """
    return tuple(_smoothed(points, weight)) if weight else points


def _smoothed(points: Points, weight: float) -> Iterator[tuple[float, float]]:
    mean, share = 0.0, 0.0
    for place, loss in points:
        mean, share = weight * mean + (1 - weight) * loss, weight * share + (1 - weight)
        yield place, mean / share

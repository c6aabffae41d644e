"""The losses of a run, however long, in as many points as are shown.

Knows how points become fewer: of each so many steps the newest stays, so that they are as far apart at the beginning as
at the end. Does not know events (fold) or how a curve is drawn.
"""

from __future__ import annotations

from dataclasses import dataclass

MOST_POINTS = 120


@dataclass(frozen=True, slots=True)
class Curve:
    """Steps in rising order with their losses, at most one of each `every` steps."""

    steps: tuple[int, ...] = ()
    losses: tuple[float, ...] = ()
    every: int = 1

    def with_point(self, step: int, loss: float) -> Curve:
        """The curve with a later step; it takes the place of one that is too near."""
        every = self.every
        while step // every >= MOST_POINTS:
            every *= 2
        kept = self if every == self.every else self._thinned(every)
        if kept.steps and kept.steps[-1] // every == step // every:
            return Curve((*kept.steps[:-1], step), (*kept.losses[:-1], loss), every)
        return Curve((*kept.steps, step), (*kept.losses, loss), every)

    def up_to(self, step: int) -> Curve:
        """The curve without what comes after a step."""
        if not self.steps or self.steps[-1] <= step:
            return self
        kept = sum(each <= step for each in self.steps)
        return Curve(self.steps[:kept], self.losses[:kept], self.every)

    def _thinned(self, every: int) -> Curve:
        newest = {step // every: (step, loss) for step, loss in zip(self.steps, self.losses, strict=True)}
        pairs = tuple(newest.values())
        return Curve(tuple(step for step, _ in pairs), tuple(loss for _, loss in pairs), every)

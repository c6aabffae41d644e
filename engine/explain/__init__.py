"""What every key of a config means for its run.

Puts together what others know: the value and its origin (sources), the text under its field (keys), what the plan
makes of it. Does not draw (titancli) and checks nothing (rules).
"""

from __future__ import annotations

from engine.explain.answer import Cost, Derived, Explained, Figure
from engine.keys import field_docs, field_types, value_of
from engine.rules import Report
from engine.sources import Loaded

__all__ = ["Cost", "Derived", "Explained", "Figure", "explained"]


def explained(loaded: Loaded, report: Report) -> tuple[Explained, ...]:
    """Every key of the config, in the order of its sections; without a plan only what needs none."""
    assert report.plan is None or not loaded.broken, "a config that did not parse has no plan"
    docs = field_docs()
    return tuple(
        Explained(
            key=key,
            value=value_of(loaded.config, key),
            origin=loaded.origins[key],
            doc=docs.get(key, ""),
            derived=None,
            ties="",
            cost=None,
            change="",
        )
        for key in field_types()
    )

"""What every key of a config means for its run.

Puts together what others know: the value and its origin (sources), the text under its field (keys), what the plan
makes of it and of its neighbours (one row a key, by family). Does not draw (titancli) and checks nothing (rules).
"""

from __future__ import annotations

from collections.abc import Collection

from engine.explain.answer import Cost, Derived, Explained, Figure
from engine.explain.batch import BATCH_ROWS
from engine.explain.cluster import CLUSTER_ROWS
from engine.explain.degrees import DEGREE_ROWS
from engine.explain.known import Known
from engine.explain.learning import LEARNING_ROWS, rates
from engine.explain.model import MODEL_ROWS
from engine.explain.offer import mended, offered
from engine.explain.row import Row, free
from engine.explain.switches import SWITCH_ROWS
from engine.features import FEATURES
from engine.hardware import Cluster
from engine.keys import field_docs, field_types, value_of
from engine.rules import Report
from engine.sources import Loaded, Origin

__all__ = ["ROWS", "Cost", "Derived", "Explained", "Figure", "explained", "rates"]

ROWS: dict[str, Row] = {
    **CLUSTER_ROWS,
    **MODEL_ROWS,
    **BATCH_ROWS,
    **DEGREE_ROWS,
    **SWITCH_ROWS,
    **LEARNING_ROWS,
}
"""What is said of each key beside its value and its text; of other keys there is no more to say."""

_NO_ROW = Row()
_DEFAULT = Origin("default")
_FEATURES = {feature.key: feature for feature in FEATURES}
_NO_COST = "none: it does not change the plan"


def explained(
    loaded: Loaded, report: Report, *, keys: Collection[str] | None = None, cluster: Cluster | None = None
) -> tuple[Explained, ...]:
    """Every key of the config, or those that are named, in the order of its sections; without a plan what needs none.

    `cluster` is the hardware that the report was made for, where that is not the config's own.
    """
    known = None if report.plan is None else Known(loaded, report, report.plan, cluster)
    return tuple(_explained(key, loaded, report, known) for key in field_types() if keys is None or key in keys)


def _explained(key: str, loaded: Loaded, report: Report, known: Known | None) -> Explained:
    row = ROWS.get(key, _NO_ROW)
    return Explained(
        key=key,
        value=value_of(loaded.config, key),
        origin=loaded.origins.get(key, _DEFAULT),
        doc=field_docs()[key],
        derived=row.derived(known) if known else None,
        figures=tuple(row.figures(known)) if known else (),
        ties=row.ties(known) if known else "",
        cost=_cost(key, row, known) if known else None,
        change=mended(key, report.findings) or (_change(key, row, known) if known else ""),
    )


def _idle(key: str, known: Known) -> str | None:
    feature = _FEATURES.get(key)
    return None if feature is None else feature.idle(known.facts)


def _cost(key: str, row: Row, known: Known) -> Cost | None:
    if row.cost is None:
        return free(_NO_COST)
    idle = _idle(key, known)
    return row.cost(known) if idle is None else free(f"none: {idle}")


def _change(key: str, row: Row, known: Known) -> str:
    return "" if _idle(key, known) is not None else offered(known, key, row.edits(known))

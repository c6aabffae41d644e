"""The one change that is offered for a key: what mends it, what makes it fit, what makes it faster, or what saves most.

Knows how neighbours are compared. Does not know which there are (each key's row).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from engine.errors import Finding
from engine.explain.known import Edit, Known, used_bytes
from engine.explain.words import setting, size
from engine.planner.plan import Plan
from engine.rules.fit import told
from engine.rules.training import GLOBAL_BATCH
from engine.rules.ways import DTYPE, fits, is_ample

# Below that a change is in the model's noise.
_FASTER_PCT = 2.0
# Of what a rank uses, and of what it has: less room is worth no change.
_SMALLER, _ROOM = 0.05, 0.01
# Keys whose values, `bfloat16` or true, round more than the others do.
_ROUNDING = (DTYPE, "training.mixed_precision_param", "training.mixed_precision_reduce")
_LOW_PRECISION = ("quantize.dense.float8.enable", "quantize.dense.mx.enable")


class _Change(NamedTuple):
    edit: Edit
    faster_pct: float | None
    bytes_more: int
    fits: bool
    other_batch: int | None


def mended(key: str, findings: Iterable[Finding]) -> str:
    """The fix of what a rule says about a key; empty where no rule does."""
    return next((finding.fix for finding in findings if finding.key == key), "")


def offered(known: Known, key: str, edits: Iterable[Edit]) -> str:
    """The best change of a key as an instruction with what it gains and costs; empty where none is worth it."""
    fit = known.report.fit
    if fit is not None:
        way = next((way for way in fit.ways if key in way.edit), None)
        if way is not None:
            return f"to make it fit: {told(known.facts, way)}"
    changes = [change for edit in edits if (change := _change(known, edit)) is not None]
    runs = fits(known.plan.memory)
    faster = [change for change in changes if runs and (change.faster_pct or 0.0) >= _FASTER_PCT]
    if faster:
        best = max(faster, key=lambda change: change.faster_pct or 0.0)
        return f"for speed: {setting(key, best.edit)}: {_words(best)}"
    least = max(_SMALLER * used_bytes(known.plan), _ROOM * known.plan.memory.capacity_bytes)
    smaller = [change for change in changes if -change.bytes_more >= least]
    if smaller:
        best = min(smaller, key=lambda change: (change.bytes_more, -(change.faster_pct or 0.0)))
        return f"for memory: {setting(key, best.edit)}: {_words(best)}"
    return ""


def _change(known: Known, edit: Edit) -> _Change | None:
    """What an edit changes; None where a rule refuses it, or where it would take room that is there now."""
    other = known.again(edit, strictly=True)
    if isinstance(other, str) or _is_worse(other, known.plan):
        return None
    before, after = known.plan.tokens_per_s_per_gpu, other.tokens_per_s_per_gpu
    faster = None if not before or after is None else 100 * (after / before - 1)
    batch = other.global_batch_size
    other_batch = None if batch == known.plan.global_batch_size or GLOBAL_BATCH in edit else batch
    return _Change(edit, faster, used_bytes(other) - used_bytes(known.plan), fits(other.memory), other_batch)


def _is_worse(other: Plan, plan: Plan) -> bool:
    """Whether it fits less well."""
    return (is_ample(plan.memory) and not is_ample(other.memory)) or (fits(plan.memory) and not fits(other.memory))


def _words(change: _Change) -> str:
    parts: list[str] = []
    if change.faster_pct is not None and abs(change.faster_pct) >= 0.5:
        parts.append(f"{abs(change.faster_pct):.0f} % {'faster' if change.faster_pct > 0 else 'slower'}")
    if change.bytes_more:
        parts.append(f"{size(abs(change.bytes_more))} a rank {'more' if change.bytes_more > 0 else 'less'}")
    if any(change.edit.get(key) == "bfloat16" for key in _ROUNDING) or any(map(change.edit.get, _LOW_PRECISION)):
        parts.append("less precise")
    if change.other_batch is not None:
        parts.append(f"a step then takes {change.other_batch:,} sequences")
    if not change.fits:
        parts.append("not enough alone")
    return ", ".join(parts) or "no difference"

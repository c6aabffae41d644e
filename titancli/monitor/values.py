"""Values of an event as they are meant, or None: a crash, or a newer engine, can leave any."""

from __future__ import annotations

_LARGEST = 1e18


def as_number(value: object) -> float | None:
    """A figure; None for what is none, and for one that no sum or mean survives (a crash can leave any bytes)."""
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return None
    return float(value) if abs(value) < _LARGEST else None


def as_whole(value: object) -> int | None:
    """A whole number; None for what is none."""
    is_whole = isinstance(value, int) and not isinstance(value, bool) and abs(value) < _LARGEST
    return value if is_whole and isinstance(value, int) else None


def as_text(value: object) -> str | None:
    """A text; None for what is none."""
    return value if isinstance(value, str) else None

"""Bytes, milliseconds and shares in the words of an explanation.

Knows units and signs. Does not know what is measured with them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine.hardware import GIB

# Less than a model of time can tell apart.
_LEAST_MS = 0.05


def size(size_bytes: float) -> str:
    """Bytes in the largest binary unit that leaves at least 1: `49.8 GiB`, `412 KiB`."""
    for name, unit in (("GiB", GIB), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if abs(size_bytes) >= unit:
            value = size_bytes / unit
            return f"{value:,.0f} {name}" if abs(value) >= 100 else f"{value:.1f} {name}"
    return f"{size_bytes:.0f} bytes"


def gib(size_bytes: float) -> float:
    """GiB with two decimals, or three digits below one."""
    value = size_bytes / GIB
    return round(value, 2) if value >= 1 else float(f"{value:.3g}")


def duration(milliseconds: float) -> str:
    """Milliseconds as `41.2 ms`, `0.82 ms`, or from a tenth of a second on as `0.41 s`, `32.7 s`."""
    if abs(milliseconds) >= 10_000:
        return f"{milliseconds / 1000:,.1f} s"
    if abs(milliseconds) >= 100:
        return f"{milliseconds / 1000:.2f} s"
    return f"{milliseconds:.1f} ms" if abs(milliseconds) >= 1 else f"{milliseconds:.2g} ms"


def difference(size_bytes: float | None, milliseconds: float | None) -> str:
    """A change of both with its signs: `+12.3 GiB, -41.0 ms`."""
    parts: list[str] = []
    if size_bytes:
        parts.append(("+" if size_bytes > 0 else "") + size(size_bytes))
    if milliseconds is not None and abs(milliseconds) >= _LEAST_MS:
        parts.append(("+" if milliseconds > 0 else "") + duration(milliseconds))
    return ", ".join(parts) or "no difference"


def many(count: int, thing: str, things: str = "") -> str:
    """`1 rank`, `64 ranks`."""
    return f"{count:,} {thing if count == 1 else things or thing + 's'}"


def product(factors: Mapping[str, int]) -> str:
    """Degrees as a product, without those of one rank: `tp 8 x pp 2`; `1` where none is left."""
    return " x ".join(f"{name} {degree}" for name, degree in factors.items() if degree > 1) or "1"


def setting(key: str, edit: Mapping[str, Any]) -> str:
    """An edit as an instruction that stands at `key`: `set it to 4 and local_batch_size to 16`."""
    words = [f"{'it' if name == key else name.rpartition('.')[2]} to {_value(value)}" for name, value in edit.items()]
    *most, last = words
    return f"set {', '.join(most)} and {last}" if most else f"set {last}"


def _value(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else "the default" if value is None else str(value)

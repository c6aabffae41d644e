"""Figures in words: bytes, counts and seconds as a person reads them.

Knows units and rounding. What is not known is `n/a`, with the reason where the caller has one;
it is never shown as 0.
"""

from __future__ import annotations

NOT_KNOWN = "n/a"


def memory(size_bytes: int | float | None, reason: str = "") -> str:
    """Bytes in the largest binary unit that leaves at least 1: `79.1 GiB`, `412 MiB`."""
    if size_bytes is None:
        return not_known(reason)
    size = float(size_bytes)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(size) < 1024 or unit == "TiB":
            break
        size /= 1024
    return f"{size:.0f} {unit}" if unit == "B" or abs(size) >= 100 else f"{size:.1f} {unit}"


def amount(count: int | float | None, reason: str = "") -> str:
    """A large count with its thousands, millions or billions: `405.85 B`, `2.03 M`, `950`."""
    if count is None:
        return not_known(reason)
    for size, unit in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e4, "k")):
        if count >= size:
            return f"{count / (size if unit != 'k' else 1e3):.2f} {unit}"
    return f"{count:,.0f}"


def rate(per_second: float | None, reason: str = "") -> str:
    """Tokens per second: three digits that count and thousands separated."""
    if per_second is None:
        return not_known(reason)
    return f"{per_second:,.0f}" if per_second >= 100 else f"{per_second:.3g}"


def loss(value: float | None, reason: str = "") -> str:
    """A loss with four decimals."""
    return not_known(reason) if value is None else f"{value:.4f}"


def percent(value: float | None, reason: str = "") -> str:
    """A percentage with one decimal."""
    return not_known(reason) if value is None else f"{value:.1f} %"


def duration(seconds: float | None, reason: str = "") -> str:
    """Seconds as `8.4 s`, `1 min 12 s`, `3 h 05 min`, `2 d 04 h`."""
    if seconds is None:
        return not_known(reason)
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    if whole < 86_400:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
    return f"{whole // 86_400} d {whole % 86_400 // 3600:02d} h"


def ranges(numbers: tuple[int, ...]) -> str:
    """Indices with their runs drawn together: `0-15,64-78`; `none` without any."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(f"{first}-{last}" if first != last else f"{first}" for first, last in runs) or "none"


def not_known(reason: str = "") -> str:
    """`n/a`, with the reason in brackets where there is one."""
    return f"{NOT_KNOWN} ({reason})" if reason else NOT_KNOWN


def many(count: int, thing: str) -> str:
    """`1 sequence`, `2,048 sequences`."""
    return f"{count:,} {thing}{'' if count == 1 else 's'}"

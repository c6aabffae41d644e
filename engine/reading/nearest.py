"""The known name that a misspelled word most likely means."""

from __future__ import annotations

from functools import cache


def nearest(word: str, names: tuple[str, ...], cutoff: float = 0.6) -> str | None:
    """The name that a misspelled word most likely means: letter case and separators count for nothing."""
    import difflib  # only a mistake needs it

    by_plain = {plain(name): name for name in reversed(names)}
    found = difflib.get_close_matches(plain(word), by_plain, n=1, cutoff=cutoff)
    return by_plain[found[0]] if found else None


@cache
def plain(word: str) -> str:
    """A name without letter case, underscores and hyphens."""
    return word.lower().replace("_", "").replace("-", "")

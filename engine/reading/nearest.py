"""The known name that a misspelled word most likely means."""

from __future__ import annotations

from functools import cache


def nearest(word: str, names: tuple[str, ...], cutoff: float = 0.6) -> str | None:
    """The name that a misspelled word most likely means: letter case and separators count for nothing."""
    import difflib  # only a mistake needs it

    matcher = difflib.SequenceMatcher(b=plain(word))

    def likeness(name: str) -> float:
        matcher.set_seq1(plain(name))
        return matcher.ratio()

    # Of names equally near the first: lists begin with what is usual.
    found = max(names, key=likeness, default=None)
    return found if found is not None and likeness(found) >= cutoff else None


@cache
def plain(word: str) -> str:
    """A name without letter case, underscores and hyphens."""
    return word.lower().replace("_", "").replace("-", "")

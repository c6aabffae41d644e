"""What runs are called beside each other: as short as tells them apart, and a mark of one letter for each.

Knows names of folders. Does not know what is in them.
"""

from __future__ import annotations

import re
import string
from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path

MARKS = string.ascii_uppercase + string.ascii_lowercase + string.digits
"""One for each run that can be compared at once, in their order."""
_BORDER = re.compile(r"[-_.+=/ ]")


def names_of(folders: Sequence[Path]) -> tuple[str, ...]:
    """A name for each folder: its own, with as many of the folders around it as make all of them different."""
    parts = [folder.resolve().parts for folder in folders]
    for depth in range(1, max(map(len, parts), default=1) + 1):
        names = tuple("/".join(each[-depth:]) for each in parts)
        if len(set(names)) == len(names):
            return names
    return tuple(str(folder) for folder in folders)


def shortened(names: Sequence[str]) -> tuple[str, tuple[str, ...], str]:
    """What all names begin with, what is left of each, and what all end with; cut only where words of a name end."""
    if len(names) < 2:
        return "", tuple(names), ""
    begin = _cut(_common(names))
    rest = [name.removeprefix(begin) for name in names]
    end = _cut(_common([name[::-1] for name in rest]))[::-1]
    left = [name.removesuffix(end) for name in rest]
    if not all(left):
        return begin, tuple(rest), ""
    return begin, tuple(left), end


def _common(names: Sequence[str]) -> str:
    """What all begin with, letter by letter."""
    alike = takewhile(lambda letters: len(set(letters)) == 1, zip(*names, strict=False))
    return "".join(letters[0] for letters in alike)


def _cut(common: str) -> str:
    """A common beginning as far as its last border between words."""
    borders = [match.end() for match in _BORDER.finditer(common)]
    return common[: borders[-1]] if borders else ""

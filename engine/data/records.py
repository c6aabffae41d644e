"""What a corpus is read as: one text a document, or why there is none at some place.

Knows places in files, and how much may be read. Does not know how any kind of file is read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from engine.errors import Finding


@dataclass(frozen=True, slots=True, kw_only=True)
class Unreadable:
    """A file, or a line of one, that holds no document. `byte_offset` counts from 0 in the file.

    `line` counts from 1, rows of a table too; None where the whole file is meant. `tolerated`: the corpus leaves such
    files out whatever the policy says.
    """

    file: str
    line: int | None
    byte_offset: int | None
    reason: str
    tolerated: bool = False

    @property
    def place(self) -> str:
        """Where in the file it is, in words."""
        # Rows of tables have no place in bytes.
        what = "the file" if self.line is None else f"{'row' if self.byte_offset is None else 'line'} {self.line}"
        return what if self.byte_offset is None else f"{what} (byte offset {self.byte_offset})"

    def finding(self) -> Finding:
        """What is wrong, for the policy that refuses it."""
        return Finding(
            rule="D204",
            severity="error",
            key="training.dataset_path",
            message=f"{self.place} of the corpus cannot be read: {self.reason}",
            fix='mend it, or leave out and count what cannot be read: data.on_bad_line = "skip"',
            file=self.file,
            line=self.line,
        )


Record: TypeAlias = str | Unreadable

MOST_BAD_KEPT = 10
"""Of what is left out of a corpus, the first are kept to be told."""


@dataclass(slots=True)
class Meter:
    """Counts the bytes that are read from files where no more than `most_bytes` may be.

    What lies across the end is cut there: a text loses the rest, a line is not handed on.
    """

    most_bytes: int | None = None
    read_bytes: int = 0

    @property
    def left(self) -> int:
        """Bytes that may still be read; -1 is all, as files understand it."""
        return -1 if self.most_bytes is None else self.most_bytes - self.read_bytes

"""What is shown while `titan data check` reads: one line on a screen, on stderr, and nothing elsewhere.

Knows how many documents and tokens were come by. Does not know what is read. While a large corpus is prepared, that has
the screen.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

from titancli import figures, report

if TYPE_CHECKING:
    from rich.progress import Progress

_EVERY_S = 0.2


class Tell:
    """Told of each document and of tokens; shows them now and then, where there is a screen."""

    def __init__(self, *, is_shown: bool) -> None:
        self._line = Line() if is_shown else None
        self._what, self._documents, self._tokens = "reading", 0, 0
        self._said_s = time.monotonic()

    def begin(self, what: str) -> None:
        """From now on it is this that goes on; nothing is shown until some of it is done."""
        self.close()
        self._what, self._documents, self._tokens = what, 0, 0

    def document(self) -> None:
        """One more."""
        self._documents += 1
        self._show()

    def tokens(self, count: int) -> None:
        """So many more."""
        self._tokens += count
        self._show()

    def close(self) -> None:
        """Takes the line off the screen."""
        if self._line is not None:
            self._line.close()

    def _show(self) -> None:
        if self._line is None or time.monotonic() - self._said_s < _EVERY_S:
            return
        self._said_s = time.monotonic()
        counts = [(self._documents, "document"), (self._tokens, "token")]
        said = ", ".join(figures.many(count, thing) for count, thing in counts if count)
        self._line.show(f"{self._what}: {said}")


class Line:
    """One line on stderr, there from the first word to `close`."""

    def __init__(self) -> None:
        self._screen: Progress | None = None

    def show(self, text: str) -> None:
        """Puts a text in it."""
        try:
            if self._screen is None:
                from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

                columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
                console = report.console(sys.stderr)
                self._screen = Progress(*columns, console=console, auto_refresh=False, transient=True)
                self._screen.add_task(text, total=None)
                self._screen.start()
            self._screen.update(self._screen.task_ids[0], description=text, refresh=True)
        except OSError:
            report.lose(sys.stderr)

    def close(self) -> None:
        if self._screen is not None:
            self._screen.stop()
            self._screen = None


@contextmanager
def telling() -> Iterator[Tell]:
    """Within the block, what is told shows on stderr, if that is a screen; gone when it is over."""
    with closing(Tell(is_shown=report.is_screen(sys.stderr))) as tell:
        yield tell

"""What the `titan` script runs first: the process made fit before anything else is imported.

Knows Ctrl-C and the three standard streams. Does not know any command.
"""

from __future__ import annotations

import os
import signal
import sys


def main() -> None:
    """Runs the command line of this process and ends it with the exit code."""
    own = signal.getsignal(signal.SIGINT)
    if own is signal.default_int_handler:
        # Ctrl-C in the middle of an import would show where in Python it struck.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    open_streams()
    from titancli.dispatch import main as run

    signal.signal(signal.SIGINT, own)
    run()


def open_streams() -> None:
    """Gives the process all three standard streams, which take every character.

    A stream that the caller has closed goes nowhere: else the next file that is opened would
    become it.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free
    sys.stdin = sys.stdin or os.fdopen(0)
    sys.stdout = sys.stdout or os.fdopen(1, "w")
    sys.stderr = sys.stderr or os.fdopen(2, "w")
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")

"""`python tied.py PARENT COMMAND...`: becomes a command that Linux kills when the process that started it dies.

A program of its own, of the standard library alone: what a process asks for between fork and exec must not meet the
threads of its parent. Does not know what the command is.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def become(parent: int, words: list[str]) -> None:
    """Asks for the signal, and replaces this process by the command."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            sys.exit(1)
    os.execvp(words[0], words)


if __name__ == "__main__":
    become(int(sys.argv[1]), sys.argv[2:])

"""How a process that torchrun started ends: at once.

Knows what is still to be written then. Does not know what the process did.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable
from typing import NoReturn

from engine.errors import EXIT_OK, EXIT_RUN_FAILED


def leave_after(main: Callable[[], int | None]) -> NoReturn:
    """Ends the process with the exit code of `main`, or with 1 where that raises, which is told in full."""
    try:
        code = main() or EXIT_OK
    except BaseException:  # noqa: BLE001 - told in full, and the exit code says that it failed
        traceback.print_exc()
        code = EXIT_RUN_FAILED
    leave(code)


def leave(code: int) -> NoReturn:
    """Ends the process at once.

    Everything is written by now. Taking the interpreter down as well aborts about one process in ten of torch
    2.13 with gloo ("terminate called without an active exception"), and may wait for other ranks with NCCL.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)

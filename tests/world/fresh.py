"""A function of a test file, called in a process of its own: one that has no group of ranks yet.

`fresh(function, **arguments)` gives what it returns. Fake process groups are for such processes: a
process has one default group, and names of groups are never used again.
"""

from __future__ import annotations

import inspect
import os
import pickle
import sys
from collections.abc import Callable
from typing import Any

from ready import module_of, ready


def fresh(function: Callable[..., Any], **arguments: Any) -> Any:
    """Calls a module-level function; its standard output goes to standard error."""
    job = pickle.dumps((inspect.getfile(function), function.__name__, arguments))
    environ = os.environ | {"OMP_NUM_THREADS": "1"}
    done = ready().run(__file__, "answer", given=job, environ=environ, timeout_s=240)
    assert done.returncode == 0, done.stderr
    return pickle.loads(done.out)


def answer() -> None:
    """Reads a job, does it, and writes what came of it."""
    with os.fdopen(os.dup(1), "wb") as answers:
        os.dup2(2, 1)
        file, name, arguments = pickle.load(sys.stdin.buffer)
        pickle.dump(getattr(module_of(file), name)(**arguments), answers)

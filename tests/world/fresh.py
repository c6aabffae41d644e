"""A function of a test file, called in a process of its own: one that has no group of ranks yet.

`fresh(function, **arguments)` gives what it returns. Fake process groups are for such processes: a
process has one default group, and names of groups are never used again.
"""

from __future__ import annotations

import importlib.util
import inspect
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from typing import Any


def fresh(function: Callable[..., Any], **arguments: Any) -> Any:
    """Calls a module-level function; its standard output goes to standard error."""
    job = pickle.dumps((inspect.getfile(function), function.__name__, arguments))
    path = os.pathsep.join([os.path.dirname(__file__), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, __file__],
        input=job,
        capture_output=True,
        timeout=240,
        check=False,
        env=os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr.decode()
    return pickle.loads(done.stdout)


def _main() -> None:
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    file, name, arguments = pickle.load(sys.stdin.buffer)
    spec = importlib.util.spec_from_file_location("sent", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["sent"] = module
    spec.loader.exec_module(module)
    pickle.dump(getattr(module, name)(**arguments), answers)


if __name__ == "__main__":
    _main()

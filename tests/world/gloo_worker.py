"""The process of a rank: reads its job, joins its group, calls the function, answers, and stays until all have.

The answer goes to what was standard output when the process began; whatever the job prints goes to
standard error.
"""

from __future__ import annotations

import os
import pickle
import sys
import traceback
import warnings
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from ready import module_of


def _call(rank: int, file: str, name: str, arguments: dict[str, Any], world_size: int, store_file: str) -> Any:
    os.environ["LOCAL_RANK"] = str(rank)
    store = dist.FileStore(store_file, world_size)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size, timeout=timedelta(seconds=60))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return getattr(module_of(file), name)(**arguments)


def main() -> None:
    """Does one job."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    job = pickle.load(sys.stdin.buffer)
    try:
        answer = (True, _call(*job))
    except BaseException:  # noqa: BLE001 - it travels to the test as text
        answer = (False, traceback.format_exc())
    pickle.dump(answer, answers)
    answers.flush()
    # Others may still be joining the group.
    sys.stdin.buffer.read()

"""One process of the pool: reads a job, joins its group, calls the function, answers; again and again.

Answers go to what was standard output when the process began; whatever the job prints goes to
standard error.
"""

from __future__ import annotations

import importlib.util
import os
import pickle
import sys
import traceback
import warnings
from datetime import timedelta
from functools import cache
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor.debug import _clear_sharding_prop_cache


@cache
def _module(file: str) -> ModuleType:
    name = "sent_" + str(abs(hash(file)))
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _call(file: str, name: str, arguments: dict[str, Any], rank: int, world_size: int, store_file: str) -> Any:
    os.environ["LOCAL_RANK"] = str(rank)
    store = dist.FileStore(store_file, world_size)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size, timeout=timedelta(seconds=60))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            return getattr(_module(file), name)(**arguments)
    finally:
        dist.destroy_process_group()
        # They keep a mesh of this job for an equal one of the next, whose groups may have other names.
        _clear_sharding_prop_cache()


def main() -> None:
    """Serves until its input ends."""
    torch.set_num_threads(1)
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    while True:
        try:
            job = pickle.load(sys.stdin.buffer)
        except EOFError:
            break
        try:
            answer = (True, _call(*job))
        except BaseException:  # noqa: BLE001 - it travels to the test as text
            answer = (False, traceback.format_exc())
        pickle.dump(answer, answers)
        answers.flush()
    os._exit(0)


if __name__ == "__main__":
    main()

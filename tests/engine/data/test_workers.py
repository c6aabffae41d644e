"""What is read ahead is what would have been read, and nothing of who read it is left behind."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from contextlib import closing

import numpy as np
import pytest

from engine.data.workers import DataWorkerFailed, ReadAhead

KEYS = {"training.seq_len": 16, "training.local_batch_size": 2, "training.global_batch_size": 4}


@pytest.fixture
def loader(loader_of, json_lines):
    path = json_lines("".join(f"{place:04d} " for place in range(300)))
    return loader_of(KEYS | {"training.dataset": "jsonl", "training.dataset_path": path, "data.document_mask": True})


def same(ours, theirs):
    return all(
        np.array_equal(getattr(mine, name), getattr(other, name))
        for mine, other in zip(ours, theirs, strict=True)
        for name in ("tokens_BS", "labels_BS", "positions_BS")
    )


def ahead(loader, **more):
    return closing(ReadAhead(loader, **{"first_step": 1, "last_step": 40, "workers": 0, "prefetch": 0, **more}))


@pytest.mark.parametrize(("workers", "prefetch"), [(0, 1), (0, 5), (1, 0), (2, 3), (3, 1)])
def test_what_is_read_ahead_is_what_would_have_been_read(loader, workers, prefetch):
    with ahead(loader, first_step=7, workers=workers, prefetch=prefetch) as source:
        assert all(same(source.batches(step), loader.batches(step)) for step in range(7, 41))


def test_without_masks_there_are_no_positions_from_a_worker(loader_of):
    with ahead(loader_of({"training.seq_len": 16}), workers=1) as source:
        assert source.batches(1)[0].positions_BS is None


def test_batches_that_were_taken_do_not_change_when_others_are_made(loader):
    with ahead(loader, workers=1, prefetch=1) as source:
        first = source.batches(1)
        for step in range(2, 6):
            source.batches(step)
        assert same(first, loader.batches(1))


def test_workers_end_where_the_data_does(loader_of, json_lines):
    keys = {"training.dataset": "jsonl", "training.dataset_path": json_lines("x" * 70), "data.repeat": False}
    finite = loader_of(keys | {"training.seq_len": 8})
    with ahead(finite, workers=2) as source:
        assert [source.batches(step) is None for step in range(1, 10)] == [False] * 8 + [True]
        assert source.end_message == finite.end_message


def test_a_worker_that_was_killed_is_told_and_not_waited_for(loader):
    with ahead(loader, workers=1, prefetch=1) as source:
        source.batches(1)
        (worker,) = source._maker._workers
        os.kill(worker.pid, signal.SIGKILL)
        with pytest.raises(DataWorkerFailed, match=r"signal 9 before it had read step \d.*data.num_workers"):
            [source.batches(step) for step in range(2, 9)]


def test_a_ctrl_c_that_reaches_a_worker_is_for_the_training_process(loader):
    with ahead(loader, workers=1, prefetch=1) as source:
        source.batches(1)
        (worker,) = source._maker._workers
        os.kill(worker.pid, signal.SIGINT)
        assert all(same(source.batches(step), loader.batches(step)) for step in range(2, 9))


def test_a_mixture_is_read_alike_by_workers(loader_of, json_lines):
    paths = {json_lines(name * 90, name=f"{name}.jsonl"): weight for name, weight in (("a", 1.0), ("b", 2.0))}
    mixed = loader_of(KEYS | {"training.dataset": "jsonl", "data.mixture": paths, "data.document_mask": True})
    with ahead(mixed, workers=2) as source:
        assert all(same(source.batches(step), mixed.batches(step)) for step in range(1, 9))


def test_what_a_worker_cannot_read_is_raised_with_its_step_and_its_own_words(loader):
    index = loader.index
    object.__setattr__(index, "sizes", (0,))
    with (
        ahead(loader, workers=1) as source,
        pytest.raises(DataWorkerFailed, match=r"step 1: \w+Error: .*\n.*Traceback"),
    ):
        source.batches(1)


def test_closing_leaves_no_process(loader):
    with ahead(loader, workers=2) as source:
        workers = source._maker._workers
    assert [worker.returncode for worker in workers] == [0, 0]


ORPHAN = """
import sys, json
from engine.config import Config
from engine.data.loader import Loader
from engine.data.workers import ReadAhead
from engine.keys import with_values
from engine.planner.plan import plan
config = with_values(Config(), {"cluster.gpu": "cpu", "cluster.gpus_per_node": 1, "training.seq_len": 64})
source = ReadAhead(Loader(config, plan(config), data_rank=0), first_step=1, last_step=9, workers=2, prefetch=0)
source.batches(1)
print(*(worker.pid for worker in source._maker._workers), flush=True)
sys.stdin.read()
"""


def test_c42_a_worker_dies_with_the_process_that_it_reads_for():
    with subprocess.Popen([sys.executable, "-c", ORPHAN], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as training:
        workers = [int(word) for word in training.stdout.readline().split()]
        ends = [os.pidfd_open(pid) for pid in workers]
        training.kill()
    for end in ends:
        assert select.select([end], [], [], 10.0)[0]
        os.close(end)


def test_a_worker_imports_no_torch():
    code = "import sys, engine.data.worker; print(sorted({'torch', 'tokenizers'} & sys.modules.keys()))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"

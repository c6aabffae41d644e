"""Batches made before they are asked for, by data workers or by a thread of this process.

Knows how steps are dealt to workers, in which order they come back, and how a worker is started, missed and ended. Does
not know how a batch is made (reader.py), nor what a step does with it.

A loader needs nothing but the number of a step, so any worker can make any step: the one after next is asked for while
the next is still being made, and what comes is equal bit for bit to what the training process would have made.
"""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from engine.data.batch import Batch
from engine.data.loader import Loader
from engine.data.reader import Reader
from engine.data.shared import Place, nameless, placed
from engine.data.undisturbed import WORKERS_IGNORE, deaf_from_the_start
from engine.data.worker import FAILED, LENGTH, OK, STEP, SharedStream, Slots, Task, taken

STEPS_A_WORKER = 2
"""Steps that are read ahead for each worker where data.prefetch does not say: one is made while one is waiting."""
_ENDS_WITHIN_S = 2.0
_OFTEN: dict[int, str] = {
    signal.SIGKILL: "; the system ends so who takes too much memory: set data.num_workers or data.prefetch lower",
    signal.SIGBUS: "; that comes of a file of the corpus that was cut short while it was read, or of a failing disk",
}
"""What a signal often means."""


class DataWorkerFailed(RuntimeError):
    """What a data worker could not do, in its own words; or that it ended without being told to."""


class ReadAhead:
    """A loader's batches, `prefetch` steps before they are asked for; steps are asked for one after the other.

    `workers` processes make them, or with 0 a thread. `close` ends both; nothing of them outlives this process.
    """

    def __init__(self, loader: Loader, *, first_step: int, last_step: int, workers: int, prefetch: int) -> None:
        self.loader = loader
        available = loader.steps_available
        last = last_step if available is None else min(last_step, available)
        ahead = prefetch or STEPS_A_WORKER * workers
        assert ahead > 0, "a loader that reads nothing ahead is its own source"
        self._maker: _Workers | _Thread
        if workers:
            self._maker = _Workers(loader.reader, workers=workers, ahead=ahead)
        else:
            self._maker = _Thread(loader.reader)
        self._next, self._asked, self._last, self._ahead = first_step, first_step, last, ahead
        self._ask()

    @property
    def end_message(self) -> str:
        """Why there are no more batches, for people."""
        return self.loader.end_message

    def batches(self, step: int) -> list[Batch] | None:
        """The loader's own answer for the next step; DataWorkerFailed where the worker of that step is gone."""
        if step > self._last:
            return self.loader.batches(step)
        assert step == self._next, f"step {self._next} comes before step {step}"
        batches = self._maker.take(step)
        self._next += 1
        self._ask()
        return batches

    def close(self) -> None:
        """Ends what reads ahead, and waits for its end."""
        self._maker.close()

    def _ask(self) -> None:
        while self._asked <= self._last and self._asked < self._next + self._ahead:
            self._maker.ask(self._asked)
            self._asked += 1


class _Thread:
    """Makes steps in one thread of this process, in the order in which they are asked for."""

    def __init__(self, reader: Reader) -> None:
        self._reader, self._made = reader, deque[tuple[int, Future[list[Batch]]]]()
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="data ahead")

    def ask(self, step: int) -> None:
        """Has a step made."""
        self._made.append((step, self._pool.submit(self._reader.batches, step)))

    def take(self, step: int) -> list[Batch]:
        """The step that was asked for first of those not taken yet, which is this one."""
        asked, batches = self._made.popleft()
        assert asked == step, f"step {asked} comes before step {step}"
        return batches.result()

    def close(self) -> None:
        """Leaves what was not begun."""
        self._pool.shutdown(cancel_futures=True)


class _Workers:
    """Processes that make steps, each every n-th of them."""

    def __init__(self, reader: Reader, *, workers: int, ahead: int) -> None:
        index = reader.index
        slots = Slots(
            handle=nameless(0),
            count=ahead,
            arrays=3 if reader.document_mask else 2,
            accumulation_steps=index.accumulation_steps,
            local_batch=index.local_batch,
            seq_len=reader.seq_len,
        )
        os.ftruncate(slots.handle, slots.size_bytes)
        streams = tuple(
            SharedStream(
                pieces=tuple(placed(piece) for piece in stream.pieces),
                starts=placed(stream.starts),
                documents=stream.documents,
            )
            for stream in reader.streams
        )
        task = Task(
            index=index,
            streams=streams,
            data_rank=reader.data_rank,
            seq_len=reader.seq_len,
            document_mask=reader.document_mask,
            slots=slots,
        )
        places = [place for stream in streams for place in (*stream.pieces, stream.starts)]
        handles = [slots.handle, *_handles(places)]
        self._slots = slots.open()
        self._workers = [_start(task, handles) for _ in range(workers)]
        for handle in handles:
            os.close(handle)

    def ask(self, step: int) -> None:
        """Has the worker of a step make it."""
        worker = self._worker(step)
        try:
            _write(worker, STEP.pack(step))
        except BrokenPipeError:
            # It is gone, which is told once this step is to be taken.
            return

    def take(self, step: int) -> list[Batch]:
        """The batches of a step, waited for."""
        worker = self._worker(step)
        assert worker.stdout is not None, "a worker answers"
        answer = worker.stdout.read(1)
        if answer == OK:
            return taken(self._slots[step % len(self._slots)])
        if answer == FAILED:
            (length,) = LENGTH.unpack(worker.stdout.read(LENGTH.size))
            kind, words, trace = pickle.loads(worker.stdout.read(length))
            raise DataWorkerFailed(f"a data worker could not read step {step}: {kind}: {words}\n{trace}")
        raise DataWorkerFailed(_gone(worker, step))

    def close(self) -> None:
        """Ends the workers: their input ends, and one that does not heed that is killed."""
        for worker in self._workers:
            assert worker.stdin is not None, "a worker is asked"
            with suppress(BrokenPipeError):
                worker.stdin.close()
        for worker in self._workers:
            try:
                worker.wait(_ENDS_WITHIN_S)
            except subprocess.TimeoutExpired:
                worker.kill()
                worker.wait()
            assert worker.stdout is not None, "a worker answers"
            worker.stdout.close()

    def _worker(self, step: int) -> subprocess.Popen[bytes]:
        return self._workers[step % len(self._workers)]


def _handles(places: Iterable[Place]) -> list[int]:
    return [place.handle for place in places if place.handle is not None]


def _start(task: Task, handles: list[int]) -> subprocess.Popen[bytes]:
    """A worker that knows its task; it has the descriptors, and this process may close its own."""
    import engine

    # A worker finds titan where this process has, and takes no core from the others for numpy.
    found = [str(Path(engine.__path__[0]).parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    with deaf_from_the_start(*WORKERS_IGNORE):
        worker = subprocess.Popen(
            [sys.executable, "-P", "-m", "engine.data.worker", str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=handles,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(found), "OMP_NUM_THREADS": "1"},
        )
    told = pickle.dumps(task)
    with suppress(BrokenPipeError):
        _write(worker, LENGTH.pack(len(told)) + told)
    return worker


def _write(worker: subprocess.Popen[bytes], words: bytes) -> None:
    assert worker.stdin is not None, "a worker is asked"
    worker.stdin.write(words)
    worker.stdin.flush()


def _gone(worker: subprocess.Popen[bytes], step: int) -> str:
    """What is known of a worker that answers no more."""
    code = worker.wait()
    how = f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
    return f"data worker {worker.pid} {how} before it had read step {step}{_OFTEN.get(-code, '')}"

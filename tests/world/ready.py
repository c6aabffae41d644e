"""Processes that have torch and the engine imported when they begin.

A process imports them once and then forks itself for every piece of work: a copy takes milliseconds, an import three
seconds of a processor. Knows what a copy is given (its standard streams, variables and folder) and how it ended.
Does not know the work. It computes nothing itself, so that it has no thread and no group of ranks when it forks.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib.util
import os
import pickle
import runpy
import selectors
import signal
import socket
import subprocess
import sys
import traceback
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from tempfile import TemporaryFile
from typing import Any, NoReturn

# Unix sockets of Linux take messages of about 200 KiB; what is larger goes through standard input.
_LARGEST_REQUEST = 1 << 18


@dataclass(frozen=True)
class Done:
    """How a process ended, and what it wrote; a negative code is that of a signal, as in subprocess."""

    returncode: int
    out: bytes
    err: bytes

    @property
    def stdout(self) -> str:
        """As text."""
        return self.out.decode()

    @property
    def stderr(self) -> str:
        """As text."""
        return self.err.decode()


@dataclass
class Copy:
    """A process of its own."""

    pid: int
    _told: socket.socket = field(repr=False)
    _code: int | None = None

    def kill(self) -> None:
        """Ends it, where it has not ended."""
        if self._code is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    def wait(self, timeout_s: float | None = None) -> int:
        """Its exit code; TimeoutError where it has not ended by then."""
        if self._code is None:
            self._told.settimeout(timeout_s)
            self._code = int(_said(self._told))
            self._told.close()
        return self._code


class Ready:
    """The process that forks. It ends with this one."""

    def __init__(self) -> None:
        # One message is one request.
        self._requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, __file__, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                env=_without_titan(os.environ) | {"OMP_NUM_THREADS": "1"},
            )

    def start(
        self, file: str, name: str, *words: Any, streams: tuple[int, int, int], environ: Mapping[str, str]
    ) -> Copy:
        """Calls a function of a file in a copy, which gets these standard streams and variables, and this folder."""
        told, status = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with status:
            request = pickle.dumps((dict(environ), os.getcwd(), file, name, words))
            socket.send_fds(self._requests, [request], [*streams, status.fileno()])
        return Copy(int(_said(told)), told)

    def run(
        self,
        file: str,
        name: str,
        *words: Any,
        timeout_s: float,
        environ: Mapping[str, str],
        given: bytes = b"",
    ) -> Done:
        """As `start`, and waits for its end; `given` is its standard input."""
        with TemporaryFile() as stdin, TemporaryFile() as out, TemporaryFile() as err:
            stdin.write(given)
            stdin.seek(0)
            streams = (stdin.fileno(), out.fileno(), err.fileno())
            copy = self.start(file, name, *words, streams=streams, environ=environ)
            try:
                code = copy.wait(timeout_s)
            except BaseException:
                copy.kill()
                raise
            out.seek(0)
            err.seek(0)
            return Done(code, out.read(), err.read())

    def close(self) -> None:
        """Ends the process that forks, and none of its copies."""
        self._requests.close()
        self._process.wait()


def _said(told: socket.socket) -> bytes:
    if not (said := told.recv(16)):
        raise ChildProcessError("the process that forks has ended")
    return said


def _without_titan(environ: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environ.items() if not name.startswith("TITAN_")}


@cache
def ready(which: int = 0) -> Ready:
    """The process that forks of this number. Copies of two have two orders of sets, as ranks of a launch have."""
    del which
    made = Ready()
    atexit.register(made.close)
    return made


def module_of(file: str) -> Any:
    """A file as a module, each once."""
    name = f"sent_{abs(hash(file))}"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, file)
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


def as_module(name: str, *words: str) -> None:
    """What `python -m name words` does."""
    sys.argv = [name, *words]
    runpy.run_module(name, run_name="__main__", alter_sys=True)


def _import_all() -> None:
    import pytest  # noqa: F401 - test files import it
    import torch
    import torch.distributed.tensor.debug

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        import engine.dryrun
        import engine.loop  # noqa: F401

    torch.set_num_threads(1)
    # What is there by now is never looked at again: pages stay shared.
    gc.collect()
    gc.freeze()


_Job = tuple[str, str, Sequence[Any]]


class _Forking:
    """The process that forks, from inside: requests come in, statuses go out."""

    def __init__(self, requests: socket.socket) -> None:
        self._requests = requests
        self._statuses: dict[int, socket.socket] = {}
        self._ends, self._wakeup = socket.socketpair()
        for end in (self._ends, self._wakeup):
            end.setblocking(False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        # Ctrl-C is for whoever runs the tests, and this process ends with that one.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.set_wakeup_fd(self._wakeup.fileno(), warn_on_full_buffer=False)

    def until_asked(self) -> _Job | None:
        """Serves; comes back in a copy with its job, and in the process that forks, with none, when it is to end."""
        with selectors.DefaultSelector() as selector:
            for end in (self._requests, self._ends):
                selector.register(end, selectors.EVENT_READ)
            while True:
                for key, _ in selector.select():
                    if key.fileobj is self._ends:
                        self._reap()
                        continue
                    request, handles, _, _ = socket.recv_fds(self._requests, _LARGEST_REQUEST, 4)
                    if not request:
                        return None
                    if not self._fork(handles):
                        return _job(request)

    def _fork(self, handles: list[int]) -> int:
        """The copy's process id; in the copy 0, and only what it was given is open there."""
        *streams, status = handles
        pid = os.fork()
        if pid:
            for each in streams:
                os.close(each)
            self._statuses[pid] = socket.socket(fileno=status)
            self._statuses[pid].send(str(pid).encode())
            return pid
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for other in (self._requests, self._ends, self._wakeup, *self._statuses.values()):
            other.close()
        for number, each in enumerate(streams):
            os.dup2(each, number)
            os.close(each)
        os.close(status)
        return 0

    def _reap(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while self._ends.recv(64):
                pass
        while self._statuses:
            pid, how = os.waitpid(-1, os.WNOHANG)
            if not pid:
                break
            with self._statuses.pop(pid) as status, contextlib.suppress(BrokenPipeError):
                status.send(str(os.waitstatus_to_exitcode(how)).encode())


def _job(request: bytes) -> _Job:
    environ, folder, file, name, words = pickle.loads(request)
    os.environ.clear()
    os.environ.update(environ)
    os.chdir(folder)
    return file, name, words


def _do(file: str, name: str, words: Sequence[Any]) -> NoReturn:
    """The job of a copy, and its end: nothing of the interpreter is taken down, which gloo does not always survive."""
    code = 0
    try:
        getattr(module_of(file), name)(*words)
    except SystemExit as asked:
        code = asked.code if isinstance(asked.code, int) else int(asked.code is not None)
    except BaseException:  # noqa: BLE001 - it is told, and the exit code says that it failed
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def main() -> None:
    """Serves whoever holds the other end of the socket that is named."""
    _import_all()
    job = _Forking(socket.socket(fileno=int(sys.argv[1]))).until_asked()
    if job is not None:
        _do(*job)


if __name__ == "__main__":
    main()

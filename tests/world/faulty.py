"""Real launches in which something is made to go wrong, and what can be seen of them from outside.

Knows a run by its processes (each carries a variable of its own in its environment), its exit code, its stderr and
its folder. Does not know which faults there are (tests/bench/faults.py), nor titan's code beyond its events.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from engine.checkpoint.committed import MANIFEST, checkpoints_in, step_folder
from engine.events import Event, event_file, read_new

TITAN = (sys.executable, "-P", "-c", "import sys; sys.argv[0] = 'titan'; from titancli.start import main; main()")
PLANTED = Path(__file__).with_name("planted")
_MARK = "FAULT_RUN"
_TICK_S = 0.004
_TAIL_LINES = 20

STEPS, INTERVAL = 24, 4
CONFIG = f"""\
[job]
name = "x"

[cluster]
gpu = "cpu"
nodes = 1
gpus_per_node = 2

[model]
name = "llama3"
flavor = "debugmodel"

[model.shape]
dim = 96
n_layers = 3
n_heads = 6
n_kv_heads = 2
ffn_dim = 256
vocab_size = 272

[training]
dataset = "text"
dataset_path = "corpus"
seq_len = 64
local_batch_size = 4
steps = {STEPS}
mixed_precision_param = "float32"

[optimizer]
lr = 2e-3

[lr_scheduler]
warmup_steps = 2

[data]
tokenizer = "bytes"

[metrics]
log_freq = 1

[checkpoint]
enable = true
interval = {INTERVAL}
keep_latest_k = 0

[comm]
train_timeout_seconds = 15
save_timeout_seconds = 15
init_timeout_seconds = 30

[launch]
grace_seconds = 20
"""


def write_config(folder: Path) -> None:
    """A config of two processes and its corpus, made of numbers: the same on every machine."""
    (folder / "run.toml").write_text(CONFIG, "utf-8")
    (folder / "corpus").mkdir()
    words = ("".join(chr(97 + (number * k) % 26) for k in range(1, 9)) for number in range(12_000))
    (folder / "corpus" / "words.txt").write_text(" ".join(words), "utf-8")


class Launch:
    """`titan launch run.toml` in a folder, as a process of its own whose descendants can all be found."""

    def __init__(
        self,
        folder: Path,
        words: Sequence[str] = (),
        *,
        faults: Sequence[Mapping[str, Any]] = (),
        dump_folder: Path | None = None,
        name: str = "x",
        before: Callable[[], None] | None = None,
        terminal: int | None = None,
    ) -> None:
        self.folder, self.mark = folder, uuid.uuid4().hex
        self.run = (dump_folder or folder / "runs") / name
        where = () if dump_folder is None else ("--job.dump_folder", str(dump_folder))
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("TITAN_", "FAULT"))}
        path = os.pathsep.join([str(PLANTED), *filter(None, [kept.get("PYTHONPATH")])])
        environ = kept | {_MARK: self.mark, "PYTHONPATH": path, "FAULT": json.dumps(list(faults))}
        self._files = [folder / f"{self.mark[:8]}.{stream}" for stream in ("out", "err")]
        with self._files[0].open("wb") as out, self._files[1].open("wb") as err:
            streams: tuple[Any, Any, Any] = (subprocess.DEVNULL, out, err)
            self.process = subprocess.Popen(
                [*TITAN, "launch", "run.toml", "--name", name, *where, *words],
                cwd=folder,
                env=environ,
                stdin=streams[0] if terminal is None else terminal,
                stdout=streams[1] if terminal is None else terminal,
                stderr=streams[2] if terminal is None else terminal,
                start_new_session=True,
                preexec_fn=lambda: _begin(before),
            )
        self.began_s = time.monotonic()

    @property
    def out(self) -> str:
        """What it has written to stdout."""
        return self._files[0].read_text("utf-8", "replace")

    @property
    def err(self) -> str:
        """What it has written to stderr."""
        return self._files[1].read_text("utf-8", "replace")

    @property
    def tail(self) -> str:
        """The last lines of stderr."""
        return "\n".join(self.err.splitlines()[-_TAIL_LINES:])

    def wait(self, limit_s: float) -> int | None:
        """The exit code as a shell tells it (128 + n after signal n); None where it is still there after the limit."""
        try:
            code = self.process.wait(limit_s)
        except subprocess.TimeoutExpired:
            return None
        return code if code >= 0 else 128 - code

    def alive(self) -> dict[int, list[str]]:
        """Every living process of this launch, with its command."""
        return dict(_marked(f"{_MARK}={self.mark}".encode()))

    def left(self, limit_s: float) -> dict[int, list[str]]:
        """What is still alive when all should be gone by a time."""
        deadline_s = time.monotonic() + limit_s
        while (found := self.alive()) and time.monotonic() < deadline_s:
            time.sleep(0.05)
        return found

    def workers(self) -> dict[int, int]:
        """Process ids of the ranks that live now."""
        found: dict[int, int] = {}
        for pid, command in self.alive().items():
            rank = _variable(pid, "RANK")
            if command[-3:-1] == ["-m", "engine"] and "torch.distributed.run" not in command and rank:
                found[int(rank)] = pid
        return found

    def torchrun(self) -> int | None:
        """The process id of torchrun, once it is there."""
        return next((pid for pid, words in self.alive().items() if "torch.distributed.run" in words), None)

    def events(self, rank: int = 0) -> list[Event]:
        """What a rank has written until now, in all attempts."""
        return read_new(event_file(self.run, rank))[0]

    def steps(self) -> list[tuple[int, float | None]]:
        """Every step that was ever logged, with its loss."""
        return [(event["step"], event["loss"]) for event in self.events() if event["kind"] == "step"]

    def until(self, true: Callable[[], object], limit_s: float = 120) -> bool:
        """Whether something came to pass while the launcher or, of a detached run, any process lived."""
        deadline_s = time.monotonic() + limit_s
        while not true():
            is_over = self.process.poll() is not None and not self.alive()
            if is_over or time.monotonic() > deadline_s:
                return bool(true())
            time.sleep(_TICK_S)
        return True

    def has_written(self, kind: str, **fields: Any) -> Callable[[], bool]:
        """Whether rank 0 has written such an event; reads on from where it stopped."""
        offset, found = 0, False

        def look() -> bool:
            nonlocal offset, found
            events, offset = read_new(event_file(self.run, 0), offset)
            found = found or any(_matches(event, kind, fields) for event in events)
            return found

        return look

    def committed(self) -> dict[int, dict[str, str]]:
        """Digests of the files of every committed checkpoint, by step."""
        folder = self.run / "checkpoints"
        if not folder.is_dir():
            return {}
        return {step: _digests(folder / step_folder(step)) for step in checkpoints_in(folder).committed}

    def kill(self) -> None:
        """Ends whatever is left of this launch."""
        while found := self.alive():
            for pid in found:
                _send(pid, signal.SIGKILL)
            if self.process.poll() is None:
                self.process.wait()
            time.sleep(0.05)
        self.process.wait()


def _begin(before: Callable[[], None] | None) -> None:
    """In the child: signals that whoever started the tests ignores (nohup, a shell's background) are listened to."""
    for number in (signal.SIGHUP, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    if before is not None:
        before()


def _matches(event: Event, kind: str, fields: Mapping[str, Any]) -> bool:
    return event["kind"] == kind and all(event.get(name) == value for name, value in fields.items())


def _marked(mark: bytes) -> Iterator[tuple[int, list[str]]]:
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            environ = Path("/proc", entry, "environ").read_bytes().split(b"\0")
            command = Path("/proc", entry, "cmdline").read_bytes().decode("utf-8", "replace").split("\0")[:-1]
        except OSError:
            continue
        if mark in environ and int(entry) != os.getpid():
            yield int(entry), command


def _variable(pid: int, name: str) -> str | None:
    try:
        environ = Path("/proc", str(pid), "environ").read_text("utf-8", "replace").split("\0")
    except OSError:
        return None
    return next((word.partition("=")[2] for word in environ if word.startswith(f"{name}=")), None)


def _digests(folder: Path) -> dict[str, str]:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def _send(pid: int, number: signal.Signals) -> bool:
    """Whether a process was there to be sent a signal."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


def send(pid: int | None, number: signal.Signals) -> bool:
    """Sends a signal; whether the process was there."""
    return pid is not None and _send(pid, number)


def manifest_is_valid(checkpoint: Path) -> bool:
    """Whether a manifest is one JSON object."""
    try:
        return isinstance(json.loads((checkpoint / MANIFEST).read_bytes()), dict)
    except (OSError, ValueError):
        return False


def named_log(text: str) -> str | None:
    """The log that an error points to."""
    found = re.search(r"^\s*--> (\S+\.log)", text, re.MULTILINE)
    return found[1] if found else None

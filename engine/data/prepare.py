"""A corpus becomes a prepared folder: once, in parallel, and from where it was when it is interrupted.

Knows the order: the parts that are whole already, the others through workers, and then the index, which is renamed in
last. Does not know how a part becomes tokens (prepare_part.py), how files look (prepared.py), nor who asks for it.

What is written depends on the corpus, the tokenizer and the policy alone: not on the number of workers, nor on how
often it was interrupted. Each part that is whole has `parts/NNNNN.json`, written after its files; a preparation that
begins keeps those whose files and meaning are still the same. One process prepares a folder at a time: another waits.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from engine.data.folder_lock import alone_with
from engine.data.prepare_part import PARTIAL, PartDone, ids_file, starts_file, written
from engine.data.prepare_pool import Died, worked_through
from engine.data.prepare_task import Answer, Progress, Task, Work
from engine.data.prepared import (
    INDEX,
    PARTS,
    SOURCES,
    STARTS,
    PreparedIndex,
    is_prepared,
    open_prepared,
    read_index,
)
from engine.data.prepared_files import joined, refuse_nothing
from engine.data.records import MOST_BAD_KEPT, Unreadable
from engine.data.refused import unreadable_findings
from engine.data.room import MAKE_ROOM, require_room, require_room_for_the_rest
from engine.data.survey import Survey, source_file
from engine.errors import Finding, TitanError

_OURS = (INDEX, STARTS, SOURCES, PARTS)


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """How far a preparation is. `read_bytes` of `bytes` of the corpus; `waits_for`: who prepares the folder already."""

    parts_done: int = 0
    parts: int = 0
    read_bytes: int = 0
    bytes: int = 0
    tokens: int = 0
    waits_for: str = ""


Told = Callable[[State], None]
"""Called with how far it is, at least once a second."""


def workers_here() -> int:
    """As many as this process may use cores."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def prepare(
    corpus: Survey, folder: Path, *, workers: int, force: bool = False, told: Told = lambda _: None
) -> PreparedIndex:
    """Prepares a corpus in a folder, or finds that it is there already; `force` makes anew whatever tokens are there.

    Raises TitanError: D204 for records that cannot be read, D205 where there is no text, D225 where the folder holds
    something else, D226 where the disk has no room, D227 where a worker or a file failed. Nothing is committed then,
    and all parts that are whole stay for the next call. KeyboardInterrupt leaves as much.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with alone_with(folder, lambda who: told(State(waits_for=who))):
            found = _standing(corpus, folder, force=force)
            return found or _Preparation(corpus, folder, told).made(workers)
    except OSError as trouble:
        raise TitanError(_trouble(trouble, folder, corpus.key)) from trouble


def _standing(corpus: Survey, folder: Path, *, force: bool) -> PreparedIndex | None:
    """The index of a folder that holds this corpus already; clears one that may be replaced; else D225."""
    if is_prepared(folder):
        try:
            index = read_index(folder, key=corpus.key)
            same = replace(index.made_from, path="") == replace(corpus.made_from, path="")
            if same and index.tokenizer.is_same(corpus.tokenizer) and not force:
                open_prepared(folder, key=corpus.key)
                # Left by one that was killed right after its last word.
                shutil.rmtree(folder / PARTS, ignore_errors=True)
                return index
        except TitanError:
            if not force:
                raise
        if not force:
            message = f"{folder} holds tokens that were made of other files, or otherwise"
            raise TitanError(_taken(message, "name another folder, or replace them with --force"))
        _clear(folder)
    strange = [name for name in sorted(os.listdir(folder)) if not _is_ours(name)]
    if strange:
        message = f"{folder} holds {strange[0]}, which no preparation has written"
        raise TitanError(_taken(message, "name a folder that is empty or not there"))
    return None


def _is_ours(name: str) -> bool:
    return name in _OURS or name.startswith(".") or (name.startswith("tokens-") and name.endswith(".bin"))


def _clear(folder: Path) -> None:
    # The index first: what is left without it is no prepared folder.
    (folder / INDEX).unlink(missing_ok=True)
    for name in os.listdir(folder):
        if _is_ours(name) and name not in (PARTS, ".lock"):
            (folder / name).unlink(missing_ok=True)


class _Preparation:
    """One run through the parts of a corpus, within the lock of its folder."""

    def __init__(self, corpus: Survey, folder: Path, told: Told) -> None:
        self._corpus, self._folder, self._told = corpus, folder, told
        self._fingerprints = corpus.fingerprints
        self._done: dict[int, PartDone] = {}
        self._going: dict[int, Progress] = {}
        self._refused: dict[int, tuple[Unreadable, ...]] = {}

    def made(self, workers: int) -> PreparedIndex:
        """All parts and then the index."""
        (self._folder / PARTS).mkdir(exist_ok=True)
        self._clear_partials()
        # First of all: what comes to no end can be known by it too.
        with written(self._folder / SOURCES) as file:
            sources = [asdict(each) for each in self._corpus.files]
            file.write(json.dumps({"path": self._corpus.made_from.path, "files": sources}, indent=0).encode())
        self._done = {n: done for n in range(len(self._corpus.parts)) if (done := self._kept(n)) is not None}
        self._tell()
        tasks = [Task(number=n, part=part) for n, part in enumerate(self._corpus.parts) if n not in self._done]
        try:
            self._work_through(tasks, workers)
        finally:
            # What was being written when it was interrupted.
            self._clear_partials()
        if self._refused:
            raise TitanError(*self._refusals())
        changed = [file.file for file in self._corpus.files if source_file(file.file) != file]
        if changed:
            raise TitanError(_failed(self._corpus.key, f"{changed[0]} was changed while it was read", "call it again"))
        return self._commit()

    def _clear_partials(self) -> None:
        for place in (self._folder, self._folder / PARTS):
            for left in place.glob(f".*{PARTIAL}"):
                left.unlink(missing_ok=True)

    def _work_through(self, tasks: list[Task], workers: int) -> None:
        work = Work(
            tokenizer=self._corpus.tokenizer.name,
            folder=self._folder.absolute(),
            skip_unreadable=self._corpus.skips_unreadable,
        )
        if not tasks:
            return
        if not self._done:
            require_room(self._corpus, self._folder, work.encoder)
        with closing(worked_through(work, tasks, workers=workers)) as told:
            for each in told:
                if isinstance(each, Progress):
                    self._going[each.number] = each
                elif isinstance(each, Died):
                    raise TitanError(self._died(each))
                elif each is not None:
                    self._take(each)
                self._tell()
                # Parts before the first that is refused may hold what is to be named first.
                if self._refused and not any(n not in self._done for n in range(min(self._refused))):
                    return

    def _take(self, answer: Answer) -> None:
        """Writes down what became of a part, or raises why it could not be made."""
        number = answer.number
        self._going.pop(number, None)
        if answer.failure is not None:
            if isinstance(answer.failure, (TitanError, OSError)):
                raise answer.failure
            message = f"{self._corpus.parts[number].name} cannot be prepared: {answer.failure}"
            raise TitanError(_failed(self._corpus.key, message, answer.trace.strip()))
        if answer.done is None:
            self._refused[number] = answer.refused
            return
        with written(self._note(number)) as file:
            note = {"fingerprint": self._fingerprints[number], **asdict(answer.done)}
            file.write(json.dumps(note).encode())
        self._done[number] = answer.done
        going = sum(each.tokens for each in self._going.values())
        require_room_for_the_rest(self._corpus, self._folder, self._done, tokens_going=going)

    def _kept(self, number: int) -> PartDone | None:
        """What an earlier call has made of a part, if it is still whole."""
        try:
            note = json.loads(self._note(number).read_bytes())
            if note.pop("fingerprint") != self._fingerprints[number]:
                return None
            done = PartDone(**note | {"bad": tuple(Unreadable(**bad) for bad in note["bad"])})
            sizes = [(starts_file(self._folder, number), 8 * done.documents)]
            shard = self._corpus.parts[number].shard(number, done, self._corpus.tokenizer.vocab_used)
            sizes.append((self._folder / shard.file, shard.bytes))
            return done if all(os.stat(file).st_size == size_bytes for file, size_bytes in sizes) else None
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def _note(self, number: int) -> Path:
        return self._folder / PARTS / f"{number:05d}.json"

    def _commit(self) -> PreparedIndex:
        index = joined(self._corpus, self._folder, [self._done[n] for n in range(len(self._corpus.parts))])
        refuse_nothing(index, self._corpus)
        kept = {shard.file for shard in index.shards}
        for number in range(len(self._corpus.parts)):
            if ids_file(self._folder, number).name not in kept:
                ids_file(self._folder, number).unlink(missing_ok=True)
        with written(self._folder / INDEX) as file:
            file.write(json.dumps(index.to_json(), indent=1).encode())
        shutil.rmtree(self._folder / PARTS, ignore_errors=True)
        return index

    def _tell(self) -> None:
        done = sum(self._corpus.parts[n].bytes for n in self._done)
        going = sum(min(each.text_bytes, self._corpus.parts[n].bytes) for n, each in self._going.items())
        tokens = sum(each.tokens for each in self._done.values()) + sum(each.tokens for each in self._going.values())
        self._told(
            State(
                parts_done=len(self._done),
                parts=len(self._corpus.parts),
                read_bytes=done + going,
                bytes=self._corpus.bytes,
                tokens=tokens,
            )
        )

    def _refusals(self) -> list[Finding]:
        first = self._refused[min(self._refused)]
        findings = unreadable_findings(first[:MOST_BAD_KEPT])
        return [replace(finding, key=self._corpus.key) for finding in findings]

    def _died(self, died: Died) -> Finding:
        part = self._corpus.parts[died.number]
        message = f"a worker that prepared {part.name} ended by itself: {died.words}"
        return _failed(self._corpus.key, message, "call it again: it goes on where it was; or take fewer --workers")


def _trouble(trouble: OSError, folder: Path, key: str) -> Finding:
    if trouble.errno in (errno.ENOSPC, errno.EDQUOT):
        free_bytes = 0
        with suppress(OSError):
            free_bytes = shutil.disk_usage(folder).free
        free = f"{free_bytes / 1e6:,.0f} MB"
        message = f"the disk of {folder} is full ({free} free); the parts that are whole are kept"
        return Finding(rule="D226", severity="error", key=key, message=message, fix=MAKE_ROOM)
    place = f"{trouble.filename}: " if trouble.filename else ""
    message = f"{place}{(trouble.strerror or str(trouble)).lower()}"
    if trouble.filename and not _leads_to(os.path.abspath(trouble.filename), folder.absolute()):
        return _failed(key, message, f"make {trouble.filename} one that can be read")
    fix = "name a folder that can be written: data.prepared_folder, or --output of titan data prepare"
    return _failed("data.prepared_folder", message, fix)


def _leads_to(place: str, folder: Path) -> bool:
    """Whether a place is the folder, in it, or one of those it is in."""
    return Path(place).is_relative_to(folder) or folder.is_relative_to(place)


def _failed(key: str, message: str, fix: str) -> Finding:
    return Finding(rule="D227", severity="error", key=key, message=message, fix=fix)


def _taken(message: str, fix: str) -> Finding:
    return Finding(rule="D225", severity="error", key="data.prepared_folder", message=message, fix=fix)

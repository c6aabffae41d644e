"""Where ranks post their beats and read those of others: torchrun's own store, over a connection of its own.

Knows the store, and that talking to it may block for ever where its host is lost: a thread does that alone. Does not
know what a beat means (beats.py), nor what is done about it (pulse.py).
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from dataclasses import asdict
from datetime import timedelta

from torch.distributed import PrefixStore, Store, TCPStore  # type: ignore[attr-defined]

from engine.beats import Beat, Heard
from engine.first_failure import FirstFailure

_CONNECT_S = 5.0
_ROUND_S = 2.0
_TELL_S = 3.0
_CLOSE_S = 1.0
_VERDICT = "verdict"


class Board:
    """The beats of all ranks. What is read is as old as the last round of the thread that talks to the store."""

    def __init__(
        self, *, address: str, port: int, prefix: str, rank: int, world_size: int, judges: bool, serves: bool
    ) -> None:
        self.address, self.judges, self._serves = address, judges, serves
        self._port, self._prefix, self._rank, self._world_size = port, prefix, rank, world_size
        self._mine: Beat | None = None
        self._asks = False
        self._proposed: FirstFailure | None = None
        self._answered_s = time.monotonic()
        self._changed: dict[int, tuple[Beat | None, float]] = {}
        self.verdict: FirstFailure | None = None
        """What the first rank that judged has said, once it is known."""
        self._wake, self._over, self._told = threading.Event(), threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="titan-board", daemon=True)
        self._thread.start()

    @classmethod
    def of_torchrun(cls, rank: int, world_size: int) -> Board | None:
        """The board of the ranks that torchrun (or who sets its variables) started together; None without one."""
        environ = os.environ
        if "MASTER_ADDR" not in environ or "MASTER_PORT" not in environ:
            return None
        attempt = f"{environ.get('TORCHELASTIC_RUN_ID', '')}/{environ.get('TORCHELASTIC_RESTART_COUNT', '0')}"
        # All ranks of the first node and one of each other one: some of them live, whatever is lost.
        judges = environ.get("GROUP_RANK", "0") == "0" or environ.get("LOCAL_RANK", "0") == "0"
        return cls(
            address=environ["MASTER_ADDR"],
            port=int(environ["MASTER_PORT"]),
            prefix=f"titan/pulse/{attempt}",
            rank=rank,
            world_size=world_size,
            judges=judges,
            serves=rank == 0 and environ.get("TORCHELASTIC_USE_AGENT_STORE") != str(True),
        )

    @property
    def silent_s(self) -> float:
        """How long the store has not answered."""
        return time.monotonic() - self._answered_s

    @property
    def heard(self) -> dict[int, Heard]:
        """What the other ranks last said, as far as it was asked for: their silence counts from the first look."""
        now_s = time.monotonic()
        return {
            rank: Heard(beat=beat, silent_s=now_s - since_s) for rank, (beat, since_s) in list(self._changed.items())
        }

    def post(self, beat: Beat, *, asks: bool) -> None:
        """Posts a beat with the next round; `asks` has the beats of all ranks read."""
        self._mine, self._asks = beat, asks
        self._wake.set()

    def propose(self, verdict: FirstFailure) -> None:
        """Posts a verdict with the next round; the first one of all ranks counts."""
        self._proposed = self._proposed or verdict
        self._wake.set()

    def tell(self, verdict: FirstFailure) -> FirstFailure:
        """Posts a verdict, and gives the one that counts: this one too where the store does not answer."""
        self.propose(verdict)
        self._told.wait(_TELL_S)
        return self.verdict or verdict

    def close(self, last: Beat) -> None:
        """Posts a last beat, and lets go of the store; the rank that serves it waits a moment for the others to."""
        self._mine, self._asks = last, False
        self._over.set()
        self._wake.set()
        self._thread.join(2 * _CLOSE_S)

    def _run(self) -> None:
        store: Store | None = None
        while True:
            over = self._over.is_set()
            try:
                if store is None:
                    store = self._connect()
                self._round(store)
                self._answered_s = time.monotonic()
                if over:
                    self._part(store)
            except (RuntimeError, OSError):  # torch's DistError is a RuntimeError
                store = None
            if over:
                return
            self._wake.wait(_ROUND_S)
            self._wake.clear()

    def _connect(self) -> Store:
        # Tried with a plain socket first: torch's client tells of every failure at length.
        socket.create_connection((self.address, self._port), _CONNECT_S).close()
        client = TCPStore(
            self.address,
            self._port,
            is_master=False,
            wait_for_workers=False,
            timeout=timedelta(seconds=_CONNECT_S),
        )
        return PrefixStore(self._prefix, client)

    def _round(self, store: Store) -> None:
        mine, proposed = self._mine, self._proposed
        if mine is not None:
            store.set(str(self._rank), mine.to_json())
        if proposed is not None:
            text = store.compare_set(_VERDICT, "", json.dumps(asdict(proposed)))
            self.verdict = FirstFailure(**json.loads(text))
            self._told.set()
        elif self.verdict is None and store.check([_VERDICT]):
            self.verdict = FirstFailure(**json.loads(store.get(_VERDICT)))
        if self._asks:
            self._read(store)

    def _part(self, store: Store) -> None:
        """Where the store goes with this process, a rank that still reads it would tell of that at length."""
        store.set(f"left/{self._rank}", "")
        if self._serves:
            others = [f"left/{rank}" for rank in range(self._world_size) if rank != self._rank]
            store.wait(others, timedelta(seconds=_CLOSE_S))

    def _read(self, store: Store) -> None:
        others = [rank for rank in range(self._world_size) if rank != self._rank]
        there = [rank for rank in others if self._changed.get(rank, (None,))[0] or store.check([str(rank)])]
        texts = store.multi_get([str(rank) for rank in there]) if there else []
        beats = {rank: Beat.from_json(text) for rank, text in zip(there, texts, strict=True)}
        now_s = time.monotonic()
        for rank in others:
            before, beat = self._changed.get(rank), beats.get(rank)
            if before is None or (beat is not None and (before[0] is None or beat.count != before[0].count)):
                self._changed[rank] = (beat, now_s)
            elif beat is not None:
                self._changed[rank] = (beat, before[1])

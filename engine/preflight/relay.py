"""How ranks keep in step and hand in what they found without a collective: keys of a store, a deadline a part.

Knows the store. Does not know what a part measures. Rank 0 collects, and says whether there is another part; a rank
that is not heard in time is named, and nobody waits for it longer.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol

# Beyond a part's deadline: what rank 0 and the store need to answer.
_ANSWER_S = 10.0
_TICK_S = 0.05


class Store(Protocol):
    """The part of torch's stores that is used."""

    def set(self, key: str, value: str) -> None: ...

    def get(self, key: str) -> bytes: ...

    def check(self, keys: list[str]) -> bool: ...

    def wait(self, keys: list[str], timeout: timedelta) -> None: ...


class Lost(RuntimeError):
    """Rank 0 says nothing any more, or its store does not answer."""


@dataclass(frozen=True, slots=True)
class Relay:
    """One rank's end of it."""

    store: Store
    rank: int
    world_size: int

    def hand_in(self, part: str, found: Mapping[str, Any]) -> None:
        """What this rank found."""
        self.store.set(f"{part}/{self.rank}", json.dumps(found))

    def collect(self, part: str, deadline_s: float) -> dict[int, dict[str, Any]]:
        """What all ranks found, on rank 0; without those that have said nothing by then."""
        until_s = time.monotonic() + deadline_s
        missing = [f"{part}/{rank}" for rank in range(self.world_size)]
        while missing and time.monotonic() < until_s:
            # The first that is missing holds up the others anyway; asking for all would be a message for each.
            if self.store.check(missing[:1]):
                missing = missing[1:]
            else:
                time.sleep(_TICK_S)
        there = [rank for rank in range(self.world_size) if self.store.check([f"{part}/{rank}"])]
        return {rank: json.loads(self.store.get(f"{part}/{rank}")) for rank in there}

    def say(self, part: str, word: str) -> None:
        """Rank 0's word on a part, for all others."""
        self.store.set(f"{part}/said", word)

    def hear(self, part: str, deadline_s: float) -> str:
        """Rank 0's word on a part; Lost where there is none long after its deadline."""
        key = f"{part}/said"
        try:
            self.store.wait([key], timedelta(seconds=deadline_s + _ANSWER_S))
            return self.store.get(key).decode()
        except RuntimeError as trouble:
            raise Lost(f"rank 0 has not ended the part {part!r} within {deadline_s + _ANSWER_S:.0f} s") from trouble


def nodes_of(places: Mapping[int, Mapping[str, Any]]) -> Sequence[Sequence[int]]:
    """The ranks of each node by local rank, in the order of the nodes."""
    nodes: dict[int, dict[int, int]] = {}
    for rank, place in places.items():
        nodes.setdefault(place["node"], {})[place["local_rank"]] = rank
    return [[ranks[local] for local in sorted(ranks)] for _, ranks in sorted(nodes.items())]

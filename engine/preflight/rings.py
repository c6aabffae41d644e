"""Which ranks exchange together so that every link is measured, and a slow one can be told from its neighbours.

Knows ranks, nodes and rings. Does not know how anything is measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

Kind: TypeAlias = Literal["node", "pair", "nodes", "all"]
"""All GPUs of a node; two neighbours in it; two GPUs of neighbouring nodes; all GPUs of the run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """What is measured at once: groups of ranks, none of which is in two of them."""

    name: str
    kind: Kind
    groups: tuple[tuple[int, ...], ...]

    def group_of(self, rank: int) -> tuple[int, ...] | None:
        """The group that a rank is in; None where it waits."""
        return next((group for group in self.groups if rank in group), None)


def rounds(nodes: Sequence[Sequence[int]]) -> tuple[Round, ...]:
    """All rounds of a run whose nodes have these ranks, by local rank."""
    found: list[Round] = []
    # Two GPUs alone are a pair by themselves. Pairs come first: a link that is dead is named by them.
    inside = [ring(ranks) for ranks in nodes if len(ranks) > 2]
    for number in range(max(map(len, inside), default=0)):
        pairs = tuple(pair for edges in inside if number < len(edges) for pair in edges[number])
        found.append(Round(name=f"pair {number + 1}", kind="pair", groups=pairs))
    together = tuple(tuple(ranks) for ranks in nodes if len(ranks) > 1)
    if together:
        found.append(Round(name="node", kind="node", groups=together))
    for number, edges in enumerate(ring(range(len(nodes)))):
        pairs = tuple(pair for first, second in edges for pair in zip(nodes[first], nodes[second], strict=False))
        found.append(Round(name=f"nodes {number + 1}", kind="nodes", groups=pairs))
    if len(nodes) > 1:
        found.append(Round(name="all", kind="all", groups=(tuple(rank for ranks in nodes for rank in ranks),)))
    return tuple(found)


def ring(members: Sequence[int]) -> list[list[tuple[int, int]]]:
    """The neighbours of a ring, in two rounds: each member has one of its two in each. An odd ring needs a third."""
    count = len(members)
    if count < 2:
        return []
    edges = [(members[place], members[(place + 1) % count]) for place in range(count)]
    if count == 2:
        return [edges[:1]]
    even, odd = edges[0 : count - count % 2 : 2], edges[1:count:2]
    return [even, odd, *([edges[-1:]] if count % 2 else [])]

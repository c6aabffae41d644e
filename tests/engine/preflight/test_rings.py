"""Which ranks exchange together."""

from __future__ import annotations

from collections import Counter
from itertools import chain

import pytest

from engine.preflight.rings import ring, rounds


@pytest.mark.parametrize(("count", "most"), [(0, 0), (1, 0), (2, 1), (3, 3), (4, 2), (5, 3), (8, 2)])
def test_a_ring_is_measured_in_as_few_rounds_as_it_can_be(count: int, most: int) -> None:
    assert len(ring(range(count))) == most


@pytest.mark.parametrize("count", range(2, 10))
def test_each_neighbour_is_met_once_and_nobody_twice_in_a_round(count: int) -> None:
    edges = ring(range(count))
    for pairs in edges:
        assert max(Counter(chain.from_iterable(pairs)).values()) == 1
    met = {frozenset(pair) for pairs in edges for pair in pairs}
    assert met == {frozenset((place, (place + 1) % count)) for place in range(count)}
    assert sum(map(len, edges)) == len(met)


def test_one_node_has_its_pairs_first_and_then_all_of_it() -> None:
    found = rounds([[0, 1, 2, 3]])
    assert [(each.name, each.kind, each.groups) for each in found] == [
        ("pair 1", "pair", ((0, 1), (2, 3))),
        ("pair 2", "pair", ((1, 2), (3, 0))),
        ("node", "node", ((0, 1, 2, 3),)),
    ]


def test_two_gpus_of_a_node_are_one_link() -> None:
    assert [(each.name, each.groups) for each in rounds([[0, 1]])] == [("node", ((0, 1),))]


def test_one_rank_has_no_links() -> None:
    assert rounds([[0]]) == ()


def test_neighbouring_nodes_exchange_over_all_their_cards_at_once() -> None:
    found = {each.name: each.groups for each in rounds([[0, 1], [2, 3], [4, 5]])}
    assert found["nodes 1"] == ((0, 2), (1, 3))
    assert found["nodes 2"] == ((2, 4), (3, 5))
    assert found["nodes 3"] == ((4, 0), (5, 1))
    assert found["all"] == ((0, 1, 2, 3, 4, 5),)


def test_a_rank_without_a_pair_waits() -> None:
    first = rounds([[0, 1, 2]])[0]
    assert (first.group_of(1), first.group_of(2)) == ((0, 1), None)

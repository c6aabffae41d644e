"""The order of an epoch is a permutation, looks random, and is the same for ever."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.data.shuffle import shuffled

ROOT = Path(__file__).parents[3]


def order(size, *, seed=0, epoch=0):
    positions = np.arange(size, dtype=np.int64)
    return shuffled(positions, epochs=np.full_like(positions, epoch), size=size, seed=seed)


@given(size=st.integers(1, 3000), seed=st.integers(0, 1 << 80), epoch=st.integers(0, 1 << 40))
def test_an_epoch_holds_everything_once(size, seed, epoch):
    assert np.array_equal(np.sort(order(size, seed=seed, epoch=epoch)), np.arange(size))


def test_the_order_never_changes():
    # Golden: a resumed run reads on in the order that an older titan began.
    assert order(10).tolist() == [4, 1, 8, 3, 7, 0, 2, 9, 6, 5]
    assert order(1000, seed=1234, epoch=5)[:8].tolist() == [464, 406, 663, 711, 106, 646, 817, 498]
    far = shuffled(np.array([0, 10**12]), epochs=np.array([3, 4]), size=10**13, seed=7)
    assert far.tolist() == [820176681842, 3541102497337]


@pytest.mark.parametrize("hash_seed", ["0", "17"])
def test_another_process_finds_the_same_order(hash_seed):
    code = "import numpy as np; from engine.data.shuffle import shuffled as s; i = np.arange(100)"
    code += "; print(s(i, epochs=i * 0 + 2, size=100, seed=9).tolist())"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env={"PYTHONHASHSEED": hash_seed}, capture_output=True, check=True
    )
    assert done.stdout.decode().strip() == str(order(100, seed=9, epoch=2).tolist())


@given(
    size=st.integers(2, 500),
    reads=st.lists(st.tuples(st.integers(0, 499), st.integers(0, 5)), min_size=1, max_size=20),
)
def test_single_positions_of_mixed_epochs_are_those_of_the_whole_orders(size, reads):
    positions, epochs = (np.array(column, dtype=np.int64) for column in zip(*reads, strict=True))
    positions %= size
    found = shuffled(positions, epochs=epochs, size=size, seed=3)
    assert found.tolist() == [order(size, seed=3, epoch=e)[p] for p, e in zip(positions, epochs, strict=True)]


def many_orders(size, epochs):
    found = shuffled(np.tile(np.arange(size), epochs), epochs=np.repeat(np.arange(epochs), size), size=size, seed=0)
    return found.reshape(epochs, size)


def deviation(counts, cells):
    """Standard deviations by which chi square of `counts`, spread over equally likely cells, exceeds its mean."""
    expected = counts.sum() / cells
    chi_square = ((counts - expected) ** 2 / expected).sum() + (cells - counts.size) * expected
    return (chi_square - (cells - 1)) / (2 * (cells - 1)) ** 0.5


# The orders are fixed, so none of these can flicker.
@pytest.mark.parametrize("size", [2, 3, 5, 8, 16, 33])
def test_any_two_places_hold_any_two_things_equally_often(size):
    orders = many_orders(size, 10_000)
    for one, other in {(0, 1), (0, size - 1), (size // 2, size // 2 - 1)}:
        pairs = np.unique(orders[:, one] * size + orders[:, other], return_counts=True)[1]
        assert deviation(pairs, size * (size - 1)) < 4


@pytest.mark.parametrize(("size", "orders"), [(3, 6), (4, 24), (5, 120)])
def test_every_order_of_a_few_things_comes_equally_often(size, orders):
    counts = np.unique(many_orders(size, 20_000), axis=0, return_counts=True)[1]
    assert deviation(counts, orders) < 4


def test_neighbours_are_not_read_together():
    found = order(10_000)
    assert (np.abs(np.diff(found)) == 1).sum() < 10
    assert abs(np.corrcoef(found, np.arange(10_000))[0, 1]) < 0.05


def test_seeds_and_epochs_have_orders_of_their_own():
    orders = [tuple(order(50, seed=seed, epoch=epoch)) for seed in range(20) for epoch in range(20)]
    assert len(set(orders)) == 400
    # Epoch e of seed s is not epoch e - 1 of seed s + 1, as it would be with seed + epoch.
    assert not np.array_equal(order(50, seed=1, epoch=0), order(50, seed=0, epoch=1))

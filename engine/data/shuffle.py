"""A random order of n things that needs no memory and never changes.

Knows one function: position in an epoch -> thing read there. It is a keyed permutation, computed
for single positions (a Feistel network, walked until it lands inside n), so that a run can start
anywhere in any epoch, and so that no release of a library can change the order of a resumed
run. Does not know samples, epochs' lengths or ranks (index.py).
"""

from __future__ import annotations

from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

_GOLDEN = 0x9E3779B97F4A7C15
# Few rounds would do for large n; below ten things, 12 still show in the order of pairs, 16 in that of all.
_ROUND_KEYS = tuple(np.uint64(_GOLDEN * round_ % (1 << 64)) for round_ in range(1, 21))


def shuffled(
    positions: NDArray[np.int64], *, epochs: NDArray[np.int64], size: int, seed: int | str
) -> NDArray[np.int64]:
    """What stands at each position, 0 <= position < size, of the order of each epoch (same shape).

    For a fixed epoch and seed this is a permutation of range(size).
    """
    assert positions.size == 0 or (positions.min() >= 0 and positions.max() < size), "positions lie inside an epoch"
    digest = blake2b(str(seed).encode(), digest_size=8, person=b"titan order").digest()
    keys = _mixed(epochs.astype(np.uint64) * np.uint64(_GOLDEN) + np.frombuffer(digest, dtype="<u8").astype(np.uint64))
    bits = max(2, (size - 1).bit_length())
    values = _feistel(positions.astype(np.uint64), keys, bits)
    # Fewer than half of the values lie outside: walking on from them ends soon, and stays one to one.
    outside = values >= size
    while outside.any():
        values[outside] = _feistel(values[outside], keys[outside], bits)
        outside = values >= size
    return values.astype(np.int64)


def _feistel(values: NDArray[np.uint64], keys: NDArray[np.uint64], bits: int) -> NDArray[np.uint64]:
    """A keyed permutation of [0, 2^bits): an even number of rounds brings uneven halves back in place."""
    left_bits, right_bits = bits // 2, bits - bits // 2
    left, right = values >> np.uint64(right_bits), values & np.uint64((1 << right_bits) - 1)
    for round_key in _ROUND_KEYS:
        mask = np.uint64((1 << left_bits) - 1)
        left, right = right, (left ^ _mixed(right + (keys + round_key))) & mask
        left_bits, right_bits = right_bits, left_bits
    return (left << np.uint64(right_bits)) | right


def _mixed(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """splitmix64's output function (Steele, Lea, Flood 2014): every bit of the input moves every bit."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))

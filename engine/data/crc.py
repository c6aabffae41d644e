"""The CRC-32 of parts that were read apart, as of one text.

Knows one thing that zlib has and Python does not hand on: `crc32_combine`. A CRC is a polynomial over GF(2) modulo P;
to append n bytes is to multiply it by x^(8 n) (zlib 1.3, crc32.c, from which the way of doing it is known).
"""

from __future__ import annotations

from functools import cache

# P of CRC-32 (IEEE 802.3), its lowest power in the highest bit, as all polynomials here.
_P = 0xEDB88320
_ONE = 1 << 31
_BITS = 32


def combined(first: int, second: int, second_bytes: int) -> int:
    """The CRC-32 of two texts one after the other, from the CRC-32 of each and the length of the second."""
    return _product(_power_of_x(8 * second_bytes), first) ^ second


def _product(one: int, other: int) -> int:
    product = 0
    for power in range(_BITS):
        if one & (_ONE >> power):
            product ^= other
        other = (other >> 1) ^ _P if other & 1 else other >> 1
    return product


def _power_of_x(power: int) -> int:
    result, square = _ONE, 0
    while power:
        if power & 1:
            result = _product(_square_of_x(square), result)
        power, square = power >> 1, square + 1
    return result


@cache
def _square_of_x(times: int) -> int:
    """x squared so many times over: x^(2^times)."""
    return _ONE >> 1 if times == 0 else _product(_square_of_x(times - 1), _square_of_x(times - 1))

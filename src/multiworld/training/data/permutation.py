"""Permute the numbers below a size, each on its own: nobody draws, holds or sends the whole order. Pure.

It is a Feistel network over two digits of base ``side`` (the least with side² ≥ size), whose rounds add modulo
``side``; a value outside of the size goes through it again until it is inside ("cycle walking"; Black and Rogaway,
*Ciphers with Arbitrary Finite Domains*, 2002). So one place of a shuffle of 10⁸ samples costs a few microseconds, with
no memory. Small sizes, for which such a network favours some orders, are drawn whole (Fisher and Yates).
"""

from __future__ import annotations

import hashlib
import math
from typing import Final

NUM_ROUNDS: Final = 6
DRAWN_SIZE: Final = 4096
"""Up to this size the order is drawn whole: in 5 ms at most, and each place is then cheaper than in a network."""
_MASK: Final = (1 << 64) - 1


def mixed(value: int) -> int:
    """Return 64 bits of which each depends on all of ``value`` (the finalizer of SplitMix64)."""
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def keys_of(*parts: int | str, count: int) -> tuple[int, ...]:
    """Return ``count`` numbers of 64 bits, the same in every process for the same parts."""
    keys = []
    for number in range(count):
        text = "/".join(str(part) for part in (*parts, number))
        keys.append(int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little"))
    return tuple(keys)


class Permutation:
    """A permutation of ``range(size)`` that ``key`` determines: ``permutation[place]`` is the number at a place."""

    def __init__(self, size: int, *key: int | str) -> None:
        if size < 1:
            raise ValueError(f"a permutation of {size} numbers is impossible: expected at least 1")
        self.size = size
        self._side = math.isqrt(size - 1) + 1
        self._keys = keys_of("permutation", *key, count=NUM_ROUNDS)
        self._drawn = _drawn(size, self._keys[0]) if size <= DRAWN_SIZE else None

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, place: int) -> int:
        if not 0 <= place < self.size:
            raise IndexError(f"place {place} is outside of a permutation of {self.size} numbers")
        if self._drawn is not None:
            return self._drawn[place]
        number = self._through(place)
        while number >= self.size:
            number = self._through(number)
        return number

    def _through(self, value: int) -> int:
        side = self._side
        left, right = divmod(value, side)
        for key in self._keys:  # inlined, as a shuffle spends its time here: two multiplications mix 64 bits
            bits = ((right ^ key) * 0xBF58476D1CE4E5B9) & _MASK
            bits = ((bits ^ (bits >> 32)) * 0x94D049BB133111EB) & _MASK
            left, right = right, (left + (bits >> 16)) % side
        return left * side + right


def _drawn(size: int, key: int) -> list[int]:
    numbers = list(range(size))
    for last in range(size - 1, 0, -1):
        other = mixed(key + last) % (last + 1)
        numbers[last], numbers[other] = numbers[other], numbers[last]
    return numbers

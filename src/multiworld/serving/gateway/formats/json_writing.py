"""Write tensors as JSON: within a bound that is checked before anything is made, and without holding the loop."""

from __future__ import annotations

import math
import os
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson
import torch
from torch import Tensor

from ..error_body import HttpError
from ..http.budget import Budget
from .dtypes import dtype_name
from .elements import Buffer, on_host

SLICE_SIZE = 1 << 12
"""How many numbers and lists are written between two turns of the loop."""

Array = npt.NDArray[Any]


def dumps(value: Any) -> bytes:
    """Return JSON; arrays with the fewest digits that give the same bits again."""
    return orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)


class TensorWriter:
    """Writes the tensors of one answer, which may have ``max_bytes`` as text in all."""

    def __init__(self, budget: Budget, max_bytes: int) -> None:
        self._budget, self._max_bytes = budget, max_bytes
        self._num_bytes = self._num_small = 0
        self._texts: list[tuple[bytes, bytearray]] = []  # with a mark that nobody else can know, in order

    async def write(self, tensor: Tensor, *, is_flat: bool = False) -> Any:
        """Return what ``dump`` writes as the elements; NaN and Infinity as words. A few are written by it, not here.

        Refused: complex numbers, types without a name, and more text than the answer may have.
        """
        name = dtype_name(tensor.dtype)
        if tensor.is_complex():
            raise HttpError(406, f"JSON has no numbers for {name}; ask for application/safetensors")
        shape = (tensor.numel(),) if is_flat else tuple(tensor.shape)
        size, num_lists = tensor.numel(), _num_lists(shape)
        self._check(self._num_bytes + 2 * size + 3 * num_lists - 1)  # a digit and a comma, two brackets and a comma
        array = await self._budget.apart(tensor.nbytes, _array, tensor)
        array = array.reshape(shape)
        if self._num_small + size + num_lists <= SLICE_SIZE:
            self._num_small += size + num_lists
            return _values(array)
        text = bytearray()
        await self._append(array, text)
        mark = os.urandom(16).hex().encode()
        self._texts.append((mark, text))
        return orjson.Fragment(mark)

    def dump(self, value: Any) -> list[Buffer]:
        """Return JSON in pieces: an object with what ``write`` returned, in the order in which it was written."""
        pieces: list[Buffer] = []
        rest = dumps(value)
        for mark, text in self._texts:
            before, _, rest = rest.partition(mark)
            pieces += [before, text]
        self._texts.clear()
        return [*pieces, rest]

    async def _append(self, array: Array, text: bytearray) -> None:
        row_size = math.prod(array.shape[1:]) + _num_lists(array.shape[1:])
        text += b"["
        step = max(1, SLICE_SIZE // row_size)
        for at in range(0, len(array), step):
            if at:
                text += b","
            if row_size > SLICE_SIZE:
                await self._append(array[at], text)
                continue
            piece = memoryview(dumps(_values(array[at : at + step])))[1:-1]
            self._check(self._num_bytes + len(piece))
            self._budget.take(len(piece))
            self._num_bytes += len(piece)
            text += piece
            await self._budget.wait_turn()
        text += b"]"

    def _check(self, num_bytes: int) -> None:
        if num_bytes > self._max_bytes:
            raise HttpError(
                406,
                f"the answer takes more than {self._max_bytes} bytes as JSON; ask for it in binary: "
                "Accept: application/safetensors, or binary_data of KServe's protocol",
            )


def _num_lists(shape: tuple[int, ...]) -> int:
    """Return how many lists an array of that shape is."""
    return sum(math.prod(shape[:depth]) for depth in range(len(shape)))


def _array(tensor: Tensor) -> Array:
    tensor = on_host(tensor)
    if tensor.is_floating_point() and tensor.dtype not in (torch.float16, torch.float32, torch.float64):
        tensor = tensor.float()  # exact
    array: Array = tensor.numpy()
    return array


def _values(array: Array) -> Any:
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        return _with_words(array)
    return array if array.ndim else array[()]


def _with_words(array: Array) -> Any:
    words = array.astype(object)
    words[np.isnan(array)] = "NaN"
    words[np.isposinf(array)] = "Infinity"
    words[np.isneginf(array)] = "-Infinity"
    return words.tolist() if array.ndim else words[()]

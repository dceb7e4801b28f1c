"""The stages that are served, and as a single process calls them one after the other."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

__all__ = [
    "CHAIN_LENGTH",
    "CHAIN_MODULE_S",
    "CHAIN_SHAPE",
    "WIDTH",
    "Dense",
    "Heavy",
    "Late",
    "Matmuls",
    "OneSlow",
    "add_one",
    "moody",
    "rhombus_tail",
    "times_for",
    "times_two",
]

WIDTH = 64
CHAIN_LENGTH, CHAIN_MODULE_S, CHAIN_SHAPE = 3, 0.005, (8, 256)


def add_one(x: Tensor) -> Tensor:
    return x + 1


def times_two(x: Tensor) -> Tensor:
    return x * 2


def rhombus_tail(left: Tensor, right: Tensor) -> Tensor:
    return left + right


def moody(x: Tensor) -> Any:
    """As ``add_one``; but it raises when ``x`` begins with 1, and returns what is no tensor when it begins with 2."""
    mood = float(x[0])
    if mood == 1.0:
        raise RuntimeError("in a mood")
    return "garbage" if mood == 2.0 else x + 1


class Dense(nn.Module):
    """A dense layer, ``[rows, 64]`` to the same, that takes ``service_s`` as if a device computed it."""

    def __init__(self, seed: int, service_s: float = 0.0) -> None:
        super().__init__()
        self.service_s = service_s
        self.weight = nn.Parameter(_random(seed, WIDTH, WIDTH) / 8)

    def forward(self, x: Tensor) -> Tensor:
        if self.service_s:
            time.sleep(self.service_s)
        return torch.tanh(x @ self.weight)


class Late(Dense):
    """As Dense. It is set up at once the first ``num_early`` times, and after ``setup_s`` from then on."""

    def __init__(self, seed: int, service_s: float, folder: str, num_early: int, setup_s: float) -> None:
        super().__init__(seed, service_s)
        self.folder, self.num_early, self.setup_s = folder, num_early, setup_s

    def setup(self) -> None:
        if take_number(self.folder) >= self.num_early:
            time.sleep(self.setup_s)


class OneSlow(Dense):
    """As Dense. The first that is set up is ``factor`` times slower than the others."""

    def __init__(self, seed: int, service_s: float, folder: str, factor: float) -> None:
        super().__init__(seed, service_s)
        self.folder, self.factor = folder, factor

    def setup(self) -> None:
        if take_number(self.folder) == 0:
            self.service_s *= self.factor


class Heavy(nn.Module):
    """One with many weights, of which an answer needs few."""

    def __init__(self, weights_bytes: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(_random(5, weights_bytes // 4 // WIDTH, WIDTH) / 8)

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight[:WIDTH] + self.weight[-1]


class Matmuls(nn.Module):
    """Computes for a few milliseconds, on one core, with the interpreter's lock released."""

    def __init__(self, seed: int, times: int) -> None:
        super().__init__()
        self.times = times
        self.weight = nn.Parameter(_random(seed, 256, 256) / 16)

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(self.times):
            x = torch.tanh(x @ self.weight)
        return x


def times_for(seconds: float) -> int:
    """Return how many products of ``Matmuls`` take so long on this machine."""
    x, once = torch.randn(CHAIN_SHAPE), Matmuls(0, 50)
    with torch.inference_mode():
        once(x)
        began = time.perf_counter()
        for _ in range(5):
            once(x)
        return max(1, round(seconds / ((time.perf_counter() - began) / 250)))


def take_number(folder: str) -> int:
    """Return 0 to the first process that asks, 1 to the second, and so on."""
    for number in range(10_000):
        try:
            os.close(os.open(Path(folder) / str(number), os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            continue
        return number
    raise RuntimeError(f"{folder}: more than 10000 have asked")


def _random(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))

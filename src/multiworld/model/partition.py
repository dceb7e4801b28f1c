"""Decides between which layers a model is cut: the slowest stage becomes as fast as possible. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate


@dataclass(frozen=True)
class LayerCost:
    """The measured cost of one layer: seconds per call, bytes of its weights, and what it sends to the next layer.

    ``shared_bytes``: the bytes of each weight that other layers use, too, by a number for each weight. A stage with
    several of these layers holds the weight once.
    """

    name: str
    seconds: float
    param_bytes: int = 0
    out_bytes: int = 0
    out_tensors: int = 1
    shared_bytes: Mapping[int, int] = field(default_factory=dict, hash=False)


@dataclass(frozen=True)
class Partition:
    """``starts``: the first layer of each stage. ``seconds``: per stage, with sending and receiving."""

    starts: tuple[int, ...]
    seconds: tuple[float, ...]

    @property
    def slowest_s(self) -> float:
        return max(self.seconds)


def partition(
    costs: Sequence[LayerCost],
    num_stages: int,
    *,
    seconds_per_byte: float = 0.0,
    seconds_per_tensor: float = 0.0,
    max_param_bytes: int | None = None,
) -> Partition:
    """Cut a chain of layers into ``num_stages`` runs, so that the slowest is fastest; of equal cuts, the least is sent.

    A stage takes the seconds of its layers, and the seconds for the bytes and tensors that it receives and sends. The
    request and the answer are the same for all cuts and are not counted. Raises ValueError if there are fewer layers
    than stages, or if no cut keeps every stage's weights within ``max_param_bytes``.

    Exact, by dynamic programming over the last cut: O(stages * layers^2).
    """
    if not 1 <= num_stages <= len(costs):
        raise ValueError(f"cannot cut {len(costs)} layers into {num_stages} stages: expected 1 to {len(costs)}")
    sent = [cost.out_bytes * seconds_per_byte + cost.out_tensors * seconds_per_tensor for cost in costs]
    chain = _Chain(costs, sent, math.inf if max_param_bytes is None else max_param_bytes)
    # best[k][end]: (slowest, sent, start of the last run) over all cuts of the layers before end into k runs.
    best: list[list[tuple[float, float, int]]] = [[(0.0, 0.0, 0)] + [(math.inf, math.inf, 0)] * len(costs)]
    for stages in range(1, num_stages + 1):
        row = [(math.inf, math.inf, 0)] * (len(costs) + 1)
        for end in range(stages, len(costs) + 1):
            row[end] = min(
                (max(best[-1][start][0], chain.seconds(start, end)), best[-1][start][1] + chain.sent(start), start)
                for start in range(stages - 1, end)
            )
        best.append(row)
    if math.isinf(best[-1][-1][0]):
        raise ValueError(
            f"{num_stages} stages of at most {max_param_bytes} bytes of weights do not hold the model: its "
            f"{len(costs)} layers have {_weights(costs)[-1]}, the largest "
            f"{max(cost.param_bytes for cost in costs)}"
        )
    starts = _walk_back(best, len(costs))
    ends = [*starts[1:], len(costs)]
    return Partition(tuple(starts), tuple(chain.seconds(*run) for run in zip(starts, ends, strict=True)))


class _Chain:
    """Knows the cost of any run of layers, in constant time."""

    def __init__(self, costs: Sequence[LayerCost], sent: Sequence[float], max_param_bytes: float) -> None:
        self._seconds = list(accumulate((cost.seconds for cost in costs), initial=0.0))
        self._param_bytes = (
            [] if math.isinf(max_param_bytes) else [_weights(costs[start:]) for start in range(len(costs))]
        )
        self._sent = [0.0, *sent[:-1], 0.0]
        self._max_param_bytes = max_param_bytes

    def seconds(self, start: int, end: int) -> float:
        if self._param_bytes and self._param_bytes[start][end - start - 1] > self._max_param_bytes:
            return math.inf
        return self._seconds[end] - self._seconds[start] + self._sent[start] + self._sent[end]

    def sent(self, start: int) -> float:
        """Return the seconds that it takes to send what crosses the cut in front of a layer."""
        return self._sent[start]


def _weights(costs: Sequence[LayerCost]) -> list[int]:
    """Return the bytes of the weights of the first layer, of the first two layers, and so on."""
    known: set[int] = set()
    sums: list[int] = []
    for cost in costs:
        again = sum(size_bytes for weight, size_bytes in cost.shared_bytes.items() if weight in known)
        known.update(cost.shared_bytes)
        sums.append((sums[-1] if sums else 0) + cost.param_bytes - again)
    return sums


def _walk_back(best: Sequence[Sequence[tuple[float, float, int]]], end: int) -> list[int]:
    starts: list[int] = []
    for row in reversed(best[1:]):
        end = row[end][2]
        starts.append(end)
    return starts[::-1]

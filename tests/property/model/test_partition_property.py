"""No other cut of a chain of layers has a faster slowest stage, and parts of any chain equal the whole."""

from itertools import combinations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from multiworld.model.cut import cut
from multiworld.model.partition import LayerCost, partition

layers = st.lists(
    st.builds(
        LayerCost,
        name=st.just("layer"),
        seconds=st.integers(0, 20).map(float),
        param_bytes=st.integers(0, 5),
        out_bytes=st.integers(0, 10),
    ),
    min_size=1,
    max_size=8,
)


class Skip(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.inner(x)  # type: ignore[no-any-return]


class Counting(nn.Module):
    count: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count += x.detach().sum(0) * 0 + 1
        return x + self.count


def layer(kind: str) -> nn.Module:
    if kind == "skip":
        return Skip()
    if kind == "relu":
        return nn.ReLU(inplace=True)
    return nn.Linear(4, 4) if kind == "linear" else nn.LayerNorm(4)


def stage_s(run: list[LayerCost], received: int, sent: int) -> float:
    return sum(cost.seconds for cost in run) + received + sent


@given(layers, st.integers(1, 8))
def test_a_partition_is_as_good_as_the_best_of_all(chain: list[LayerCost], num_stages: int) -> None:
    num_stages = min(num_stages, len(chain))
    plan = partition(chain, num_stages, seconds_per_byte=1.0)
    every = []
    for inner in combinations(range(1, len(chain)), num_stages - 1):
        starts, ends = (0, *inner), (*inner, len(chain))
        every.append(
            [
                stage_s(
                    chain[start:end],
                    chain[start - 1].out_bytes if start else 0,
                    chain[end - 1].out_bytes if end < len(chain) else 0,
                )
                for start, end in zip(starts, ends, strict=True)
            ]
        )
    assert len(plan.starts) == num_stages
    assert sorted(set(plan.starts)) == list(plan.starts)
    assert plan.slowest_s == min(map(max, every))
    assert list(plan.seconds) in every


@settings(max_examples=15, deadline=None)
@given(st.lists(st.sampled_from(["linear", "relu", "skip", "norm"]), min_size=2, max_size=6), st.integers(1, 4))
def test_any_chain_equals_its_parts(kinds: list[str], num_stages: int) -> None:
    model = nn.Sequential(nn.Linear(4, 4), *map(layer, kinds))
    parts = cut(model, torch.randn(2, 4), min(num_stages, len(kinds)), repeats=1)
    payload = result = torch.randn(3, 4)
    for part in parts:
        result = part(result)
    assert torch.equal(result, model(payload))


@settings(max_examples=15, deadline=None)
@given(st.lists(st.sampled_from(["linear", "relu", "skip", "norm"]), min_size=1, max_size=5), st.integers(0, 5))
def test_a_layer_that_keeps_state_is_named_and_left_alone_wherever_it_is(kinds: list[str], place: int) -> None:
    model = nn.Sequential(nn.Linear(4, 4), *map(layer, kinds)).train()
    place = min(place, len(model))
    model.insert(place, Counting())
    before, drawn = {name: value.clone() for name, value in model.state_dict().items()}, torch.get_rng_state()
    with pytest.raises(ValueError, match=f"forward writes into its buffer '{place}.count'"):
        cut(model, torch.zeros(2, 4), 1, repeats=1)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(part.training for part in model.modules())
    assert torch.equal(torch.get_rng_state(), drawn)

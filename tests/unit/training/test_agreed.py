"""What all ranks must have in common, and by which name a difference is told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import pytest
from torch import nn

from multiworld.training.agreed import agreed
from multiworld.training.data.base import StepLoader
from multiworld.training.health.options import Replay
from multiworld.training.options import TrainingOptions
from multiworld.training.parts import digest_of
from multiworld.training.recovery.agreement import differences
from multiworld.training.state import TrainingState


@dataclass
class FakeParts:
    model: str = "m"

    def described(self) -> dict[str, object]:
        return {"the model": self.model}


@dataclass
class FakeLoader:
    data: str = "d"

    def digest(self) -> str:
        return self.data


def digest(model: str = "m", data: str = "d", tracked: str = "", more: object = "constant", **options: Any) -> str:
    state = TrainingState()
    if tracked:
        state.add(tracked, nn.Linear(1, 1))
    loader = cast(StepLoader, FakeLoader(data))
    return digest_of(agreed(FakeParts(model), state, loader, TrainingOptions(name="gpt", **options), more))


@pytest.mark.parametrize(
    ("other", "part"),
    [
        ({"model": "n"}, "the model"),
        ({"data": "e"}, "the data"),
        ({"tracked": "ema"}, "what is tracked"),
        ({"exact": True}, "the options"),
        ({"seed": 1}, "the options"),
        ({"more": "drop"}, "the options"),
        ({"replay": Replay(every=5)}, "the health"),
    ],
)
def test_a_difference_is_named(other: dict[str, Any], part: str) -> None:
    assert differences(digest(), digest(**other)) == [part]


def test_what_each_rank_may_have_for_itself_is_no_difference() -> None:
    assert digest(record="/tmp/a", progress=False) == digest()

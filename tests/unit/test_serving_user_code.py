"""What a user's code raises."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from multiworld.serving.blueprint import load_work
from multiworld.serving.canary import answer_canary
from multiworld.serving.errors import CanaryFailedError
from multiworld.serving.graph import Stage
from multiworld.serving.user_code import users_traceback
from multiworld.serving.weights import put_weights


class Mine:
    def __init__(self) -> None:
        raise KeyError("no such file")


def test_a_traceback_begins_where_the_users_code_does() -> None:
    with pytest.raises(KeyError) as caught:
        Mine()
    text = users_traceback(caught.value)
    assert text.startswith("Traceback")
    assert text.endswith("KeyError: 'no such file'\n")
    assert "in __init__" in text


@pytest.mark.parametrize("weights", [{"other": torch.zeros(1)}, {"weight": torch.zeros(7)}], ids=["unknown", "shape"])
def test_there_is_none_of_what_the_users_code_had_no_part_in(weights: dict[str, torch.Tensor]) -> None:
    with pytest.raises(RuntimeError) as caught:
        put_weights(nn.Linear(2, 2), weights)
    assert caught.value.__traceback__ is not None
    beyond_this_test = caught.value.__traceback__.tb_next
    assert users_traceback(caught.value.with_traceback(beyond_this_test)) == ""


async def test_of_a_canary_that_the_users_code_failed_it_is_shown_where() -> None:
    def work(x: torch.Tensor) -> torch.Tensor:
        raise KeyError("in here")

    with pytest.raises(CanaryFailedError) as caught:
        await answer_canary(Stage("a", work), work, [torch.zeros(1)])
    assert caught.value.__traceback__ is not None
    text = users_traceback(caught.value.with_traceback(caught.value.__traceback__.tb_next))
    assert "in work" in text
    assert "canary.py" not in text


async def test_a_module_that_is_not_there_has_no_traceback(tmp_path: Path) -> None:
    with pytest.raises(ModuleNotFoundError) as caught:
        await load_work(Stage("a", "no_such_module:x"), tmp_path)
    assert caught.value.__traceback__ is not None
    assert users_traceback(caught.value.with_traceback(caught.value.__traceback__.tb_next)) == ""

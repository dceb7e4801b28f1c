"""What a user's code raises."""

from __future__ import annotations

import pytest
import torch
from torch import nn

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

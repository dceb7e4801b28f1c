"""What a user's code raises."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch
from torch import nn

from multiworld.errors import PeerDiedError
from multiworld.model.user_code import place_of_error, users_traceback
from multiworld.model.weights import put_weights
from multiworld.serving.blueprint import load_work
from multiworld.serving.errors import CanaryFailedError, what_happened
from multiworld.serving.graph import Stage
from multiworld.serving.replica.canary import answer_canary
from multiworld.serving.replica.executor import describe_error
from multiworld.serving.replica.failure_log import FailureLog


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


def failed_in_torch(rows: int = 3) -> RuntimeError:
    with pytest.raises(RuntimeError) as caught:
        nn.Linear(2, 2)(torch.zeros(1, rows))
    return caught.value


def test_the_line_that_is_named_is_the_users() -> None:
    line = failed_in_torch.__code__.co_firstlineno + 2
    assert place_of_error(failed_in_torch()) == f"test_user_code.py:{line}"
    assert describe_error(failed_in_torch()).endswith(f"(test_user_code.py:{line})")
    assert place_of_error(ValueError("never raised")) == ""


def test_an_error_is_told_with_its_traceback_once_and_counted_then(caplog: pytest.LogCaptureFixture) -> None:
    log = FailureLog(logging.getLogger("multiworld.test"), clock=lambda: 5.0)
    assert log.last is None
    for rows in range(3, 103):
        log.failed("a", failed_in_torch(rows), f"RuntimeError: {rows}")
    last = log.last
    assert last is not None
    assert (last.error, last.count, last.at) == ("RuntimeError: 102", 100, 5.0)
    assert last.kind.startswith("RuntimeError at test_user_code.py:")
    assert "failed_in_torch" in last.traceback
    log.failed("a", KeyError("another"), "KeyError: another")
    told = [record.getMessage() for record in caplog.records]
    assert told[0].startswith("stage a failed: RuntimeError: 3\nTraceback (most recent call last):\n")
    assert told[1:] == [
        "stage a failed: RuntimeError: 12: the same error 9 more times",
        "stage a failed: RuntimeError: 102: the same error 99 more times",
        "stage a failed: KeyError: another",
    ]


def test_operators_are_not_advised_to_call_functions() -> None:
    error = PeerDiedError("edge", 1, 0, "its process ended")
    assert what_happened(error) == "lost rank 0, which died: its process ended"
    assert "rejoin" not in describe_error(error)

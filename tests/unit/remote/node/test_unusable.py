"""A node whose GPU can't be used any more ends, and its master learns why; an error of one operation ends nothing."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from multiworld.remote import DeclaredCall, NodeDeadError, RemoteOperationError
from multiworld.remote.node.unusable import DeviceUnusableError, leaves_unusable

from ..fake_node import FakeNode, values
from ..functions_of_nodes import fail_on_gpu

FAIL = f"{fail_on_gpu.__module__}:fail_on_gpu"
ASSERT, ILLEGAL_ADDRESS, INVALID_VALUE = 710, 700, 1
LIKE = torch.empty(1)


def error_of(code: int | None) -> torch.AcceleratorError:
    error = torch.AcceleratorError("CUDA error")
    if code is not None:
        error.error_code = code  # type: ignore[attr-defined]
    return error


@pytest.fixture
def breaking() -> Iterator[FakeNode]:
    """A node that declares ``fail_on_gpu``."""
    with FakeNode(calls=[DeclaredCall(name=FAIL)]) as fake:
        yield fake


def ended_by_gpu(fake: FakeNode) -> bool:
    """Whether the node ended with that error, which the fake raises at its end unless it is taken from it."""
    fake._thread.join(30)
    failure, fake.failure = fake.failure, None
    return isinstance(failure, DeviceUnusableError)


@pytest.mark.parametrize("code", [ASSERT, ILLEGAL_ADDRESS, 214, 719])
def test_an_error_after_which_all_fails_is_known_by_its_number(code: int) -> None:
    assert leaves_unusable(error_of(code))


@pytest.mark.parametrize(
    "error",
    [
        error_of(INVALID_VALUE),
        error_of(None),
        torch.OutOfMemoryError("CUDA out of memory"),
        RuntimeError("CUDA error: device-side assert triggered"),
    ],
)
def test_other_errors_are_of_one_operation(error: Exception) -> None:
    assert not leaves_unusable(error)


def test_the_node_ends_and_the_next_wait_says_why_and_where(breaking: FakeNode) -> None:
    x = breaking.node.ones(3)
    breaking.node.call(FAIL, ASSERT, like=LIKE)
    y = x + 1
    with pytest.raises(NodeDeadError) as lost:
        values(y)
    assert lost.value.reason.startswith(
        "it ended, as a GPU of it can't be used any more: CUDA error: device-side assert triggered"
    )
    assert f"noticed in {FAIL} at {__file__}" in lost.value.reason
    assert "CUDA_LAUNCH_BLOCKING=1" in lost.value.reason
    assert "reported late" not in str(lost.value)
    assert FAIL in lost.value.first_lost
    assert ended_by_gpu(breaking)
    assert breaking.session.unseen_errors() == []


def test_what_failed_before_is_still_told(breaking: FakeNode) -> None:
    breaking.node.zeros(3).index_select(0, breaking.node.send(torch.tensor([9])))
    breaking.node.call(FAIL, ASSERT, like=LIKE)
    with pytest.raises(NodeDeadError):
        breaking.node.synchronize()
    assert ended_by_gpu(breaking)
    (unseen,) = breaking.session.unseen_errors()
    assert "index_select" in str(unseen)


def test_an_error_of_one_operation_ends_nothing(breaking: FakeNode) -> None:
    lost = breaking.node.call(FAIL, INVALID_VALUE, like=LIKE)
    with pytest.raises(RemoteOperationError, match="AcceleratorError: CUDA error"):
        values(lost)
    assert values(breaking.node.ones(2)).tolist() == [1, 1]


def test_a_gpu_that_fails_on_another_stream_ends_the_node_as_well(breaking: FakeNode) -> None:
    with breaking.node.stream() as stream:
        breaking.node.call(FAIL, ILLEGAL_ADDRESS, like=LIKE)
        breaking.session.flush()
    breaking.there.join_streams()
    breaking.run_timers()  # the master breaks the connection
    with pytest.raises(NodeDeadError, match="a GPU of it can't be used any more"):
        stream.synchronize()
    assert ended_by_gpu(breaking)

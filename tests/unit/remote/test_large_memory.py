"""Memory for large tensors that come: reused once nobody has it, and given back soon."""

from __future__ import annotations

import weakref
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from multiworld.remote import large_memory
from multiworld.remote.large_memory import KEEP_S, MAX_BYTES, MAX_STORAGES, MIN_BYTES, LargeMemory

NUM = MIN_BYTES // 4


class Shell:
    """A clock, and the timers that were set."""

    def __init__(self) -> None:
        self.now = 0.0
        self.timers: list[tuple[float, Callable[[], None]]] = []
        self.memory = LargeMemory(
            lambda delay_s, call: self.timers.append((self.now + delay_s, call)), lambda: self.now
        )

    def tensor(self, num_elements: int = NUM) -> Tensor:
        return self.memory.tensor(num_elements, torch.float32)

    def pass_s(self, seconds: float) -> None:
        self.now += seconds
        due = [call for at, call in self.timers if at <= self.now]
        self.timers = [(at, call) for at, call in self.timers if at > self.now]
        for call in due:
            call()


@pytest.fixture
def shell() -> Shell:
    return Shell()


def test_a_tensor_gets_the_memory_of_one_that_is_gone(shell: Shell) -> None:
    first = shell.tensor()
    address = first.data_ptr()
    first.fill_(3)
    del first
    again = shell.memory.tensor(NUM // 2, torch.float64)
    assert (again.data_ptr(), again.dtype, again.shape, again.stride()) == (address, torch.float64, (NUM // 2,), (1,))
    assert not again._is_view()


@pytest.mark.parametrize(
    "keep",
    [
        lambda tensor: tensor,
        lambda tensor: tensor[5:7],
        lambda tensor: tensor.numpy(),
        lambda tensor: tensor.untyped_storage(),
        lambda tensor: tensor.__dlpack__(),
        lambda tensor: (torch.ones(NUM, requires_grad=True) * tensor).sum(),
    ],
    ids=["tensor", "view", "numpy", "storage", "dlpack", "graph"],
)
def test_memory_that_somebody_has_is_not_given_away(shell: Shell, keep: Callable[[Tensor], object]) -> None:
    first = shell.tensor()
    address, kept = first.data_ptr(), keep(first)
    del first
    assert shell.tensor().data_ptr() != address
    del kept
    others = [shell.tensor(), shell.tensor()]
    assert address in [other.data_ptr() for other in others]


@pytest.mark.parametrize(
    "change",
    [lambda tensor: tensor.resize_(NUM * 2), lambda tensor: tensor.untyped_storage().resize_(0), Tensor.share_memory_],
    ids=["larger", "emptied", "shared"],
)
def test_what_its_owner_changed_is_not_used_again(shell: Shell, change: Callable[[Tensor], object]) -> None:
    first = shell.tensor()
    change(first)
    address = first.data_ptr()
    del first
    again = shell.tensor()
    assert again.fill_(1).sum() == NUM
    assert again.untyped_storage().nbytes() == MIN_BYTES
    assert change is not Tensor.share_memory_ or again.data_ptr() != address


def test_only_as_large_memory_is_taken(shell: Shell) -> None:
    address = shell.tensor().data_ptr()
    larger = shell.tensor(NUM + 1)
    assert larger.untyped_storage().nbytes() == 4 * NUM + 4
    assert shell.tensor().data_ptr() == address


def test_memory_that_nobody_took_for_a_while_is_given_back(shell: Shell) -> None:
    gone = weakref.ref(shell.tensor().untyped_storage())
    shell.pass_s(KEEP_S / 2)
    assert gone() is not None
    shell.pass_s(KEEP_S / 2)
    assert gone() is None
    assert shell.timers == []


def test_what_is_taken_again_and_again_stays(shell: Shell) -> None:
    address = shell.tensor().data_ptr()
    for _ in range(10):
        shell.pass_s(KEEP_S * 0.75)
        assert shell.tensor().data_ptr() == address
    assert len(shell.timers) == 1


def test_a_tensor_outlives_the_time_that_its_memory_is_kept(shell: Shell) -> None:
    tensor = shell.tensor().fill_(2)
    shell.pass_s(2 * KEEP_S)
    assert shell.tensor().data_ptr() != tensor.data_ptr()
    assert tensor.sum() == 2 * NUM


def test_little_is_kept(shell: Shell) -> None:
    storages = [weakref.ref(shell.tensor(NUM + number).untyped_storage()) for number in range(MAX_STORAGES + 3)]
    assert [storage() is None for storage in storages] == [True] * 3 + [False] * MAX_STORAGES
    tensors = [shell.memory.tensor(MAX_BYTES // 2 - number, torch.uint8) for number in range(3)]
    halves = [weakref.ref(tensor.untyped_storage()) for tensor in tensors]
    del tensors
    assert [half() is None for half in halves] == [True, False, False]
    huge = weakref.ref(shell.memory.tensor(MAX_BYTES + 1, torch.uint8).untyped_storage())
    assert huge() is None


def test_small_tensors_are_as_always(shell: Shell) -> None:
    assert shell.tensor(3).shape == (3,)
    assert shell.tensor(0).shape == (0,)
    assert shell.timers == []


def test_what_is_kept_is_given_up_when_memory_is_missing(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = weakref.ref(shell.tensor().untyped_storage())
    make, asked = large_memory._storage, []

    def scarce(size_bytes: int) -> torch.UntypedStorage:
        asked.append(kept() is not None)
        if kept() is not None:
            raise RuntimeError("not enough memory")
        return make(size_bytes)

    monkeypatch.setattr(large_memory, "_storage", scarce)
    assert shell.tensor(NUM + 1).shape == (NUM + 1,)
    assert asked == [True, False]


def test_more_than_there_is_raises(shell: Shell) -> None:
    with pytest.raises(RuntimeError):
        shell.memory.tensor(2**60, torch.uint8)


def test_nothing_is_kept_after_the_end(shell: Shell) -> None:
    gone, tensor = weakref.ref(shell.tensor().untyped_storage()), shell.tensor(NUM + 1).fill_(1)
    shell.memory.clear()
    assert gone() is None
    assert tensor.sum() == NUM + 1


def test_tensors_made_in_inference_mode_lend_theirs_to_others(shell: Shell) -> None:
    with torch.inference_mode():
        first = shell.tensor()
        address = first.data_ptr()
        assert first.is_inference()
        del first
    again = shell.tensor().fill_(2)
    weight = torch.ones(NUM, requires_grad=True)
    (gradient,) = torch.autograd.grad((weight * again).sum(), weight)
    assert again.data_ptr() == address
    assert gradient.sum() == 2 * NUM

"""What the benchmark of training counts, and how ranks obey its orders."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch

from benchmarks.elastic.journal import Entry, JournalWriter
from benchmarks.training.faithful import count_samples
from benchmarks.training.orders import Order, Orders, give_order
from benchmarks.training.tasks import TASKS

Ids = dict[int, list[int]]


def entries(committed: Ids, died: Ids | None = None, step: int = 0) -> list[Entry]:
    """Return what processes wrote that committed these samples in a step, and what others computed before they died."""
    found = [Entry("computed", 0.0, pid, {"step": step, "ids": ids}) for pid, ids in (died or {}).items()]
    return found + [Entry("commit", 1.0, pid, {"step": step, "ids": ids}) for pid, ids in committed.items()]


@pytest.mark.parametrize(
    ("committed", "died", "expected"),
    [
        ({1: [0, 1], 2: [2, 3]}, {}, (0, 0)),
        ({1: [0, 1], 2: [2, 3]}, {3: [2, 3]}, (0, 0)),  # the others have computed them again
        ({1: [0, 1]}, {3: [2, 3]}, (0, 0)),  # it died after its gradients counted
        ({1: [0, 1], 2: [1, 3]}, {}, (1, 0)),
        ({1: [0, 1], 2: [2]}, {}, (0, 1)),
        ({1: [0, 1, 2], 2: [2, 3]}, {}, (1, 1)),
    ],
)
def test_samples_that_are_missing_or_doubled_in_a_step_are_counted(
    committed: Ids, died: Ids, expected: tuple[int, int]
) -> None:
    assert count_samples(entries(committed, died), global_batch=4, num_samples=8) == expected


def test_a_sample_that_comes_in_too_many_steps_is_counted() -> None:
    found = [entry for step in range(4) for entry in entries({1: [0, 1]}, step=step)]
    assert count_samples(found, global_batch=2, num_samples=4)[0] == 0  # two epochs, and a part of the next
    found += [entry for step in range(4, 6) for entry in entries({1: [0, 1]}, step=step)]
    assert count_samples(found, global_batch=2, num_samples=4)[0] == 2


def numbered(computed: list[tuple[int, list[int]]], counted: dict[int, list[int]]) -> list[Entry]:
    """Return what processes wrote in a step: micro-batches with their samples, and with which ones the step counts."""
    found = [Entry("computed", 0.0, 1, {"step": 0, "ids": ids, "micro_batch": number}) for number, ids in computed]
    return found + [Entry("counted", 1.0, pid, {"step": 0, "micro_batches": each}) for pid, each in counted.items()]


@pytest.mark.parametrize(
    ("computed", "counted", "expected"),
    [
        ([(0, [0, 1]), (1, [2, 3])], {1: [0, 1], 2: [0, 1]}, (0, 0)),
        ([(0, [0, 1]), (1, [2, 3]), (1, [2, 3])], {1: [0, 1]}, (0, 0)),  # computed again after a loss
        ([(0, [0, 1]), (1, [2, 3])], {1: [0]}, (0, 1)),
        ([(0, [0, 1])], {1: [0, 1]}, (0, 1)),  # nobody computed what is said to count
        ([(0, [0, 1]), (1, [2, 3])], {1: [0, 1, 1]}, (2, 1)),
        ([(0, [0, 1]), (1, [2, 3])], {1: [0, 1], 2: [0]}, (1, 0)),  # members differ
        ([(0, [0, 1]), (1, [2, 3]), (1, [2, 4])], {1: [0, 1]}, (1, 0)),  # computed again with other samples
        ([(0, [0, 1]), (1, [1, 3])], {1: [0, 1]}, (1, 0)),
    ],
)
def test_samples_of_micro_batches_that_count_are_counted(
    computed: list[tuple[int, list[int]]], counted: dict[int, list[int]], expected: tuple[int, int]
) -> None:
    assert count_samples(numbered(computed, counted), global_batch=4, num_samples=8) == expected


def test_only_the_rank_in_an_order_strikes_itself_and_only_in_its_phase(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    struck: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "kill", lambda pid, signum: struck.append((pid, signum)))
    journal, path = tmp_path / "journal", tmp_path / "orders"
    give_order(path, Order(number=1, ranks=[0, 1], phase="forward"))
    ranks = [Orders(path, rank, JournalWriter(str(journal))) for rank in range(2)]
    for each in ranks:
        each.begin(0)
        each.reach("forward")
    assert not struck  # that order was of a time before them
    give_order(path, Order(number=2, ranks=[1], phase="backward"))
    for each in ranks:
        each.begin(1)
        each.reach("forward")
        each.reach("backward")
        each.reach("backward")
    assert struck == [(os.getpid(), 9)]
    (told,) = [json.loads(line) for line in journal.read_text().splitlines()]
    assert (told["event"], told["rank"], told["step"], told["phase"]) == ("strike", 1, 1, "backward")


@pytest.mark.parametrize("phase", ["detect", "agree", "form", "redo", "transfer"])
def test_another_rank_strikes_itself_in_the_recovery_though_the_order_came_after_its_step_began(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, phase: str
) -> None:
    struck: list[int] = []
    monkeypatch.setattr(os, "kill", lambda pid, signum: struck.append(signum))
    orders = [Orders(tmp_path / "orders", rank, JournalWriter(str(tmp_path / "journal"))) for rank in range(3)]
    orders[1].begin(0)
    give_order(tmp_path / "orders", Order(number=1, ranks=[0], phase="forward", then=(1, phase)))
    for each in (orders[0], orders[2]):
        each.begin(0)
        each.reach(phase)
    assert not struck
    orders[1].reach(phase)
    assert struck == [9]


def test_the_replacement_strikes_itself_once_while_the_state_comes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    struck: list[int] = []
    monkeypatch.setattr(os, "kill", lambda pid, signum: struck.append(signum))
    give_order(tmp_path / "orders", Order(number=1, ranks=[0], phase="forward", then=(0, "receive")))
    for _ in range(2):
        Orders(tmp_path / "orders", 0, JournalWriter(str(tmp_path / "journal"))).reach("receive")
    assert struck == [9]


def test_a_flipped_bit_changes_one_element_of_one_parameter(tmp_path: Path) -> None:
    orders = Orders(tmp_path / "orders", 0, JournalWriter(str(tmp_path / "journal")))
    model, same = (TASKS["clusters"].model() for _ in range(2))
    give_order(tmp_path / "orders", Order(number=1, ranks=[0], phase="flip"))
    orders.begin(0)
    orders.flip(model)
    differences = [
        int((mine != theirs).sum()) for mine, theirs in zip(model.parameters(), same.parameters(), strict=True)
    ]
    assert sum(differences) == 1
    assert all(torch.isfinite(each).all() for each in model.parameters())

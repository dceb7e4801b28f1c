"""Replicas that are killed or stopped in an exact phase of a step: the others train on as if nothing had happened."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence

import pytest
import torch

from benchmarks.elastic.journal import Entry
from benchmarks.training.faithful import count_samples
from benchmarks.training.run import Run
from benchmarks.training.sides import OURS
from benchmarks.training.tasks import TASKS
from multiworld.testing import scaled

pytestmark = pytest.mark.process

GLOBAL_BATCH = 32
LEASE_S = 1.0
RECOVER_S = 5.0  # the benchmark has the bound; here: that it comes at all
OPTIONS = ["--task", "clusters", "--dropout", "0", "--steps", "1000000", "--pause-s", "0.02", "--ids"]


@pytest.fixture
def run() -> Iterator[Run]:
    with Run(OURS, options=[*OPTIONS, "--lease-s", str(LEASE_S)]) as run:
        run.start()
        run.await_steady()
        yield run


def losses_of_plain_training(entries: Sequence[Entry], num_steps: int) -> list[float]:
    """Train alone, without a job, on the samples that were committed in each step."""
    task = TASKS["clusters"]
    dataset = task.dataset()
    model = task.model(dropout=0.0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=task.lr)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer)
    committed: dict[int, set[int]] = {}
    for entry in entries:
        if entry.event in ("commit", "computed") and entry["step"] < num_steps:
            committed.setdefault(entry["step"], set()).update(entry.fields.get("ids", ()))
    losses = []
    for step in range(num_steps):
        optimizer.zero_grad()
        batch = [torch.stack([torch.as_tensor(part) for part in parts]) for parts in _samples(dataset, committed[step])]
        loss = task.loss(model, batch)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        losses.append(loss.item())
    return losses


def _samples(
    dataset: torch.utils.data.Dataset[tuple[torch.Tensor, ...]], ids: set[int]
) -> Iterator[tuple[object, ...]]:
    return zip(*(dataset[index] for index in sorted(ids)), strict=True)


def assert_trained_as_without_failures(run: Run, up_to_step: int) -> None:
    run.journal.read()
    entries = [entry for entry in run.journal.entries if entry.fields.get("step", up_to_step) < up_to_step]
    losses: dict[int, set[float]] = {}
    for entry in entries:
        if entry.event == "commit":
            losses.setdefault(entry["step"], set()).add(entry["loss"])
    assert sorted(losses) == list(range(up_to_step))
    assert all(len(values) == 1 for values in losses.values())  # on all ranks the same
    assert count_samples(entries, GLOBAL_BATCH, len(TASKS["clusters"].dataset())) == (0, 0)  # type: ignore[arg-type]
    expected = losses_of_plain_training(entries, up_to_step)
    assert [losses[step].pop() for step in range(up_to_step)] == pytest.approx(expected, rel=1e-3)


def newest_step(run: Run) -> int:
    return max(int(entry["step"]) for entry in run.journal.entries if entry.event == "commit")


def test_training_goes_on_as_without_failures_when_ranks_are_killed_in_each_phase(run: Run) -> None:
    plan = [(1, "forward"), (0, "backward"), (2, "all-reduce"), (3, "commit"), (0, "optimizer")]
    for rank, phase in plan:
        strike = run.strike([rank], phase)
        run.recovery_s(strike, scaled(RECOVER_S))
        assert run.await_steady(after=strike.at, steps=2).keys() == {0, 1, 2, 3}
    assert_trained_as_without_failures(run, newest_step(run))


@pytest.mark.parametrize("phase", ["transfer", "receive"])
def test_training_goes_on_when_a_source_or_a_newcomer_is_killed_while_state_is_sent(run: Run, phase: str) -> None:
    first = run.strike([3], "backward")
    second = run.strike([0 if phase == "transfer" else 3], phase)
    struck = {entry.pid for entry in second.entries}
    second.survivors = [pid for pid in first.survivors if pid not in struck]
    run.recovery_s(second, scaled(RECOVER_S))
    run.await_steady(after=second.at, steps=2)
    assert_trained_as_without_failures(run, newest_step(run))


def test_a_stopped_rank_is_replaced_and_two_ranks_may_die_at_once(run: Run) -> None:
    stopped = run.strike([1], "backward", signal.SIGSTOP)
    assert run.recovery_s(stopped, scaled(LEASE_S + RECOVER_S)) >= 0
    run.await_steady(after=stopped.at, steps=2)
    assert all(not run.commits(stopped.at).get(entry.pid) for entry in stopped.entries)
    both = run.strike([0, 2], "backward")
    run.recovery_s(both, scaled(RECOVER_S))
    run.await_steady(after=both.at, steps=2)
    assert_trained_as_without_failures(run, newest_step(run))

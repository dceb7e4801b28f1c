"""A job ends where all its workers fail alike soon after the start; driven through a simulated set of hosts."""

from __future__ import annotations

from typing import Any

import pytest

from multiworld.elastic.job.failure import FailureCause
from multiworld.elastic.job.options import RestartBudget, RestartPolicy
from multiworld.elastic.job.recurrence import AFTER_JOIN, EARLY_S
from tests.unit.elastic.job.test_job import SETUP_ERROR, Hosts, agent, hosts

ALIKE = "nothing is started again, as all workers fail alike soon after the start (--max-restarts N allows N)"
NAME_ERROR = 'Traceback (most recent call last):\n  File "train.py", line 3, in <module>\n    x = y\nNameError: name y'
NO_FILE = 'Traceback (most recent call last):\n  File "train.py", line 3, in <module>\n    f()\nOSError: no file'
UNREADABLE = '  File "train.py", line 1\n    def f(:\n          ^\nSyntaxError: invalid syntax'


def training(*, greets: bool = False, **plan: Any) -> Hosts:
    default = RestartBudget(max_restarts=10, per_s=600.0)
    some = hosts(greets=greets, **{"policy": RestartPolicy.WORKER, "default_budget": default, **plan})
    some.attach(agent("a"))
    return some


def fail(some: Hosts, rank: int, traceback: str | None, **failed: Any) -> None:
    cause = FailureCause.EXCEPTION if traceback else FailureCause.EXIT
    some.fail(rank, returncode=1, **{"traceback": traceback, "cause": cause, **failed})
    some.pass_time(1.0)


def tries(some: Hosts, traceback: str | None, *, most: int = 8) -> int:
    """Return after how many tries of both workers the job has ended; ``most`` if it has not."""
    for number in range(1, most):
        fail(some, 0, traceback)
        assert some.outcome is None
        fail(some, 1, traceback)
        if some.outcome is not None:
            assert some.outcome.text == ALIKE
            return number
    return most


@pytest.mark.parametrize(("traceback", "expected"), [(NAME_ERROR, 1), (UNREADABLE, 1), (NO_FILE, 2), (None, 2)])
def test_what_all_workers_meet_before_they_join_ends_the_job(traceback: str | None, expected: int) -> None:
    assert tries(training(), traceback) == expected


def test_a_mistake_after_the_join_ends_the_job_later_than_a_step_whose_samples_are_told() -> None:
    assert tries(training(greets=True), NAME_ERROR) == AFTER_JOIN
    assert tries(training(greets=True), NO_FILE) == 8


def test_restarts_that_the_user_asked_for_are_made() -> None:
    assert tries(training(budget=RestartBudget(max_restarts=10)), NAME_ERROR) == 8


def test_without_restarts_it_is_said_that_there_are_none() -> None:
    some = training(default_budget=RestartBudget())
    fail(some, 0, NAME_ERROR)
    assert some.outcome is not None
    assert some.outcome.text == "rank 0 may not be started again: --max-restarts N allows N"


def test_a_worker_that_runs_on_keeps_the_job() -> None:
    some = training()
    for _ in range(5):
        fail(some, 0, NAME_ERROR)
    assert some.outcome is None


def test_a_worker_that_was_mended_meanwhile_keeps_the_job() -> None:
    some = training()
    fail(some, 1, NAME_ERROR)
    some.pass_time(EARLY_S)
    fail(some, 0, NAME_ERROR)
    fail(some, 0, NAME_ERROR)
    assert some.outcome is None


def test_a_worker_that_has_ended_well_keeps_the_job() -> None:
    some = training()
    fail(some, 1, NAME_ERROR)
    some.exit(some.at(1), 0)
    fail(some, 0, NAME_ERROR)
    assert some.outcome is None


@pytest.mark.parametrize(
    "other",
    [
        {"traceback": NAME_ERROR.replace("line 3", "line 4")},
        {"traceback": NAME_ERROR.replace("NameError", "ImportError")},
        {"traceback": SETUP_ERROR},
        {"traceback": NAME_ERROR, "caused_by_rank": 0},
        {"traceback": None, "cause": FailureCause.SIGNAL, "returncode": -9},
    ],
)
def test_workers_that_fail_in_another_way_may_help_themselves(other: dict[str, Any]) -> None:
    some = training()
    fail(some, 0, NAME_ERROR)
    some.fail(1, **{"returncode": 1, "cause": FailureCause.EXCEPTION, **other})
    assert some.outcome is None


def test_who_fails_late_has_done_something() -> None:
    some = training()
    some.pass_time(EARLY_S)
    assert tries(some, NO_FILE) == 3  # the first one does not count

"""What a ledger says of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from multiworld.training.data.ledger_check import (
    Committed,
    Data,
    LedgerReport,
    Record,
    Rewound,
    check_records,
)

DATA = Data(global_batch=4, micro_batch=2, num_samples=10)
BOTH = {"a": [0], "b": [1]}


def step(number: int, *, member: str = "a", generation: int = 1, done: Mapping[str, Sequence[int]] = BOTH) -> Committed:
    ids = [str((number * 4 + sample) % 10) for sample in range(4)]
    return Committed(member=member, step=number, generation=generation, done=done, samples=[ids[:2], ids[2:]])


def checked(*records: Record, data: Data = DATA) -> LedgerReport:
    return check_records({"a": data}, records)


def told(report: LedgerReport) -> list[str]:
    return [str(problem) for problem in report.problems]


def test_a_run_without_faults_has_each_sample_once() -> None:
    report = checked(*(step(number, member=member) for number in range(5) for member in "ab"))
    assert (report.steps, report.samples, report.void, report.problems) == (5, 20, 0, ())
    assert str(report) == "5 steps with 20 samples: each sample once, the global batch constant"


def test_one_member_is_enough_for_a_step() -> None:
    assert told(checked(step(0), step(1, member="b"), step(2, member="b"))) == []


def test_the_same_step_of_two_generations_is_one_step() -> None:
    """A survivor learns in the next generation that the step counted in which a peer was lost."""
    assert told(checked(step(0), step(0, member="b", generation=2))) == []


def test_a_step_that_only_a_dead_member_knew_of_is_computed_again_by_the_others() -> None:
    again = step(0, member="b", generation=2, done={"b": [0, 1]})
    report = checked(step(0), again, step(1, member="b", generation=2))
    assert (report.steps, report.samples, report.problems) == (2, 8, ())


def test_what_lost_members_committed_after_the_checkpoint_is_void_whatever_their_generation() -> None:
    """Another launcher counts generations from 1 again."""
    alone = {"c": [0, 1]}
    lost = [step(number, member=member, generation=5) for number in range(4) for member in "ab"]
    back = Rewound(member="c", step=2, generation=1, before=("a", "b"))
    again = [step(number, member="c", generation=1, done=alone) for number in range(2, 6)]
    report = checked(*lost, back, *again)
    assert (report.steps, report.samples, report.void, told(report)) == (6, 24, 2, [])
    assert told(checked(*lost, *again)), "nothing else says that the training began anew"


@pytest.mark.parametrize(
    ("records", "what"),
    [
        (
            [step(0), step(0, member="b", generation=2, done={"b": [0, 1]}), step(1)],
            (
                "step 0: committed in two ways: a did [0], b did [1] (generation 1, says a) and "
                "b did [0, 1] (generation 2, says b)"
            ),
        ),
        ([step(0, done={"a": [0, 1], "b": [1]})], "step 0: micro-batch 1 was computed 2 times, by a, b"),
        ([step(0, done={"a": [0]})], "step 0: micro-batch 1 was computed by nobody"),
        ([step(0, done={"a": [0, 1, 2]})], "step 0: micro-batch 2 was computed, and a step has 2"),
        ([step(0), step(3)], "step 1: nobody wrote steps 1 to 2"),
        ([step(1)], "step 0: nobody wrote steps 0 to 0"),
        ([replace(step(0), samples=[["0", "1"], ["2"]])], "step 0: 3 samples, not the global batch of 4"),
        (
            [step(0), replace(step(1), samples=[["4", "1"], ["6", "7"]])],
            "step 1: sample 1 came in epoch 0 before, in step 0",
        ),
        ([replace(step(0), samples=[["0", "1"], ["2", "2"]])], "step 0: sample 2 came in epoch 0 before, in step 0"),
        (
            [step(0), replace(step(0, member="b"), samples=[["0", "1"], ["3", "2"]])],
            "step 0: a and b say that it had different samples",
        ),
    ],
)
def test_what_is_wrong_is_named(records: list[Record], what: str) -> None:
    assert told(checked(*records)) == [what]


def test_a_sample_may_come_again_in_the_next_epoch_within_the_same_step() -> None:
    assert told(checked(step(0), step(1), replace(step(2), samples=[["8", "9"], ["8", "0"]]))) == []


def test_a_sampler_that_repeats_samples_may_do_so() -> None:
    records = [replace(step(0), samples=[["1", "1"], ["2", "1"]])]
    assert told(checked(*records, data=replace(DATA, is_once=False))) == []


def test_a_stream_has_each_sample_once_in_all() -> None:
    endless = replace(DATA, num_samples=None)
    assert told(checked(replace(step(0)), data=endless)) == []
    again = replace(step(1), samples=[["4", "5"], ["0", "6"]])
    assert told(checked(step(0), again, data=endless)) == ["step 1: sample 0 came in epoch 0 before, in step 0"]


def test_what_was_committed_before_a_way_back_does_not_count() -> None:
    other = {"a": [0, 1]}
    lost = [step(number) for number in range(4)]
    back = Rewound(member="a", step=2, generation=5)
    report = checked(*lost, back, step(2, generation=5, done=other), step(3, generation=6, done=other))
    assert (report.steps, report.void, told(report)) == (4, 2, [])


def test_a_ledger_that_began_later_lacks_no_earlier_steps() -> None:
    resumed = replace(DATA, first_step=7)
    assert told(checked(step(7), step(8), data=resumed)) == []


def test_members_with_other_data_are_named() -> None:
    report = check_records({"a": DATA, "b": replace(DATA, num_samples=11), "c": replace(DATA, first_step=3)}, [step(0)])
    assert [problem.what.split(":")[0] for problem in report.problems] == ["b had other data than a"]


def test_many_problems_are_counted() -> None:
    words = str(checked(*(replace(step(number), samples=[]) for number in range(30)))).splitlines()
    assert words[0] == "30 steps with 0 samples, and 30 problems:"
    assert (len(words), words[-1]) == (22, "and 10 more")

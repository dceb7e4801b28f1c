"""What a member writes into the ledger when steps count, and when the training begins anew."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from multiworld.training.data.ledger import check_ledger
from multiworld.training.data.ledger_check import Data
from multiworld.training.data.recorder import CommitRecorder
from multiworld.training.engine.facts import Facts


class Pairs:
    """Steps of two samples, one a micro-batch."""

    def samples(self, step: int) -> Sequence[Sequence[str]]:
        return [[str(2 * step)], [str(2 * step + 1)]]

    def data(self) -> Data:
        return Data(global_batch=2, micro_batch=1, num_samples=100)


def facts(step: int, *members: str) -> list[Facts]:
    dealt = [(0, 1)] if len(members) == 1 else [(0,), (1,)]
    return [Facts(step=step, member=member, done=done) for member, done in zip(members, dealt, strict=True)]


def test_a_training_that_begins_anew_takes_back_what_lost_members_committed_later(tmp_path: Path) -> None:
    for member in ("a", "b"):
        lost = CommitRecorder(tmp_path, member, Pairs())
        for step in range(5):
            lost.commit(step, 3, facts(step, "a", "b"), num_restarts=1)
        lost.close()
    alone = CommitRecorder(tmp_path, "c", Pairs())
    for step in range(3, 7):  # from a checkpoint of step 3, under a launcher that counts from 1
        alone.commit(step, 1, facts(step, "c"), num_restarts=1)
    alone.close()
    report = check_ledger(tmp_path)
    assert (report.steps, report.samples, report.void, report.problems) == (7, 14, 2, ())


def test_those_who_begin_together_take_nothing_of_each_other_back(tmp_path: Path) -> None:
    recorders = {member: CommitRecorder(tmp_path, member, Pairs()) for member in ("a", "b")}
    for step in range(3):
        for recorder in recorders.values():
            recorder.commit(step, 1, facts(step, "a", "b"), num_restarts=1)
    newcomer = CommitRecorder(tmp_path, "c", Pairs())
    for step in range(3, 5):
        for recorder in (recorders["a"], newcomer):
            recorder.commit(step, 2, facts(step, "a", "c"), num_restarts=int(recorder is not newcomer))
    report = check_ledger(tmp_path)
    assert (report.steps, report.void, report.problems) == (5, 0, ())


def test_a_member_that_goes_back_itself_voids_older_generations(tmp_path: Path) -> None:
    recorder = CommitRecorder(tmp_path, "a", Pairs())
    for step, generation in ((0, 1), (1, 1), (2, 1), (1, 2), (2, 2)):
        recorder.commit(step, generation, facts(step, "a"))
    report = check_ledger(tmp_path)
    assert (report.steps, report.void, report.problems) == (3, 2, ())

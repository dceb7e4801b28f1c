"""The conformance suite finds what it is there to find: each defect fails the check that names it."""

from __future__ import annotations

import unittest
from collections.abc import Iterator

import pytest

from multiworld.channel.base import DataChannel
from multiworld.testing import check_returned, measure
from multiworld.testing.channel_conformance import ConformanceError, Effort, Examiner, Subject
from multiworld.testing.channel_conformance.__main__ import main as examine
from tests.process import defective_channels as defects

EFFORT = Effort(check_timeout_s=5.0, num_kills=1)


def subject(defect: type[DataChannel], *world_sizes: int) -> Subject:
    return Subject(f"{defect.__module__}:{defect.__name__}", world_sizes=world_sizes or (2,))


@pytest.fixture(scope="module")
def examiner() -> Iterator[Examiner]:
    """Two processes for all tests: a defect leaves nothing in them that another world would notice."""
    before = measure()
    with Examiner(subject(defects.Drops), EFFORT) as examiner:
        yield examiner
    check_returned(before)


@pytest.mark.parametrize(
    ("defect", "check", "complaint"),
    [
        (defects.OutOfOrder, "messages_of_a_tag_keep_their_order", "got another message"),
        (defects.Drops, "every_dtype_and_shape_arrives", r"hangs after .* in: recv\("),
        (defects.TakesAnything, "what_does_not_fit_fails_alone", "had to raise TensorMismatchError, but succeeded"),
        (defects.ReadsLate, "memory_is_free_once_send_returns", "666"),
        (defects.SumsForMax, "all_reduce_reduces_to_all", "all_reduce of MAX of .* elements are wrong"),
        (
            defects.RoundsDifferently,
            "results_are_the_same_bits_everywhere_and_every_time",
            r"of torch.float32\[203\]\) over 2 ranks gave different bits on different ranks",
        ),
        (defects.CannotReduce, "what_cannot_be_reduced_is_refused_at_once", "MIN of .* had to raise TypeError"),
        (
            defects.CallsTypesTheSame,
            "collectives_that_differ_fail_everywhere",
            "of float32 and of int32 .* but succeeded",
        ),
        (defects.WritesLate, "a_receive_is_never_written_late", r"wrote into its tensor afterwards|recv\(float32"),
        (
            defects.KeepsTheMessage,
            "a_cancelled_task_ends_its_operation",
            r"recv\(float32\[1000\]",
        ),
        (defects.EndsLate, "an_operation_ends_at_its_deadline", "barrier with timeout_s=0.2 ended 1.* s late"),
        (defects.Ignores, "abort_ends_what_is_pending", "a pending recv_tensors, after abort had not ended"),
        (defects.BlocksInAbort, "abort_ends_what_is_pending", "abort blocked for 1.* s"),
        (defects.LeaksThreads, "everything_is_given_back", r"threads .* 'leaked'"),
        (defects.LeaksMemory, "everything_is_given_back", "MB of memory in use"),
        (defects.Remembers, "nothing_of_an_old_generation_reaches_a_new_one", "in the next generation.*666"),
        (defects.CountsTwice, "statistics_count", "bytes_received is"),
        (
            defects.Computes,
            "an_idle_channel_sleeps",
            r"the process (wakes up .* times a second|computes \d+% of the time)",
        ),
        (defects.Succeeds, "abort_ends_what_is_pending", "a pending recv, .* had to raise WorldBrokenError"),
    ],
)
def test_a_defect_fails_the_check_that_names_it(
    examiner: Examiner, defect: type[DataChannel], check: str, complaint: str
) -> None:
    examiner.subject = subject(defect)
    with pytest.raises(ConformanceError, match=complaint) as caught:
        examiner.run(check)
    assert f"--only {check} --seed 1" in str(caught.value)


def test_what_those_lose_whose_world_ends_with_a_leave_is_found() -> None:
    complaint = pytest.raises(ConformanceError, match=r"recv\(float32\[2000\], 1|PeerLeftError")
    with Examiner(subject(defects.CutsShort, 3), EFFORT) as examiner, complaint:
        examiner.run("the_last_collective_ends_well_for_who_comes_late")


def test_a_false_success_on_a_lost_peer_is_found_when_one_is_killed(examiner: Examiner) -> None:
    examiner.subject = subject(defects.Succeeds)
    with pytest.raises(ConformanceError, match=r"was killed .* succeeded with wrong data|succeeded instead of raising"):
        examiner.run("a_killed_member_breaks_its_worlds")


def test_what_needs_more_members_or_does_not_work_here_is_skipped(examiner: Examiner) -> None:
    examiner.subject = subject(defects.Drops)
    with pytest.raises(unittest.SkipTest, match="it needs 3 members"):
        examiner.run("a_kill_disturbs_no_other_world")
    examiner.subject = Subject("tcp", world_sizes=(2,), skip={"statistics_count": "counts are not kept"})
    with pytest.raises(unittest.SkipTest, match="counts are not kept"):
        examiner.run("statistics_count")
    examiner.subject = Subject("tcp", world_sizes=(2,), kill_ends_all="its launcher is like that")
    with pytest.raises(unittest.SkipTest, match="it kills a member, which ends all: its launcher is like that"):
        examiner.run("a_killed_member_breaks_its_worlds")


def test_the_command_prints_a_line_for_each_check_and_fails_with_the_channel(
    capsys: pytest.CaptureFixture[str],
) -> None:
    place = subject(defects.SumsForMax).backend
    chosen = ["--only", "all_reduce*", "--only", "barrier*", "--world-sizes", "2", "--check-timeout", "10"]
    assert examine([place, *chosen]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("BROKEN")
    assert any(line.startswith("holds") and line.endswith("barrier_waits_for_all") for line in lines)
    assert lines[-1].startswith(f"{place}: 1 holds, 1 BROKEN")


def test_the_command_says_what_is_wrong_with_its_arguments_and_what_is_missing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for arguments, complaint in (
        (["pigeon"], "unknown backend 'pigeon'"),
        ([], "NAME is missing"),
        (["tcp", "--only", "nothing"], "no check is called nothing"),
        (["tcp", "--skip", "nothing=why"], "no check 'nothing'"),
        (["tcp", "--world-sizes", "two"], "expected numbers"),
        (["tcp", "--world-sizes", "0"], "none below 1"),
        (["tcp", "--kills", "0"], "num_kills is 0"),
    ):
        with pytest.raises(SystemExit, match="2"):
            examine(arguments)
        assert complaint in capsys.readouterr().err
    monkeypatch.setenv("PATH", "")
    with pytest.raises(SystemExit, match="2"):
        examine(["mpi"])
    assert "mpi does not work here: there is no mpiexec" in capsys.readouterr().err
    assert examine(["--list", "--only", "barrier*"]) == 0
    assert "barrier ends on no rank before it has begun on all." in capsys.readouterr().out

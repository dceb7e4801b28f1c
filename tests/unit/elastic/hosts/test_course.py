"""What follows when the agent on a host starts, ends, cannot be reached or is lost; and the exit status."""

from __future__ import annotations

import signal

import pytest

from multiworld.elastic.hosts.course import AGREE_S, AT_ONCE_S, BEGIN_S, Act, Course

END_S = 45.0


def begun(*labels: str) -> Course:
    course = Course(labels, end_s=END_S)
    for index in range(len(labels)):
        course.ready(index, 1.0)
    course.announced(2.0)
    return course


def test_a_job_that_ends_on_all_hosts_says_nothing_and_has_its_status() -> None:
    for status in (0, 3, 137):
        course = begun("a", "b")
        course.ended(1, status, 10.0)
        course.poll(10.5)
        course.ended(0, status, 11.0)
        assert course.is_over
        assert (course.said, course.acts, course.status) == ([], [], status)


def test_a_host_that_cannot_be_reached_ends_the_others_at_once_with_what_ssh_said() -> None:
    course = Course(["a", "b"], end_s=END_S)
    course.ready(0, 1.0)
    course.ended(1, 255, 1.5, "ssh: connect to host b port 22: Connection refused")
    (said,) = course.said
    assert said == (
        "b cannot be reached: ssh: connect to host b port 22: Connection refused, "
        "and the job was ended on the other hosts"
    )
    assert course.acts == [Act.END]
    course.ended(0, 143, 2.0)
    assert course.status == 255


def test_a_host_without_the_package_gets_a_hint() -> None:
    course = Course(["a"])
    course.ended(0, 1, 1.0, "No module named multiworld")
    (said,) = course.said
    assert said.startswith(
        "a cannot take part: the command there ended with status 1: No module named multiworld (is multi"
    )
    assert course.status == 1


def test_what_a_far_end_refuses_is_said_in_its_own_words() -> None:
    course = Course(["node"])
    course.ended(0, 2, 1.0, "multiworld train: node cannot take part: its directory /no: No such file or directory")
    assert (course.said, course.status) == (["node cannot take part: its directory /no: No such file or directory"], 2)


@pytest.mark.parametrize("status", [255, 137, 1])
def test_a_host_that_is_lost_later_is_named_and_the_job_goes_on(status: int) -> None:
    course = begun("a", "b", "c")
    course.ended(2, status, 10.0)
    course.poll(10.0 + AGREE_S / 2)
    assert course.said == []
    course.poll(10.0 + AGREE_S)
    assert [each.startswith("c ") and each.endswith("; the job goes on with 2 hosts") for each in course.said] == [True]
    course.ended(0, 0, 100.0)
    course.ended(1, 0, 100.0)
    assert (course.status, course.acts) == (0, [])


def test_a_host_that_was_drained_has_left() -> None:
    course = begun("a", "b")
    course.ended(0, 0, 10.0)
    course.poll(10.0 + AGREE_S)
    assert course.said == ["a has left the job; the job goes on with 1 host"]


def test_the_status_is_that_of_the_host_that_ended_last_and_knew_it() -> None:
    course = begun("a", "b", "c")
    course.ended(0, 0, 10.0)
    course.ended(1, 7, 20.0)
    course.ended(2, 255, 21.0)
    assert course.status == 7


def test_a_failure_before_the_job_has_begun_ends_it() -> None:
    course = Course(["a", "b"], end_s=END_S)
    for index in (0, 1):
        course.ready(index, 1.0)
    course.ended(0, 1, 3.0)
    assert course.said == ["a ended with status 1 before the job had begun, and the job was ended on the other hosts"]
    assert course.acts == [Act.END]
    course.ended(1, 143, 4.0)
    assert course.status == 1


def test_a_job_that_has_run_for_long_has_begun_though_nobody_said_so() -> None:
    course = Course(["a", "b"], end_s=END_S)
    for index in (0, 1):
        course.ready(index, 1.0)
    course.ended(0, 1, 1.0 + BEGIN_S)
    assert (course.said, course.acts) == ([], [])


def test_a_line_that_a_launcher_refuses_ends_all_and_is_explained_by_it_alone() -> None:
    course = begun("a", "b")
    course.ended(0, 2, 3.0)
    assert (course.said, course.acts) == ([], [Act.END])
    course.ended(1, 143, 4.0)
    assert course.status == 2


def test_each_signal_is_more_urgent() -> None:
    course = begun("a", "b")
    course.signalled(signal.SIGINT, 10.0)
    assert course.acts == [Act.END]
    course.signalled(signal.SIGINT, 11.0)
    course.signalled(signal.SIGINT, 12.0)
    assert course.acts == [Act.END, Act.END_AT_ONCE, Act.CUT]


@pytest.mark.parametrize(
    ("statuses", "status"),
    [((143, 143), 130), ((0, 0), 0), ((137, 255), 130), ((3, 3), 3)],
)
def test_the_status_after_a_signal_is_the_launchers(statuses: tuple[int, int], status: int) -> None:
    course = begun("a", "b")
    course.signalled(signal.SIGINT, 10.0)
    for index, each in enumerate(statuses):
        course.ended(index, each, 11.0)
    assert (course.status, course.said) == (status, [])


def test_hosts_that_do_not_end_are_ended_at_once_and_then_left_alone() -> None:
    course = begun("a", "b")
    course.signalled(signal.SIGTERM, 10.0)
    course.ended(0, 143, 11.0)
    assert course.due_at == 10.0 + END_S
    course.poll(10.0 + END_S)
    course.poll(10.0 + END_S + AT_ONCE_S)
    assert course.acts == [Act.END, Act.END_AT_ONCE, Act.CUT]
    assert all(each.startswith("what runs on b has not ended in time") for each in course.said)
    course.ended(1, 137, 80.0)
    assert course.status == 143

"""Where the agents of a job answer on their host, and what is answered: pure parts."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import pytest

from multiworld.elastic.control.messages import (
    QUESTIONS,
    Drain,
    EventsOf,
    Kill,
    LogsOf,
    Question,
    StatusOf,
    WhoIsHere,
)
from multiworld.elastic.control.names import control_name, find_names, short_job
from multiworld.elastic.control.questions import again, choose_agent, list_agents, status_of
from multiworld.elastic.job.job import Job
from multiworld.elastic.job.plan import JobPlan
from multiworld.elastic.job.status import JobStatus
from multiworld.errors import MessageError
from tests.unit.elastic.job.test_job import Hosts, agent, hosts

LINE = "0000000000000000: 00000002 00000000 {flags} 0001 01 {inode:>5} {name}"


def sockets(*names: str, flags: str = "00010000") -> str:
    lines = [LINE.format(flags=flags, inode=7, name="@" + name[1:]) for name in names]
    return "\n".join(["Num       RefCount Protocol Flags    Type St Inode Path", *lines, ""])


def three() -> Hosts:
    some = hosts(1, 2, greets=True)
    for name in ("a", "b", "waits"):
        some.attach(agent(name))
    return some


def job_status(some: Hosts, page: str | None = None) -> JobStatus:
    return status_of(some.job, run_id="job7", term=1, coordinator="a", page=page)


def status(some: Hosts, page: str | None = None) -> Any:
    """Return the status as it is told."""
    return json.loads(json.dumps(asdict(job_status(some, page))))


@pytest.mark.parametrize("job", ["job7", "with a space", "ü", "x" * 300, "a\nb", "none"])
def test_an_agent_is_found_by_the_name_of_its_job(job: str) -> None:
    name = control_name(job, 1000, "ab12")
    assert len(name.encode()) <= 107
    assert find_names(sockets(name), 1000) == {short_job(job): [name]}


def test_long_names_of_jobs_stay_apart() -> None:
    assert short_job("x" * 300) != short_job("x" * 301)


def test_only_listeners_of_this_user_are_found() -> None:
    mine, other = control_name("job7", 1000, "ab12"), control_name("job7", 1001, "cd34")
    assert find_names(sockets(mine, other, "\0multiworld-agent-12"), 1000) == {"job7": [mine]}
    assert not find_names(sockets(mine, flags="00000000"), 1000), "the ends of its connections have its name, too"


def test_the_agents_of_one_job_are_found_together() -> None:
    names = [control_name("job7", 0, nonce) for nonce in ("a1", "b2")]
    assert find_names(sockets(*names, control_name("job8", 0, "c3")), 0) == {
        "job7": names,
        "job8": [control_name("job8", 0, "c3")],
    }


def test_agents_are_numbered_by_their_node_ranks_and_then_as_they_came() -> None:
    assert [each.id for each in list_agents(three().job)] == ["a", "b", "waits"]
    given = hosts(2, 2)
    given.attach(agent("b", node_rank=1))
    given.attach(agent("a", node_rank=0))
    assert [each.id for each in list_agents(given.job)] == ["a", "b"]


@pytest.mark.parametrize("text", ["1", "b", "127.0.0.2", "127.0.0.2:1"])
def test_an_agent_is_meant_by_number_name_or_address(text: str) -> None:
    agents = [agent("a"), agent("b")]
    object.__setattr__(agents[1], "host", "127.0.0.2")
    assert choose_agent(agents, text).id == "b"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("2", "no agent 2: they are numbered from 0 to 1"),
        ("c", "no agent on 'c'"),
        ("127.0.0.1", "may be any of the agents 0, 1: give the number"),
    ],
)
def test_an_agent_that_is_not_clear_is_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        choose_agent([agent("a"), agent("b")], text)


def test_the_status_tells_of_hosts_workers_and_worlds() -> None:
    some = three()
    for rank in (1, 2):
        host, _ = some.running[some.at(rank)]
        some.job.worker_in_world(host, some.at(rank), "pair")
    some.fail(1)
    told = status(some, page="http://127.0.0.1:1/")
    assert (told["job"], told["phase"], told["policy"], told["generation"]) == ("job7", "running", "worker", 1)
    assert told["nodes"] == {"min": 1, "max": 2, "wanted": 2, "active": 2}
    assert [(each["hostname"], each["state"], each["node_rank"]) for each in told["agents"]] == [
        ("a", "active", 0),
        ("b", "active", 1),
        ("waits", "waiting", None),
    ]
    assert [each["coordinates"] for each in told["agents"]] == [True, False, False]
    assert [each["restarts"] for each in told["agents"]] == [1, 0, 0]
    assert [(each["rank"], each["host"], each["state"], each["restarts"]) for each in told["workers"]] == [
        (0, "a", "running", 0),
        (1, "a", "running", 1),
        (2, "b", "running", 0),
        (3, "b", "running", 0),
    ]
    assert told["worlds"] == [{"name": "pair", "ranks": [2]}], "a worker that was started again is in no world yet"
    assert told["restarts"] == 1


def test_the_status_of_a_job_that_waits_for_hosts() -> None:
    told = status(Hosts(Job(JobPlan(min_nodes=2, max_nodes=2), now=0.0)))
    assert (told["phase"], told["agents"], told["workers"]) == ("gathering", [], [])


def test_a_draining_host_is_shown_as_such() -> None:
    some = three()
    some.job.drain("b", some.now)
    assert [each["state"] for each in status(some)["agents"]] == ["active", "draining", "waiting"]


def test_only_questions_that_change_nothing_are_asked_again() -> None:
    assert again(Drain(agent="a")) is None
    assert again(StatusOf()) == StatusOf()
    assert again(EventsOf(last=0), 7) == EventsOf(last=0, since=7)


@pytest.mark.parametrize("value", [None, "1", -1, True, 1.5])
def test_a_question_with_something_else_than_a_number_is_refused(value: object) -> None:
    with pytest.raises(MessageError, match="nodes"):
        QUESTIONS.from_json({"ask": "scale", "nodes": value})


def test_a_question_with_something_else_than_a_text_is_refused() -> None:
    assert QUESTIONS.from_json({"ask": "drain", "agent": "a"}) == Drain(agent="a")
    with pytest.raises(MessageError, match="'drain' is refused: agent:"):
        QUESTIONS.from_json({"ask": "drain"})


@pytest.mark.parametrize(
    ("question", "fields"),
    [
        (WhoIsHere(), {"ask": "here"}),
        (StatusOf(), {"ask": "status"}),
        (Kill(rank=3), {"ask": "kill", "rank": 3}),
        (Kill(agent="b"), {"ask": "kill", "agent": "b"}),
        (LogsOf(last=5), {"ask": "logs", "last": 5}),
        (EventsOf(follow=True), {"ask": "events", "follow": True}),
    ],
)
def test_the_release_before_understands_what_is_asked(question: Question, fields: dict[str, Any]) -> None:
    assert QUESTIONS.to_json(question) == fields


def test_the_status_tells_since_when_a_worker_runs_in_which_process_and_how_often_it_may_fail_yet() -> None:
    some = three()
    some.fail(1)
    worker = some.at(2)
    told = status_of(
        some.job, run_id="job7", term=1, coordinator="a", page=None, now=some.now, epoch_s=1000.0, pids={worker: 77}
    )
    by_rank = {each.rank: each for each in told.workers}
    assert by_rank[2].pid == 77
    assert by_rank[0].pid is None, "its agent has not said it yet"
    assert by_rank[0].since is not None
    assert by_rank[0].since >= 1000.0
    assert by_rank[1].restarts_left == by_rank[0].restarts_left - 1

"""Hosts are drained, and the job is scaled, while others fail: what is let go ends well, and nothing is forgotten."""

from __future__ import annotations

from contextlib import suppress

from hypothesis import given, settings
from hypothesis import strategies as st

from multiworld.elastic.job.job import Phase
from multiworld.elastic.job.options import RestartBudget, RestartPolicy

from ..unit.elastic.job.test_job import Hosts, agent, hosts, reports_of, take_over
from .test_elastic_job_property import check_ranks

EVENTS = ("attach", "lose", "fail", "kill", "drain", "scale", "take over", "wait")
MAX_HOSTS = 5


def resumed(some: Hosts, lost: str) -> Hosts:
    """Let another coordinator take over; hosts without ranks begin anew with it."""
    infos = [info for info in some.job.nodes.agents.values() if info.id != lost]
    after = take_over(some, lost, expected=[info.id for info in infos])
    for info in infos:
        after.attach(info, *reports_of(after, info.id))
        if info.id in after.resets:
            after.running = {worker: place for worker, place in after.running.items() if place[0] != info.id}
            after.attach(info)
    after.pass_time(after.job.plan.resume_s)
    return after


def check_let_go(some: Hosts) -> None:
    attached = {info.id for info in some.job.nodes.agents.values()}
    assert not attached & set(some.released)
    assert {host for host, _ in some.running.values()} <= attached
    deadline = some.job.next_deadline()
    if deadline is not None and deadline <= some.now:
        some.pass_time(0.0)
        deadline = some.job.next_deadline()
        assert deadline is None or deadline > some.now, "it would be polled without end"


@settings(max_examples=150, deadline=None)
@given(
    policy=st.sampled_from([RestartPolicy.WORKER, RestartPolicy.ALL, RestartPolicy.WORLD]),
    ends_well=st.booleans(),
    min_nodes=st.integers(1, 2),
    events=st.lists(st.tuples(st.sampled_from(EVENTS), st.integers(0, 11)), max_size=30),
)
def test_what_is_let_go_ends_and_the_others_have_all_ranks(
    policy: RestartPolicy, ends_well: bool, min_nodes: int, events: list[tuple[str, int]]
) -> None:
    some = hosts(min_nodes, 4, greets=True, policy=policy, budget=RestartBudget(max_restarts=1000), last_call_s=0.0)
    some.ends_well = ends_well
    names = iter(f"host{number}" for number in range(1000))
    for kind, number in [("attach", 0), ("attach", 0), *events]:
        attached, workers = [info.id for info in some.job.nodes.agents.values()], sorted(some.running)
        if kind == "attach" and len(attached) < MAX_HOSTS:
            some.attach(agent(next(names), num_workers=1 + number % 2))
        elif kind == "lose" and len(attached) > 1:
            some.lose(attached[number % len(attached)])
        elif kind == "fail" and workers:
            some.exit(workers[number % len(workers)], -9)
        elif kind == "kill" and workers:
            some.carry_out(some.job.kill(some.running[workers[number % len(workers)]][1].rank))
        elif kind == "take over" and len(attached) > 1:
            some = resumed(some, attached[number % len(attached)])
        elif kind == "wait":
            some.pass_time(20.0)
        else:
            ask(some, kind, number, attached)
        check_ranks(some)
        check_let_go(some)
    some.pass_time(20.0)
    job = some.job
    if job.phase is Phase.RUNNING and not job.vacant:
        sizes = {info.id: info.num_workers for info in job.nodes.agents.values()}
        assert sorted(some.ranks) == list(range(sum(sizes[name] for name in job.nodes.active)))
        assert len(job.nodes.active) == min(job.nodes.wanted, len(job.nodes.agents))
        assert not job.nodes.draining


def ask(some: Hosts, kind: str, number: int, attached: list[str]) -> None:
    with suppress(ValueError):  # too few would be left
        if kind == "drain" and attached:
            some.carry_out(some.job.drain(attached[number % len(attached)], some.now))
        elif kind == "scale":
            some.carry_out(some.job.scale(1 + number % 4, some.now))

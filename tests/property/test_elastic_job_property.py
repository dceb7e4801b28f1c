"""Whatever happens to hosts, workers and coordinators, in whatever order: ranks are held once, and jobs end."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from multiworld.elastic.job.job import Phase
from multiworld.elastic.job.options import RestartBudget, RestartPolicy

from ..unit.elastic.job.test_job import Hosts, agent, hosts, reports_of, take_over

EVENTS = ("attach", "lose", "fail", "end well", "take over", "wait")
MAX_HOSTS = 4


def check_ranks(some: Hosts) -> None:
    """No two workers of one membership hold the same rank, and the workers of the present one agree on it."""
    held = [(place.generation, place.rank) for place in some.places]
    assert len(set(held)) == len(held), held
    present = [place for place in some.places if place.generation == some.job.generation]
    for name in ("world_size", "num_nodes", "master_port"):
        assert len({getattr(place, name) for place in present}) <= 1
    assert all(0 <= place.rank < place.world_size for place in present)
    assert {host for host, _ in some.running.values()} <= {info.id for info in some.job.nodes.agents.values()}


def check_complete(some: Hosts, finished: int) -> None:
    """While the job runs with enough hosts, every rank runs, unless it has ended well or waits for its next start."""
    job = some.job
    if job.phase is Phase.RUNNING and not job.vacant and not job.next_deadline():
        size = sum(info.num_workers for info in job.nodes.agents.values() if info.id in job.nodes.active)
        assert len(some.running) + finished >= size


@settings(max_examples=150, deadline=None)
@given(
    policy=st.sampled_from([RestartPolicy.WORKER, RestartPolicy.ALL, RestartPolicy.WORLD, RestartPolicy.AUTO]),
    greets=st.booleans(),
    min_nodes=st.integers(1, 2),
    events=st.lists(st.tuples(st.sampled_from(EVENTS), st.integers(0, 11)), max_size=30),
)
def test_ranks_are_held_once_whatever_happens(
    policy: RestartPolicy, greets: bool, min_nodes: int, events: list[tuple[str, int]]
) -> None:
    some = hosts(min_nodes, 3, greets=greets, policy=policy, budget=RestartBudget(max_restarts=1000), last_call_s=0.0)
    names = iter(f"host{number}" for number in range(1000))
    finished = 0
    for kind, number in [("attach", 0), ("attach", 0), *events]:
        workers = sorted(some.running)
        attached = [info.id for info in some.job.nodes.agents.values()]
        if kind == "attach" and len(attached) < MAX_HOSTS:
            some.attach(agent(next(names), num_workers=1 + number % 2))
        elif kind == "lose" and len(attached) > 1:
            some.lose(attached[number % len(attached)])
        elif kind == "fail" and workers:
            some.exit(workers[number % len(workers)], -9)
        elif kind == "end well" and workers:
            some.exit(workers[number % len(workers)], 0)
            finished += 1
        elif kind == "take over" and len(attached) > 1 and not finished:
            lost = attached[number % len(attached)]
            infos = {info.id: info for info in some.job.nodes.agents.values()}
            some = take_over(some, lost, expected=[each for each in attached if each != lost])
            for name in [each for each in attached if each != lost]:
                some.attach(infos[name], *reports_of(some, name))
        elif kind == "wait":
            some.pass_time(20.0)
        if some.job.phase is Phase.OVER:
            break
        check_ranks(some)
        check_complete(some, finished)
    if some.job.phase is not Phase.OVER:
        some.carry_out(some.job.interrupted(15, some.now))
    assert some.outcome is not None
    assert not some.running

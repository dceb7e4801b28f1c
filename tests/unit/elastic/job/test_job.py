"""The job's decisions, driven through a simulated set of hosts that carries out what is ordered."""

from __future__ import annotations

import itertools
import signal
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from multiworld.elastic.job.actions import (
    Action,
    End,
    Kill,
    Master,
    OpenMaster,
    Outcome,
    Reassign,
    Record,
    Regroup,
    Release,
    Reset,
    Start,
    Stop,
    WorkerReport,
)
from multiworld.elastic.job.assignment import Assignment
from multiworld.elastic.job.ending import MAX_FAILURES
from multiworld.elastic.job.failure import FailureCause, WorkerFailure
from multiworld.elastic.job.job import LARGE_JOB, Job, Phase
from multiworld.elastic.job.layout import AgentInfo
from multiworld.elastic.job.options import RestartBudget, RestartPolicy
from multiworld.elastic.job.placement import MAX_PLACES
from multiworld.elastic.job.plan import JobPlan
from multiworld.elastic.job.roster import Roster, RosterEntry


def agent(name: str, *, num_workers: int = 2, node_rank: int | None = None, role: str = "default") -> AgentInfo:
    return AgentInfo(
        id=name,
        host="127.0.0.1",
        port=1,
        hostname=name,
        pid=1,
        num_workers=num_workers,
        role=role,
        node_rank=node_rank,
    )


def failure(rank: int, **fields: Any) -> WorkerFailure:
    known: dict[str, Any] = {
        "rank": rank,
        "local_rank": 0,
        "node_rank": 0,
        "role": "default",
        "hostname": "h",
        "pid": 1,
        "generation": 1,
        "returncode": 1,
        "at_us": 0,
        "cause": FailureCause.EXIT,
    }
    return WorkerFailure(**{**known, **fields})


@dataclass
class Hosts:
    """What agents would do: start, stop and reassign workers at once, and open stores."""

    job: Job
    now: float = 0.0
    term: int = 1
    running: dict[str, tuple[str, Assignment]] = field(default_factory=dict)  # by worker: its agent and place
    orders: list[Action] = field(default_factory=list)
    started: list[Start] = field(default_factory=list)
    stopped: list[str] = field(default_factory=list)
    resets: list[str] = field(default_factory=list)
    released: list[str] = field(default_factory=list)
    records: list[str] = field(default_factory=list)
    ends_well: bool = False  # whether workers that are asked to end do so with status 0
    outcome: Outcome | None = None
    greets: bool = False  # whether workers use multiworld
    ports: Any = field(default_factory=lambda: itertools.count(1000))

    def carry_out(self, actions: list[Action]) -> None:
        self.orders += actions
        for action in actions:
            if isinstance(action, Start):
                self.running[action.worker] = (action.agent, action.assignment)
                self.started.append(action)
                if self.greets:
                    self.job.worker_greeted(action.agent, action.worker)
            elif isinstance(action, Stop):
                for worker in action.workers:
                    self.stopped.append(worker)
                    self.exit(worker, 0 if self.ends_well and action.signum == signal.SIGTERM else -action.signum)
            elif isinstance(action, Kill):
                self.exit(action.worker, -9)
            elif isinstance(action, Reassign):
                self.running[action.worker] = (action.agent, action.assignment)
            elif isinstance(action, Regroup):
                self.regroup(action)
            elif isinstance(action, OpenMaster):
                port = next(self.ports)
                self.carry_out(self.job.master_opened(action.generation, "127.0.0.1", port, self.now))
            elif isinstance(action, Record):
                self.records.append(action.kind)
            elif isinstance(action, Reset):
                self.resets.append(action.agent)
            elif isinstance(action, Release):
                self.released.append(action.agent)
            elif isinstance(action, End):
                self.outcome = action.outcome

    def regroup(self, action: Regroup) -> None:
        roles = {info.id: info.role for info in self.job.nodes.agents.values()}
        for worker, (host, place) in self.running.items():
            if host in action.agents:
                self.running[worker] = (host, action.membership.renewed(place, roles[host]))

    def attach(self, info: AgentInfo, *reports: WorkerReport) -> None:
        self.carry_out(self.job.agent_attached(info, reports, self.now))

    def lose(self, name: str) -> None:
        self.running = {worker: place for worker, place in self.running.items() if place[0] != name}
        self.carry_out(self.job.agent_lost(name, "its process has ended", self.now))

    def exit(self, worker: str, returncode: int, **failed: Any) -> None:
        if worker in self.running:
            host, place = self.running.pop(worker)
            found = failure(place.rank, **{"text": f"status {returncode}", "returncode": returncode, **failed})
            self.carry_out(self.job.worker_exited(host, worker, returncode, found, self.now))

    def fail(self, rank: int, returncode: int = -9, **failed: Any) -> None:
        self.exit(self.at(rank), returncode, **failed)

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.carry_out(self.job.poll(self.now))

    def at(self, rank: int) -> str:
        (worker,) = [worker for worker, (_, place) in self.running.items() if place.rank == rank]
        return worker

    @property
    def ranks(self) -> dict[int, str]:
        """The host of every running rank."""
        return {place.rank: host for host, place in sorted(self.running.values(), key=lambda each: each[1].rank)}

    @property
    def places(self) -> list[Assignment]:
        return sorted((place for _, place in self.running.values()), key=lambda place: place.rank)


def hosts(min_nodes: int = 1, max_nodes: int = 1, *, greets: bool = False, **plan: Any) -> Hosts:
    job = Job(JobPlan(min_nodes=min_nodes, max_nodes=max_nodes, **plan), now=0.0)
    return Hosts(job, greets=greets)


def test_nothing_starts_before_enough_hosts_are_there() -> None:
    some = hosts(2, 2)
    some.attach(agent("a"))
    assert not some.running
    some.attach(agent("b"))
    assert some.ranks == {0: "a", 1: "a", 2: "b", 3: "b"}
    assert {place.world_size for place in some.places} == {4}
    assert {place.generation for place in some.places} == {1}
    assert len({place.master_port for place in some.places}) == 1


def test_given_node_ranks_decide_the_order() -> None:
    some = hosts(2, 2)
    some.attach(agent("b", node_rank=1))
    some.attach(agent("a", node_rank=0))
    assert some.ranks == {0: "a", 1: "a", 2: "b", 3: "b"}


def test_roles_are_counted_by_themselves() -> None:
    some = hosts(2, 2)
    some.attach(agent("a", role="trainer"))
    some.attach(agent("b", role="server", num_workers=1))
    assert [(place.role_rank, place.role_world_size) for place in some.places] == [(0, 2), (1, 2), (0, 1)]


def test_an_elastic_job_waits_for_the_last_call_and_no_longer() -> None:
    some = hosts(1, 2, last_call_s=3.0)
    some.attach(agent("a"))
    assert some.job.next_deadline() == 3.0
    some.pass_time(2.9)
    assert not some.running
    some.pass_time(0.1)
    assert some.ranks == {0: "a", 1: "a"}


def test_a_job_that_nobody_completes_ends_and_says_how_many_came() -> None:
    some = hosts(2, 2, join_timeout_s=10.0)
    some.attach(agent("a"))
    some.pass_time(10.0)
    assert some.outcome is not None
    assert some.outcome.status == 1
    assert some.outcome.text == "only 1 of 2 hosts came within 10 s"


def test_a_job_ends_well_when_every_worker_has() -> None:
    some = hosts()
    some.attach(agent("a"))
    some.fail(0, 0)
    assert some.outcome is None
    some.fail(1, 0)
    assert some.outcome == Outcome(status=0, text="all workers have ended well")


@pytest.mark.parametrize("policy", [RestartPolicy.ALL, RestartPolicy.WORKER])
def test_nothing_is_started_again_in_the_place_of_a_worker_that_the_kernel_keeps(policy: RestartPolicy) -> None:
    some = hosts(policy=policy, budget=RestartBudget(max_restarts=3))
    some.attach(agent("a"))
    some.fail(1, cause=FailureCause.UNINTERRUPTIBLE)
    assert len(some.started) == 2
    assert some.outcome is not None
    assert (some.outcome.status, some.outcome.text) == (1, "rank 1 hangs in the kernel: nothing is started again")


def test_a_plain_program_may_not_be_started_again_unless_asked_for() -> None:
    some = hosts()
    some.attach(agent("a"))
    some.fail(1, 3)
    assert some.outcome is not None
    assert some.outcome.status == 1
    assert [each.rank for each in some.outcome.failures] == [1]
    assert "--max-restarts N allows N" in some.outcome.text


def test_all_workers_of_a_plain_program_are_started_again_in_a_new_generation() -> None:
    some = hosts(budget=RestartBudget(max_restarts=1))
    some.attach(agent("a"))
    some.fail(1)
    assert some.ranks == {0: "a", 1: "a"}
    assert {(place.generation, place.restarts) for place in some.places} == {(2, 1)}
    assert {place.master_port for place in some.places} == {1001}
    some.fail(0)
    assert some.outcome is not None
    assert some.outcome.status == 1


def test_only_the_failed_worker_of_a_program_on_worlds_is_started_again() -> None:
    some = hosts(greets=True)
    some.attach(agent("a", num_workers=4))
    others = {some.at(rank) for rank in (0, 1, 3)}
    some.fail(2)
    assert not some.stopped
    assert others < set(some.running)
    assert [(place.generation, place.restarts) for place in some.places] == [(1, 0), (1, 0), (1, 1), (1, 0)]


def test_the_workers_that_share_a_world_with_a_failed_one_are_started_again_under_world() -> None:
    some = hosts(greets=True, policy=RestartPolicy.WORLD)
    some.attach(agent("a", num_workers=4))
    for world, ranks in {"left": (0, 1), "right": (2, 3)}.items():
        for rank in ranks:
            some.job.worker_in_world("a", some.at(rank), world)
    neighbour, far = some.at(3), {some.at(0), some.at(1)}
    some.fail(2)
    assert some.stopped == [neighbour]
    assert far < set(some.running)
    assert len(some.running) == 4


def test_a_worker_that_keeps_failing_waits_longer_each_time_and_then_the_job_is_given_up() -> None:
    some = hosts(greets=True, budget=RestartBudget(max_restarts=3))
    some.attach(agent("a", num_workers=1))
    some.fail(0)
    some.fail(0)
    assert not some.running
    assert some.job.next_deadline() == pytest.approx(0.1)
    some.pass_time(0.1)
    some.fail(0)
    assert some.job.next_deadline() == pytest.approx(0.3)
    some.pass_time(0.2)
    some.fail(0)
    assert some.outcome is not None
    assert some.outcome.text == "rank 0 was started again 3 times, and may be 3 times: --max-restarts N allows N"


def test_a_budget_per_time_is_refilled() -> None:
    some = hosts(greets=True, budget=RestartBudget(max_restarts=1, per_s=60.0))
    some.attach(agent("a", num_workers=1))
    for _ in range(5):
        some.pass_time(61.0)
        some.fail(0)
    assert some.outcome is None
    assert some.places[0].restarts == 5


STEP_ERROR = "Traceback (most recent call last):\nmultiworld.training.errors.StepError: no optimizer.step()"
SETUP_ERROR = "Traceback (most recent call last):\nmultiworld.training.errors.SetupError: rank 0 and rank 1 differ"


def test_an_error_of_the_program_that_would_come_again_ends_the_job_at_once() -> None:
    some = hosts(greets=True, budget=RestartBudget(max_restarts=3))
    some.attach(agent("a"))
    some.fail(1, returncode=1, traceback=STEP_ERROR, text="StepError: no optimizer.step()")
    assert some.outcome is not None
    assert some.outcome.text == (
        "nothing is started again, as the same error would come again: StepError: no optimizer.step()"
    )
    assert len(some.started) == 2


def test_a_job_ends_at_once_when_all_workers_were_refused() -> None:
    some = hosts(greets=True, budget=RestartBudget(max_restarts=3))
    some.attach(agent("a"))
    some.fail(1, returncode=1, traceback=SETUP_ERROR)
    assert some.outcome is None
    some.fail(0, returncode=1, traceback=SETUP_ERROR)
    assert some.outcome is not None
    assert len(some.started) == 3


def test_a_worker_that_alone_was_refused_is_started_again() -> None:
    some = hosts(greets=True, budget=RestartBudget(max_restarts=3))
    some.attach(agent("a"))
    some.fail(1, returncode=1, traceback=SETUP_ERROR)
    some.fail(1, returncode=1)  # it came further this time
    some.fail(0, returncode=1, traceback=SETUP_ERROR)
    assert some.outcome is None


def test_survivors_of_a_lost_host_run_on_in_fewer_ranks_if_they_are_enough() -> None:
    some = hosts(1, 2, greets=True)
    some.attach(agent("a"))
    some.attach(agent("b"))
    survivors = {some.at(2), some.at(3)}
    some.lose("a")
    assert set(some.running) == survivors
    assert some.ranks == {0: "b", 1: "b"}
    assert {(place.generation, place.world_size) for place in some.places} == {(2, 2)}


def test_a_host_that_comes_while_workers_run_gets_new_ranks_and_disturbs_nobody() -> None:
    some = hosts(1, 3, greets=True, last_call_s=0.0)
    some.attach(agent("a"))
    before = set(some.running)
    some.attach(agent("b", num_workers=1))
    assert before < set(some.running)
    assert some.ranks == {0: "a", 1: "a", 2: "b"}
    assert {(place.generation, place.world_size) for place in some.places} == {(2, 3)}


def test_a_plain_program_is_started_again_with_a_host_that_comes() -> None:
    some = hosts(1, 2, last_call_s=0.0)
    some.attach(agent("a"))
    some.attach(agent("b"))
    assert some.ranks == {0: "a", 1: "a", 2: "b", 3: "b"}
    assert {place.generation for place in some.places} == {2}
    assert len(some.stopped) == 2


def test_a_spare_host_takes_the_ranks_of_one_that_is_lost() -> None:
    some = hosts(2, 2, greets=True)
    for name in ("a", "b", "spare"):
        some.attach(agent(name))
    survivors = {some.at(2), some.at(3)}
    some.lose("a")
    assert some.ranks == {0: "spare", 1: "spare", 2: "b", 3: "b"}
    assert survivors < set(some.running)
    assert {place.generation for place in some.places} == {2}


def test_survivors_that_are_too_few_run_on_and_wait_for_a_replacement() -> None:
    some = hosts(2, 2, greets=True, join_timeout_s=60.0)
    some.attach(agent("a"))
    some.attach(agent("b"))
    some.lose("b")
    assert some.ranks == {0: "a", 1: "a"}
    assert some.job.next_deadline() == 60.0
    some.pass_time(30.0)
    some.attach(agent("c"))
    assert some.ranks == {0: "a", 1: "a", 2: "c", 3: "c"}
    some.lose("c")
    some.pass_time(60.0)
    assert some.outcome is not None
    assert some.outcome.text == "1 of 2 hosts are left, and none came in their place within 60 s"


def test_the_others_of_a_plain_program_are_stopped_when_a_host_is_lost_and_start_with_its_replacement() -> None:
    some = hosts(2, 2)
    some.attach(agent("a"))
    some.attach(agent("b"))
    some.lose("b")
    assert not some.running
    some.attach(agent("c"))
    assert some.ranks == {0: "a", 1: "a", 2: "c", 3: "c"}


def test_a_host_whose_workers_have_all_ended_well_may_go() -> None:
    some = hosts(2, 2, greets=True)
    some.attach(agent("a"))
    some.attach(agent("b"))
    some.fail(2, 0)
    some.fail(3, 0)
    some.lose("b")
    some.fail(1)
    assert some.ranks == {0: "a", 1: "a"}
    some.fail(0, 0)
    some.fail(1, 0)
    assert some.outcome == Outcome(status=0, text="all workers have ended well")


def test_a_signal_reaches_every_worker_and_its_status_is_the_jobs() -> None:
    some = hosts(2, 2)
    some.attach(agent("a"))
    some.attach(agent("b"))
    some.carry_out(some.job.interrupted(signal.SIGTERM, some.now))
    assert len(some.stopped) == 4
    assert some.outcome is not None
    assert (some.outcome.status, some.outcome.signum) == (143, signal.SIGTERM)


def test_how_workers_end_that_are_started_again_is_asked_for_only_if_the_job_ends() -> None:
    some = hosts(2, 2, policy=RestartPolicy.ALL)
    some.attach(agent("a"))
    some.attach(agent("b"))
    stops = [each for each in some.job.agent_lost("a", "gone", some.now) if isinstance(each, Stop)]
    assert [(stop.agent, stop.quiet) for stop in stops] == [("b", True)]
    stops = [each for each in some.job.interrupted(signal.SIGTERM, some.now) if isinstance(each, Stop)]
    assert [(stop.agent, stop.quiet) for stop in stops] == [("b", False)]


def test_workers_that_end_well_on_a_signal_end_the_job_well() -> None:
    some = hosts()
    some.attach(agent("a", num_workers=1))
    worker = some.at(0)
    stops = [each for each in some.job.interrupted(signal.SIGUSR1, some.now) if isinstance(each, Stop)]
    assert [(stop.workers, stop.signum) for stop in stops] == [((worker,), signal.SIGUSR1)]
    some.exit(worker, 0)
    assert some.outcome is not None
    assert some.outcome.status == 0


def test_what_is_reported_of_a_worker_that_nobody_knows_changes_nothing() -> None:
    some = hosts()
    some.attach(agent("a"))
    assert some.job.worker_exited("a", "another", 1, None, 0.0) == []
    assert some.job.worker_exited("b", some.at(0), 1, None, 0.0) == []
    assert len(some.running) == 2


def test_a_host_that_brings_workers_of_its_own_is_told_to_end_them_first() -> None:
    some = hosts(1, 2, greets=True, last_call_s=0.0)
    some.attach(agent("a"))
    stale = WorkerReport(
        worker="7",
        local_rank=0,
        assignment=some.places[0],
        succeeded=False,
        uses_multiworld=True,
        worlds=(),
        restart_ages_s=(),
    )
    some.attach(agent("b"), stale)
    assert some.resets == ["b"]
    assert some.ranks == {0: "a", 1: "a"}


def reports_of(some: Hosts, name: str) -> list[WorkerReport]:
    return [
        WorkerReport(
            worker=worker,
            local_rank=place.local_rank,
            assignment=place,
            succeeded=False,
            uses_multiworld=some.greets,
            worlds=("w",),
            restart_ages_s=(1.0,) * place.restarts,
        )
        for worker, (host, place) in some.running.items()
        if host == name
    ]


def roster(members: list[str], *, generation: int, active: list[str], term: int = 1, **others: Any) -> Roster:
    """Return what a coordinator that is lost has told last, of those that are expected now."""
    entries = tuple(RosterEntry(id=name, host="127.0.0.1", port=1) for name in members)
    rest: dict[str, Any] = {name: tuple(each) if isinstance(each, list) else each for name, each in others.items()}
    return Roster(
        term=term, coordinator="", generation=generation, store="", members=entries, active=tuple(active), **rest
    )


def take_over(some: Hosts, lost: str, *, expected: list[str]) -> Hosts:
    """Let another coordinator resume the job of ``some``, after the host that coordinated it is lost."""
    job = Job.resume(
        some.job.plan,
        roster(
            expected,
            generation=some.job.generation,
            active=some.job.nodes.active,
            wanted_nodes=some.job.nodes.wanted,
            draining=sorted(some.job.nodes.draining),
            term=some.term,
        ),
        now=some.now,
    )
    running = {worker: place for worker, place in some.running.items() if place[0] != lost}
    return Hosts(job, now=some.now, term=some.term + 1, running=running, greets=some.greets, ends_well=some.ends_well)


def test_a_coordinator_that_takes_over_restarts_no_healthy_worker() -> None:
    some = hosts(1, 3, greets=True)
    for name in "abc":
        some.attach(agent(name))
    some.fail(4)
    after = take_over(some, "a", expected=["b", "c"])
    healthy = set(after.running)
    for name in "bc":
        after.attach(agent(name), *reports_of(after, name))
    assert set(after.running) == healthy
    assert not after.started
    assert after.ranks == {0: "b", 1: "b", 2: "c", 3: "c"}
    assert [place.restarts for place in after.places] == [0, 0, 1, 0]
    assert {place.generation for place in after.places} == {2}


def test_a_coordinator_that_takes_over_waits_for_agents_and_gives_up_those_that_do_not_come() -> None:
    some = hosts(1, 3, greets=True, resume_s=3.0)
    for name in "abc":
        some.attach(agent(name))
    after = take_over(some, "a", expected=["b", "c"])
    after.attach(agent("b"), *reports_of(after, "b"))
    assert after.job.phase is Phase.RESUMING
    after.pass_time(3.0)
    assert after.job.nodes.active == ["b"]


def test_a_plain_program_that_lost_a_host_with_its_coordinator_is_started_again() -> None:
    some = hosts(1, 2)
    some.attach(agent("a"))
    some.attach(agent("b"))
    after = take_over(some, "a", expected=["b"])
    after.attach(agent("b"), *reports_of(after, "b"))
    assert len(after.stopped) == 2
    assert after.ranks == {0: "b", 1: "b"}


def test_ids_of_workers_are_never_used_twice_even_by_another_coordinator() -> None:
    some = hosts(1, 2, greets=True)
    some.attach(agent("a"))
    some.attach(agent("b"))
    after = take_over(some, "a", expected=["b"])
    after.attach(agent("b"), *reports_of(after, "b"))
    after.fail(0)
    ids = [start.worker for start in some.started + after.started]
    assert len(set(ids)) == len(ids)


@pytest.mark.parametrize("ends_well", [True, False])
def test_a_drained_host_leaves_the_others_running(ends_well: bool) -> None:
    some = hosts(1, 3, greets=True, last_call_s=0.0)
    for name in "abc":
        some.attach(agent(name))
    some.ends_well = ends_well
    before = dict(some.running)
    some.carry_out(some.job.drain("b", some.now))
    assert some.ranks == {0: "a", 1: "a", 2: "c", 3: "c"}
    assert some.running.keys() <= before.keys()
    assert some.released == ["b"]
    assert some.job.nodes.active == ["a", "c"]
    assert [each.id for each in some.job.nodes.agents.values()] == ["a", "c"]
    assert some.job.next_deadline() is None
    for worker in list(some.running):
        some.exit(worker, 0)
    assert some.outcome is not None
    assert some.outcome.status == 0


def test_a_waiting_host_takes_the_ranks_of_a_drained_one() -> None:
    some = hosts(2, 2, greets=True)
    for name in "abc":
        some.attach(agent(name))
    some.carry_out(some.job.drain("a", some.now))
    assert some.ranks == {0: "c", 1: "c", 2: "b", 3: "b"}
    assert some.released == ["a"]


def test_a_host_is_released_only_when_its_last_worker_has_ended() -> None:
    some = hosts(1, 2, greets=True)
    some.attach(agent("a"))
    some.attach(agent("b"))
    actions = some.job.drain("b", some.now)
    (stop,) = [action for action in actions if isinstance(action, Stop)]
    assert (stop.agent, stop.signum, stop.grace_s) == ("b", signal.SIGTERM, 30.0)
    first, second = stop.workers
    some.exit(first, 0)
    assert some.job.nodes.active == ["a", "b"]
    assert some.job.next_deadline() is None, "nothing is to be started where workers end"
    assert not some.released
    some.exit(second, -15)
    assert some.job.nodes.active == ["a"]
    assert some.released == ["b"]


def test_a_host_that_is_needed_is_not_drained() -> None:
    some = hosts(2, 2, greets=True)
    some.attach(agent("a"))
    some.attach(agent("b"))
    with pytest.raises(ValueError, match=r"without it 1 hosts are left, and the job needs at least 2"):
        some.job.drain("b", some.now)
    assert len(some.running) == 4


def test_a_waiting_host_is_drained_at_once() -> None:
    some = hosts(1, 1, greets=True)
    some.attach(agent("a"))
    some.attach(agent("b"))
    some.carry_out(some.job.drain("b", some.now))
    assert some.released == ["b"]
    assert some.job.generation == 1


def test_under_all_everything_is_started_again_without_the_drained_host() -> None:
    some = hosts(1, 2)
    some.attach(agent("a"))
    some.attach(agent("b"))
    some.carry_out(some.job.drain("a", some.now))
    assert some.ranks == {0: "b", 1: "b"}
    assert some.released == ["a"]
    assert {place.generation for place in some.places} == {2}


def test_a_drain_goes_on_under_the_next_coordinator() -> None:
    before = hosts(1, 2, greets=True)
    before.attach(agent("a"))
    before.attach(agent("b"))
    job = Job.resume(before.job.plan, roster(["b", "a"], generation=1, active=["a", "b"], draining=["b"]), now=0.0)
    some = Hosts(job, running=before.running)
    some.attach(agent("a"), *reports_of(before, "a"))
    some.attach(agent("b"), *reports_of(before, "b"))
    assert job.nodes.active == ["a"]
    assert some.released == ["b"]
    assert some.ranks == {0: "a", 1: "a"}


def test_scaling_down_keeps_the_last_hosts_waiting_and_scaling_up_takes_them_in_again() -> None:
    some = hosts(1, 3, greets=True, last_call_s=0.0)
    for name in "abc":
        some.attach(agent(name))
    some.carry_out(some.job.scale(1, some.now))
    assert some.ranks == {0: "a", 1: "a"}
    assert [each.id for each in some.job.nodes.agents.values()] == ["a", "b", "c"]
    some.pass_time(60.0)
    assert some.job.nodes.active == ["a"]
    some.carry_out(some.job.scale(2, some.now))
    assert some.ranks == {0: "a", 1: "a", 2: "b", 3: "b"}
    assert not some.released


def test_scaling_keeps_to_the_limits_of_the_job() -> None:
    some = hosts(2, 3, greets=True)
    some.attach(agent("a"))
    some.attach(agent("b"))
    for num_nodes in (1, 4):
        with pytest.raises(ValueError, match=rf"{num_nodes} hosts are not possible: .*--nnodes 2:3"):
            some.job.scale(num_nodes, some.now)


def test_a_killed_rank_counts_as_a_failure() -> None:
    some = hosts(1, 1, greets=True)
    some.attach(agent("a"))
    some.carry_out(some.job.kill(1))
    assert some.ranks == {0: "a", 1: "a"}
    assert [(place.rank, place.restarts) for place in some.places] == [(0, 0), (1, 1)]
    assert "worker failed" in some.records
    with pytest.raises(ValueError, match="no worker of rank 7"):
        some.job.kill(7)


def test_a_new_coordinator_gives_up_what_runs_on_a_host_without_ranks() -> None:
    before = hosts(1, 2, greets=True)
    before.attach(agent("a"))
    before.attach(agent("b"))
    job = Job.resume(before.job.plan, roster(["b", "a"], generation=1, active=["a"], wanted_nodes=1), now=0.0)
    some = Hosts(job)
    some.attach(agent("b"), *reports_of(before, "b"))
    assert some.resets == ["b"]
    assert not job.describe(0.0)


def test_nothing_is_polled_for_workers_that_wait_for_their_generations_store() -> None:
    job = Job(JobPlan(min_nodes=1, max_nodes=1), now=0.0)
    actions = job.agent_attached(agent("a"), [], 0.0)
    assert any(isinstance(action, OpenMaster) for action in actions)
    assert job.next_deadline() is None
    job.master_opened(1, "127.0.0.1", 1000, 0.0)
    assert {worker.state for worker in job.describe(0.0)} == {"running"}


def test_the_store_of_a_generation_is_served_by_a_host_that_is_there() -> None:
    some = hosts(1, 3, greets=True, last_call_s=0.0)
    some.attach(agent("a", num_workers=1))
    some.attach(agent("b", num_workers=1))
    some.fail(0, 0)
    some.lose("a")  # it has done its work
    some.attach(agent("c", num_workers=1))
    assert some.ranks == {1: "b", 2: "c"}
    some.fail(1)
    assert some.ranks == {1: "b", 2: "c"}


def test_a_store_that_goes_with_its_host_is_served_anew_by_another() -> None:
    some = hosts(2, 2, greets=True)
    some.attach(agent("a", num_workers=1))
    some.attach(agent("b", num_workers=1))
    some.fail(0, 0)
    before = some.places[0].master_port
    some.lose("a")
    some.fail(1)
    assert some.places[0].master_port != before


def test_a_failure_that_is_heard_of_while_the_job_is_given_up_is_told_too() -> None:
    """It may have been the first: reports of other hosts take longer."""
    some = hosts(2, 2)
    some.attach(agent("a", num_workers=1))
    some.attach(agent("b", num_workers=1))
    stops: list[Action] = some.job.worker_exited("a", some.at(0), 1, failure(0, text="reset"), some.now)
    assert any(isinstance(each, Stop) for each in stops)
    some.carry_out(some.job.worker_exited("b", some.at(1), -11, failure(1, text="SIGSEGV"), some.now))
    assert some.outcome is not None
    assert [each.rank for each in some.outcome.failures] == [0, 1]


def test_a_budget_of_the_whole_job_outlives_its_coordinator() -> None:
    some = hosts(1, 2, budget=RestartBudget(max_restarts=1))
    some.attach(agent("a", num_workers=1))
    some.attach(agent("b", num_workers=1))
    some.fail(0)
    after = take_over(some, "a", expected=["b"])
    after.attach(agent("b", num_workers=1), *reports_of(after, "b"))
    after.fail(0)
    assert after.outcome is not None
    assert "was started again once, and may be once: --max-restarts N" in after.outcome.text


def test_a_generation_is_not_used_twice_though_the_roster_is_an_older_one() -> None:
    some = hosts(1, 3, greets=True, last_call_s=0.0)
    some.attach(agent("a", num_workers=1))
    some.attach(agent("b", num_workers=1))
    job = Job.resume(some.job.plan, roster(["b"], generation=1, active=["a", "b"]), now=0.0)
    after = Hosts(job, running={each: place for each, place in some.running.items() if place[0] == "b"}, greets=True)
    after.attach(agent("b", num_workers=1), *reports_of(after, "b"))
    assert {place.generation for place in after.places} == {3}


def test_a_host_that_cannot_end_its_workers_is_given_up() -> None:
    some = hosts(1, 2, budget=RestartBudget(max_restarts=1), shutdown_s=5.0, last_call_s=0.0)
    some.attach(agent("a", num_workers=1))
    some.attach(agent("b", num_workers=1))
    stuck = some.at(1)
    assert some.job.worker_exited("a", some.at(0), 1, None, some.now)
    deadline = some.job.next_deadline()
    assert deadline is not None
    assert deadline > 5.0
    del some.running[stuck]
    some.pass_time(deadline)
    assert some.resets == ["b"]
    assert some.ranks == {0: "a"}


@pytest.mark.parametrize("num_hosts", [0, 1])
def test_a_signal_while_the_job_waits_for_hosts_is_no_good_end(num_hosts: int) -> None:
    some = hosts(2, 2)
    for number in range(num_hosts):
        some.attach(agent(f"host{number}"))
    some.carry_out(some.job.interrupted(signal.SIGTERM, some.now))
    assert some.outcome is not None
    assert (some.outcome.status, some.outcome.signum) == (143, signal.SIGTERM)


def test_all_workers_together_wait_longer_each_time_that_the_program_fails_at_once() -> None:
    some = hosts(budget=RestartBudget(max_restarts=100))
    some.attach(agent("a", num_workers=1))
    some.fail(0)
    some.fail(0)
    assert not some.running
    some.pass_time(0.1)
    assert some.ranks == {0: "a"}


def test_survivors_keep_their_places_while_others_are_awaited_and_a_replacement_gets_the_lost_ones() -> None:
    some = hosts(3, 3, greets=True)
    for number, name in enumerate("abc"):
        some.attach(agent(name, num_workers=1, node_rank=number))
    before = some.places[2]
    some.lose("b")
    assert some.ranks == {0: "a", 2: "c"}
    assert some.places[1] == before
    some.fail(2)
    assert some.ranks == {0: "a", 2: "c"}
    some.attach(agent("d", num_workers=1, node_rank=1))
    assert some.ranks == {0: "a", 1: "d", 2: "c"}


def test_what_may_have_been_lost_is_said_again_to_an_agent_that_has_a_new_connection() -> None:
    some = hosts(2, 2, budget=RestartBudget(max_restarts=1))
    some.attach(agent("a", num_workers=1))
    some.attach(agent("b", num_workers=1))
    running = some.at(1)
    (again,) = some.job.agent_returned("b", reports_of(some, "b"), some.now)
    assert isinstance(again, Reassign)
    assert some.job.worker_exited("a", some.at(0), 1, None, some.now)  # the order to stop the other is lost
    (again,) = some.job.agent_returned("b", reports_of(some, "b"), some.now)
    assert isinstance(again, Stop)
    assert again.workers == (running,)


def test_a_store_that_was_asked_for_is_asked_for_again_when_the_agent_has_a_new_connection() -> None:
    job = Job(JobPlan(min_nodes=1, max_nodes=1), now=0.0)
    assert any(isinstance(each, OpenMaster) for each in job.agent_attached(agent("a"), [], 0.0))
    assert [type(each) for each in job.agent_returned("a", [], 0.0)] == [OpenMaster]
    started = job.agent_returned("a", [], 0.0, master=Master(1, "127.0.0.1", 7))
    assert [type(each) for each in started] == [Start, Start]


@pytest.mark.parametrize("how", ["signal", "given up"])
def test_a_job_that_was_ending_ends_under_the_next_coordinator_too(how: str) -> None:
    some = hosts(1, 2, greets=True, budget=RestartBudget(max_restarts=0))
    some.attach(agent("a", num_workers=1))
    some.attach(agent("b", num_workers=1))
    if how == "signal":
        assert some.job.interrupted(signal.SIGTERM, some.now)
    else:
        assert some.job.worker_exited("a", some.at(0), 1, None, some.now)
    job = Job.resume(
        some.job.plan,
        roster(
            ["b"], generation=1, active=["a", "b"], signum=some.job.ending.signum, given_up=some.job.ending.given_up
        ),
        now=0.0,
    )
    after = Hosts(job, running={each: place for each, place in some.running.items() if place[0] == "b"}, greets=True)
    after.attach(agent("b", num_workers=1), *reports_of(after, "b"))
    assert len(after.stopped) == 1
    assert after.outcome is not None
    assert after.outcome.status == (143 if how == "signal" else 1)


def test_a_worker_that_should_run_and_does_not_is_started_again_once_its_order_must_have_come() -> None:
    some = hosts(greets=True)
    some.attach(agent("a", num_workers=1))
    first = some.at(0)
    del some.running[first]  # the order was lost
    some.carry_out(some.job.agent_runs("a", [], some.now))
    assert not some.running
    some.pass_time(5.0)
    some.carry_out(some.job.agent_runs("a", [], some.now))
    assert some.ranks == {0: "a"}
    some.pass_time(5.0)
    assert some.job.agent_runs("a", list(some.running), some.now) == []
    assert "missing" in some.records


def test_a_store_that_does_not_come_is_asked_for_again() -> None:
    job = Job(JobPlan(min_nodes=1, max_nodes=1), now=0.0)
    assert any(isinstance(each, OpenMaster) for each in job.agent_attached(agent("a"), [], 0.0))
    assert job.agent_runs("a", [], 1.0) == []
    assert [type(each) for each in job.agent_runs("a", [], 5.0)] == [OpenMaster]
    assert job.agent_runs("a", [], 6.0) == []


def test_a_signal_while_a_new_coordinator_waits_for_agents_leaves_their_workers_the_grace() -> None:
    some = hosts(1, 4, greets=True, resume_s=3.0)
    for name in "abcd":
        some.attach(agent(name, num_workers=1))
    after = take_over(some, "a", expected=["b", "c", "d"])
    after.ends_well = True
    after.attach(agent("b", num_workers=1), *reports_of(after, "b"))
    after.carry_out(after.job.interrupted(signal.SIGTERM, after.now))
    assert after.job.interrupted(signal.SIGTERM, after.now) == []  # as each that follows tells it again
    assert after.outcome is None
    after.attach(agent("c", num_workers=1), *reports_of(after, "c"))
    after.attach(agent("d", num_workers=1), *reports_of(after, "d"))
    assert not after.resets
    assert len(after.stopped) == 3
    assert after.outcome == Outcome(status=0, text="ended by SIGTERM: all workers have ended well")


def test_a_worker_that_was_stopped_quietly_is_asked_how_it_ends_once_a_signal_ends_the_job() -> None:
    some = hosts(1, 2, greets=True, resume_s=3.0)
    for name in "ab":
        some.attach(agent(name, num_workers=1))
    after = take_over(some, "a", expected=["b"])
    stopping = [replace(each, stopping=True) for each in reports_of(after, "b")]
    after.carry_out(after.job.interrupted(signal.SIGTERM, after.now))
    actions = after.job.agent_attached(agent("b", num_workers=1), stopping, after.now)
    assert [(each.agent, each.quiet) for each in actions if isinstance(each, Stop)] == [("b", False)]


def test_a_signal_while_nothing_had_formed_yet_ends_the_resumed_job() -> None:
    job = Job.resume(JobPlan(min_nodes=2, max_nodes=2), roster(["b"], generation=0, active=[]), now=0.0)
    after = Hosts(job)
    after.carry_out(job.interrupted(signal.SIGTERM, 0.0))
    after.attach(agent("b"))
    assert after.outcome is not None
    assert (after.outcome.status, after.outcome.signum) == (143, signal.SIGTERM)


def failed_meanwhile(some: Hosts) -> Hosts:
    """Let the host that coordinates be lost, and a worker of another fail before all are with the next coordinator."""
    for name in "abc":
        some.attach(agent(name, num_workers=1))
    failed = some.at(1)
    after = take_over(some, "a", expected=["b", "c"])
    after.attach(agent("b", num_workers=1), *reports_of(after, "b"))
    after.exit(failed, 1)
    assert after.job.phase is Phase.RESUMING
    after.attach(agent("c", num_workers=1), *reports_of(after, "c"))
    return after


@pytest.mark.parametrize("max_restarts", [0, 1])
def test_a_worker_that_failed_while_nobody_coordinated_counts_against_its_budget(max_restarts: int) -> None:
    after = failed_meanwhile(hosts(1, 3, greets=True, budget=RestartBudget(max_restarts=max_restarts), resume_s=3.0))
    if max_restarts:
        assert after.outcome is None
        assert [place.restarts for place in after.places] == [1, 0]
    else:
        assert after.outcome is not None
        assert after.outcome.status == 1
        assert "may not be started again" in after.outcome.text


def test_workers_that_share_a_world_with_one_that_failed_meanwhile_are_started_again_too() -> None:
    some = hosts(1, 3, greets=True, policy=RestartPolicy.WORLD, resume_s=3.0)
    for name in "abc":
        some.attach(agent(name, num_workers=1))
    failed, other = some.at(1), some.at(2)
    after = take_over(some, "a", expected=["b", "c"])
    for name in "bc":
        if name == "c":
            after.exit(failed, 1)
        after.attach(agent(name, num_workers=1), *(replace(each, worlds=("pair",)) for each in reports_of(after, name)))
    assert after.stopped == [other]
    assert [place.restarts for place in after.places] == [1, 0]


def test_what_failed_with_a_host_of_a_plain_program_is_not_its_own_fault() -> None:
    after = failed_meanwhile(hosts(1, 3, budget=RestartBudget(max_restarts=0), resume_s=3.0))
    after.pass_time(3.0)
    assert after.outcome is None
    assert after.ranks == {0: "b", 1: "c"}


def test_hosts_whose_ranks_stay_are_told_of_another_membership_in_one_order() -> None:
    some = hosts(4, 4, greets=True)
    for name in "abcd":
        some.attach(agent(name))
    some.lose("b")
    some.orders.clear()
    some.attach(agent("e"))
    (regroup,) = [order for order in some.orders if isinstance(order, Regroup)]
    assert regroup.agents == ("a", "c", "d")
    assert not [order for order in some.orders if isinstance(order, Reassign)]
    assert {place.generation for place in some.places} == {2}
    said_again = some.job.agent_returned("c", reports_of(some, "c"), some.now)
    assert {order.assignment.generation for order in said_again if isinstance(order, Reassign)} == {2}


def test_only_hosts_that_move_up_are_told_their_places_one_by_one() -> None:
    some = hosts(1, 4, greets=True, last_call_s=0.0)
    for name in "abcd":
        some.attach(agent(name))
    some.orders.clear()
    some.lose("b")
    (regroup,) = [order for order in some.orders if isinstance(order, Regroup)]
    assert regroup.agents == ("a",)
    assert [order.agent for order in some.orders if isinstance(order, Reassign)] == ["c", "c", "d", "d"]
    assert some.ranks == {0: "a", 1: "a", 2: "c", 3: "c", 4: "d", 5: "d"}
    assert {(place.world_size, place.num_nodes, place.role_world_size) for place in some.places} == {(6, 3, 6)}


def test_places_are_given_out_a_few_at_a_time() -> None:
    some = hosts(2, 2)
    on_each = MAX_PLACES * 3 // 4
    some.attach(agent("a", num_workers=on_each))
    some.attach(agent("b", num_workers=on_each))
    assert len(some.running) == MAX_PLACES
    assert some.job.next_deadline() == 0.0  # at once
    some.pass_time(0.0)
    assert sorted(some.ranks) == list(range(2 * on_each))
    some.pass_time(0.0)
    assert len(some.started) == 2 * on_each


def test_what_follows_from_a_host_that_comes_to_a_large_job_is_decided_in_a_turn_of_its_own() -> None:
    num_hosts = LARGE_JOB + 1
    some = hosts(num_hosts, num_hosts)
    for number in range(num_hosts):
        some.attach(agent(f"host{number}"))
    assert not some.running
    deadline = some.job.next_deadline()
    assert deadline is not None
    assert deadline < some.now  # at once
    some.pass_time(0.0)
    assert some.running


def test_the_first_failures_of_a_large_job_are_told_at_its_end() -> None:
    num_workers = MAX_FAILURES + 2
    some = hosts(policy=RestartPolicy.WORKER, budget=RestartBudget(max_restarts=0))
    some.attach(agent("a", num_workers=num_workers))
    for _ in range(num_workers // MAX_PLACES):
        some.pass_time(0.0)
    some.carry_out(some.job.interrupted(15, some.now))
    assert some.outcome is not None
    assert [failed.rank for failed in some.outcome.failures] == list(range(MAX_FAILURES))


def test_workers_are_known_to_have_run_before_another_coordinator_took_over() -> None:
    before = hosts(1, 1, greets=True)
    before.attach(agent("a", num_workers=1))
    (report,) = reports_of(before, "a")
    job = Job.resume(before.job.plan, roster(["a"], generation=1, active=["a"]), now=500.0)
    some = Hosts(job, now=500.0, running=before.running)
    some.carry_out(job.agent_attached(agent("a", num_workers=1), [report], 500.0, ages_s={report.worker: 60.0}))
    assert [status.since for status in job.describe(500.0, epoch_s=1000.0)] == [1440.0]


def test_an_agent_that_was_told_only_of_finished_hosts_goes_on_without_running_them_twice() -> None:
    before = hosts(3, 3, greets=True)
    for name in "abc":
        before.attach(agent(name, num_workers=1))
    before.exit(before.at(2), 0)
    told = roster(
        ["a", "b", "c"],
        generation=1,
        active=before.job.nodes.active,
        finished=before.job.finished,
        known=before.job.nodes.active_agents,
    ).abridged()
    assert [info.id for info in told.known] == ["c"]
    job = Job.resume(before.job.plan, told, now=0.0, dead={"b", "c"})
    some = Hosts(job, term=2, running={worker: each for worker, each in before.running.items() if each[0] == "a"})
    some.attach(agent("a", num_workers=1), *reports_of(before, "a"))
    assert job.phase is Phase.RUNNING
    assert some.ranks == {0: "a"}
    assert (job.next_deadline() or 0.0) > 1.0  # it waits for another host, without looking again and again
    some.attach(agent("d", num_workers=1))
    assert some.ranks == {0: "a", 1: "d"}
    assert not some.resets
    some.exit(some.at(0), 0)
    some.exit(some.at(1), 0)
    assert some.outcome is not None
    assert some.outcome.status == 0

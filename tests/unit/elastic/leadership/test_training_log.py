"""Those that may succeed a coordinator know of its trainings, and are told so only from time to time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from benchmarks.elastic.job import free_port
from multiworld.elastic.job.actions import TrainingTold
from multiworld.elastic.job.options import RestartBudget, RestartPolicy
from multiworld.elastic.job.plan import JobPlan
from multiworld.elastic.job.trainings import KnownTraining
from multiworld.elastic.leadership.election import Role
from multiworld.elastic.leadership.messages import AGENT_MESSAGES, TrainingsKnown
from multiworld.elastic.leadership.training_log import COPY_S, TrainingLog
from multiworld.testing.deadlines import wait_until
from tests.unit.elastic.job.test_trainings import fault, trained
from tests.unit.elastic.simulated_agents import LEASE_S, SimulatedAgent, disorder

WAIT_S = 15.0


class Heirs:
    """What each agent was told last, and how often any was told."""

    def __init__(self, known: Iterable[KnownTraining] = ()) -> None:
        self.told: dict[str, TrainingsKnown] = {}
        self.num_told = 0
        self.now = 100.0
        self.log = TrainingLog(
            agent_id="a",
            send=self._send,
            is_recorded=lambda kind, key: False,
            known=known,
            clock=lambda: self.now,
        )

    def _send(self, agents: Sequence[str], message: TrainingsKnown) -> None:
        self.num_told += len(agents)
        copy = AGENT_MESSAGES.decode(AGENT_MESSAGES.encode(message))
        assert isinstance(copy, TrainingsKnown)
        self.told.update(dict.fromkeys(agents, copy))


def test_heirs_are_told_at_once_and_then_now_and_then() -> None:
    heirs = Heirs()
    heirs.log.attached(["a", "b", "c"])
    assert heirs.told == {}  # there is no training yet
    heirs.log.take(TrainingTold(news=trained(0)))
    assert set(heirs.told) == {"b", "c"}
    for step in range(1, 10):
        heirs.now += COPY_S / 10
        heirs.log.take(TrainingTold(news=trained(step)))
    assert heirs.num_told == 2
    heirs.now += COPY_S / 10
    heirs.log.take(TrainingTold(news=trained(10)))
    assert heirs.num_told == 4
    heirs.log.take(TrainingTold(news=trained(10, ended=True)))  # nothing may come after it
    assert heirs.num_told == 6
    assert heirs.told["b"].trainings == heirs.log.trainings.known


def test_an_heir_that_comes_late_or_again_is_told() -> None:
    heirs = Heirs()
    heirs.log.attached(["a"])
    heirs.log.take(TrainingTold(news=trained(3)))
    heirs.log.take(TrainingTold(news=fault()))
    heirs.log.attached(["a", "b"])
    assert heirs.told["b"].trainings == heirs.log.trainings.known
    heirs.told.clear()
    heirs.log.introduced("b")
    assert set(heirs.told) == {"b"}
    following = Heirs(heirs.told["b"].trainings)
    assert following.log.trainings.status() == heirs.log.trainings.status()
    assert following.log.trainings.curves() == heirs.log.trainings.curves()


def test_the_loss_curve_goes_on_when_the_coordinator_is_lost() -> None:
    plan = JobPlan(
        min_nodes=1,
        max_nodes=3,
        policy=RestartPolicy.WORKER,
        budget=RestartBudget(max_restarts=1000),
        join_timeout_s=60.0,
        last_call_s=0.1,
        shutdown_s=2.0,
        resume_s=LEASE_S + 1.0,
    )
    port = free_port()
    agents = [SimulatedAgent(port, plan) for _ in range(3)]

    def settle() -> SimulatedAgent:
        assert wait_until(lambda: disorder(agents, plan) is None, WAIT_S), disorder(agents, plan)
        (leading,) = [each for each in agents if not each.is_dead and each.leadership.role is Role.LEADING]
        return leading

    def tell(agent: SimulatedAgent, step: int) -> None:
        agent.loop.call_soon(lambda: agent.leadership.report(TrainingTold(news=trained(step))))

    def steps() -> list[int]:
        coordinator = settle().leadership.coordinator
        assert coordinator is not None
        return [step for step, _ in coordinator.trainings.curves().get("gpt", ())]

    try:
        first = settle()
        tell(first, 0)  # its own workers show the training, and are lost with it
        assert wait_until(lambda: steps() == [0], WAIT_S)
        first.kill()
        second = settle()
        tell(second, 1)
        assert wait_until(lambda: steps() == [0, 1], WAIT_S), steps()
        agents.append(SimulatedAgent(port, plan))
        settle()
        second.kill()
        tell(settle(), 2)
        assert wait_until(lambda: steps() == [0, 1, 2], WAIT_S), steps()
    finally:
        for agent in agents:
            if not agent.is_dead:
                agent.close()

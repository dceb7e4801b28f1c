"""The liveness monitor under arbitrary histories: who must be lost in time, who must never be, and nobody twice."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from multiworld.world.liveness import Cause, LivenessMonitor, LivenessPolicy, Lost, Suspected, Vital

SLACK_S = 0.25  # what detection may take beyond the lease
WIRE_S = 0.01

unhurried = settings(deadline=None)  # other work on the machine is no failure

leases = st.floats(0.3, 60) | st.sampled_from([0.3, 1.0, 2.0])
fractions = st.floats(0, 1)


@dataclass
class Peer:
    """A simulated peer: what it sends and shows, as functions of time."""

    speaks: Callable[[float], bool] = lambda now: True
    vital: Callable[[float], Vital] = lambda now: Vital.UNKNOWN
    acknowledges: Callable[[float], bool] = lambda now: True


@dataclass
class Timing:
    """How late wake-ups (in 50 ms) and heartbeats (in a quarter of their interval) come; each list is used in turn."""

    lateness: list[float]
    jitter: list[float]


@dataclass
class Simulation:
    """A shell with one monitor: it wakes for arrivals and deadlines, somewhat late, and sleeps through ``pauses``."""

    policy: LivenessPolicy
    peers: dict[str, Peer]
    timing: Timing
    pauses: list[tuple[float, float]] = field(default_factory=list)  # (at, seconds)
    polls_before_reading: bool = False  # after a pause, whether sockets are read late
    sent: dict[str, int] = field(default_factory=dict)
    num_beats: int = 0
    acknowledged_at: dict[str, float] = field(default_factory=dict)
    under_way: set[str] = field(default_factory=set)

    def run(self, until: float) -> list[tuple[float, Suspected[str] | Lost[str]]]:
        monitor: LivenessMonitor[str] = LivenessMonitor(self.policy, now=0.0)
        for name in self.peers:
            monitor.add(name, 0.0)
        found: list[tuple[float, Suspected[str] | Lost[str]]] = []
        pauses = sorted(self.pauses)
        now, num_wakes = 0.0, 0
        while now < until and (deadline := monitor.next_deadline()) is not None:
            late = self.timing.lateness[num_wakes % len(self.timing.lateness)] * 0.05
            arrival = min(self._arrival(name) for name in self.peers)
            now, num_wakes = max(min(deadline, arrival), now) + 0.001 + late, num_wakes + 1
            paused = bool(pauses) and pauses[0][0] <= now
            if paused:
                now += pauses.pop(0)[1]
            if not (paused and self.polls_before_reading):
                self._deliver(monitor, now)
            if now >= deadline:
                self._examine(monitor, now)
                found += [(now, event) for event in monitor.poll(now)]
        return found

    def _arrival(self, name: str) -> float:
        number = self.sent.get(name, 0)
        jitter = self.timing.jitter[number % len(self.timing.jitter)] / 4
        return self.policy.heartbeat_s * (number + jitter) + WIRE_S

    def _deliver(self, monitor: LivenessMonitor[str], now: float) -> None:
        """Hand over the heartbeats that have arrived, as if they were all read just now."""
        for name, peer in self.peers.items():
            while (arrival := self._arrival(name)) <= now:
                self.sent[name] = self.sent.get(name, 0) + 1
                if peer.speaks(arrival - WIRE_S):
                    monitor.heard(name, now)

    def _examine(self, monitor: LivenessMonitor[str], now: float) -> None:
        """Send the heartbeats that are due, note which are acknowledged, and report on those who are silent."""
        while (at := self.num_beats * self.policy.heartbeat_s) <= now:
            self.num_beats += 1
            for name, peer in self.peers.items():
                if peer.acknowledges(at):
                    self.acknowledged_at[name] = at
                    self.under_way.discard(name)
                else:
                    self.under_way.add(name)
        for name in monitor.unheard(now):
            monitor.observed(name, self.peers[name].vital(now), now)
            monitor.unacknowledged(name, now - self.acknowledged_at[name] if name in self.under_way else 0.0, now)


timings = st.builds(
    Timing,
    lateness=st.lists(fractions, min_size=1, max_size=5),
    jitter=st.lists(fractions, min_size=1, max_size=5),
)


def only_loss(found: list[tuple[float, Suspected[str] | Lost[str]]]) -> tuple[float, Lost[str]]:
    losses = [(at, event) for at, event in found if isinstance(event, Lost)]
    assert len(losses) == 1, found
    return losses[0]


@unhurried
@given(lease_s=leases, stop_at=st.floats(0.1, 20), timing=timings)
def test_a_stopped_peer_is_lost_within_the_lease_and_its_neighbour_is_kept(
    lease_s: float, stop_at: float, timing: Timing
) -> None:
    stopped = Peer(
        speaks=lambda now: now < stop_at, vital=lambda now: Vital.RUNNING if now < stop_at else Vital.STOPPED
    )
    simulation = Simulation(LivenessPolicy(lease_s=lease_s), {"stopped": stopped, "well": Peer()}, timing)
    at, lost = only_loss(simulation.run(stop_at + lease_s + 5))
    assert (lost.peer, lost.cause) == ("stopped", Cause.STOPPED)
    assert stop_at + lease_s - simulation.policy.heartbeat_s * 1.5 < at <= stop_at + lease_s + SLACK_S


@unhurried
@given(lease_s=leases, cut_at=st.floats(0.1, 20), timing=timings)
def test_a_cut_network_is_unreachable_within_its_bound(lease_s: float, cut_at: float, timing: Timing) -> None:
    cut = Peer(speaks=lambda now: now < cut_at, acknowledges=lambda now: now < cut_at)
    policy = LivenessPolicy(lease_s=lease_s)
    at, lost = only_loss(Simulation(policy, {"cut": cut, "well": Peer()}, timing).run(cut_at + lease_s + 5))
    assert (lost.peer, lost.cause) == ("cut", Cause.UNREACHABLE)
    assert at <= cut_at + min(lease_s, policy.unreachable_s + policy.heartbeat_s) + SLACK_S
    assert at <= cut_at + 2.5


@unhurried
@given(lease_s=leases, busy_at=st.floats(0.1, 10), busy_s=st.floats(0.1, 60), every=fractions, timing=timings)
def test_a_busy_peer_is_kept_even_if_most_questions_about_it_go_unanswered(
    lease_s: float, busy_at: float, busy_s: float, every: float, timing: Timing
) -> None:
    answered_s = lease_s * 0.5 * every  # an answer comes in each such period
    last = [0.0]

    def vital(now: float) -> Vital:
        if now - last[0] < answered_s:
            return Vital.UNKNOWN
        last[0] = now
        return Vital.RUNNING

    busy = Peer(speaks=lambda now: not busy_at <= now < busy_at + busy_s, vital=vital)
    found = Simulation(LivenessPolicy(lease_s=lease_s), {"busy": busy}, timing).run(busy_at + busy_s + 2 * lease_s)
    assert [event for _, event in found if isinstance(event, Lost)] == []


@unhurried
@given(lease_s=leases, silent_at=st.floats(0.1, 20), running=st.booleans(), timing=timings)
def test_silence_always_ends_in_a_verdict(lease_s: float, silent_at: float, running: bool, timing: Timing) -> None:
    policy = LivenessPolicy(lease_s=lease_s, hang_s=lease_s * 3)
    vital = Vital.RUNNING if running else Vital.UNKNOWN
    silent = Peer(speaks=lambda now: now < silent_at, vital=lambda now: vital)
    bound_s = policy.hang_s if running else lease_s
    at, lost = only_loss(Simulation(policy, {"silent": silent}, timing).run(silent_at + bound_s + 5))
    assert lost.cause is Cause.SILENT
    assert silent_at + bound_s - policy.heartbeat_s * 1.5 < at <= silent_at + bound_s + SLACK_S


@unhurried
@given(
    lease_s=st.floats(0.3, 10),
    pauses=st.lists(st.tuples(st.floats(0, 30), st.floats(0, 100)), max_size=6),
    vital=st.sampled_from([Vital.UNKNOWN, Vital.RUNNING, Vital.STOPPED]),
    polls_before_reading=st.booleans(),
    timing=timings,
)
def test_no_pause_of_our_own_kills_anyone(
    lease_s: float,
    pauses: list[tuple[float, float]],
    vital: Vital,
    polls_before_reading: bool,
    timing: Timing,
) -> None:
    peers = {name: Peer(vital=lambda now: vital) for name in "abc"}
    simulation = Simulation(
        LivenessPolicy(lease_s=lease_s), peers, timing, pauses=pauses, polls_before_reading=polls_before_reading
    )
    found = simulation.run(30 + sum(seconds for _, seconds in pauses))
    assert [event for _, event in found if isinstance(event, Lost)] == []


@unhurried
@given(lease_s=leases, timing=timings)
def test_a_healthy_peer_is_never_even_suspected(lease_s: float, timing: Timing) -> None:
    assert Simulation(LivenessPolicy(lease_s=lease_s), {"a": Peer(), "b": Peer()}, timing).run(30) == []


evidence = st.tuples(
    st.sampled_from("abc"),
    st.sampled_from(["heard", "observed", "unacknowledged", "closed", "exited", "gave_up", "left", "remove", "poll"]),
    st.sampled_from(Vital),
    st.floats(0, 5),
)


@unhurried
@given(lease_s=st.floats(0.3, 3), history=st.lists(st.tuples(evidence, st.floats(0, 1)), max_size=80))
def test_any_history_loses_nobody_twice_and_nobody_who_was_just_heard(
    lease_s: float, history: list[tuple[tuple[str, str, Vital, float], float]]
) -> None:
    policy = LivenessPolicy(lease_s=lease_s, hang_s=20)
    monitor: LivenessMonitor[str] = LivenessMonitor(policy, now=0.0)
    last_heard = dict.fromkeys("abc", 0.0)
    gone: set[str] = set()
    suspected: set[str] = set()
    now = 0.0
    for peer in "abc":
        monitor.add(peer, now)
    for (peer, kind, vital, seconds), passed in history:
        now += passed
        events: list[Suspected[str] | Lost[str] | None] = []
        if kind == "heard":
            monitor.heard(peer, now)
            last_heard[peer] = now
            suspected.discard(peer)
        elif kind == "observed":
            monitor.observed(peer, vital, now)
        elif kind == "unacknowledged":
            monitor.unacknowledged(peer, seconds, now)
        elif kind == "closed":
            events.append(monitor.closed(peer, "EOF", now))
        elif kind == "exited":
            events.append(monitor.exited(peer, "pidfd"))
        elif kind == "gave_up":
            events.append(monitor.kernel_gave_up(peer, "ETIMEDOUT"))
        elif kind == "left":
            events.append(monitor.left(peer, "goodbye"))
        elif kind == "remove":
            monitor.remove(peer)
            gone.add(peer)
        else:
            events += monitor.poll(now)
        for event in events:
            if isinstance(event, Lost):
                assert event.peer not in gone
                gone.add(event.peer)
                if kind == "poll" and event.cause is not Cause.DIED:
                    assert now - last_heard[event.peer] >= min(policy.lease_s, policy.unreachable_s)
            elif event is not None:
                assert event.peer not in gone | suspected
                suspected.add(event.peer)
    assert {peer for peer in "abc" if peer in monitor} == set("abc") - gone

"""The verdicts of the liveness monitor, one situation each."""

from __future__ import annotations

import pytest

from multiworld.world.liveness import Cause, LivenessMonitor, LivenessPolicy, Lost, Suspected, Vital

POLICY = LivenessPolicy()  # lease 2 s, unreachable after 1.5 s, hung after 300 s
STEP = 0.125  # like all times here a binary fraction, so that sums are exact


def watching(*peers: str, policy: LivenessPolicy = POLICY) -> LivenessMonitor[str]:
    monitor: LivenessMonitor[str] = LivenessMonitor(policy, now=0.0)
    for peer in peers:
        monitor.add(peer, 0.0)
    return monitor


def run(
    monitor: LivenessMonitor[str],
    until: float,
    *,
    start: float = 0.0,
    vital: Vital = Vital.UNKNOWN,
    unacknowledged_since: float | None = None,
    peer: str = "a",
) -> list[tuple[float, Suspected[str] | Lost[str]]]:
    """Poll every eighth of a second as a shell does, giving the same evidence each time; return what came when."""
    found: list[tuple[float, Suspected[str] | Lost[str]]] = []
    for tick in range(round(start / STEP) + 1, round(until / STEP) + 1):
        now = tick * STEP
        if peer in monitor.unheard(now):
            monitor.observed(peer, vital, now)
            for_s = 0.0 if unacknowledged_since is None else max(0.0, now - unacknowledged_since)
            monitor.unacknowledged(peer, for_s, now)
        found += [(now, event) for event in monitor.poll(now)]
    return found


def losses(found: list[tuple[float, Suspected[str] | Lost[str]]]) -> list[tuple[float, Cause]]:
    return [(at, event.cause) for at, event in found if isinstance(event, Lost)]


@pytest.mark.parametrize("lease_s", [0.29, 0.0, -1.0, 60.1, float("nan"), float("inf")])
def test_a_lease_out_of_range_is_refused_with_the_range(lease_s: float) -> None:
    with pytest.raises(ValueError, match=r"lease_s must be between 0\.3 and 60 seconds"):
        LivenessPolicy(lease_s=lease_s)


def test_other_policy_values_are_validated() -> None:
    with pytest.raises(ValueError, match="unreachable_s"):
        LivenessPolicy(unreachable_s=0)
    with pytest.raises(ValueError, match="hang_s"):
        LivenessPolicy(lease_s=10, hang_s=9)


@pytest.mark.parametrize("lease_s", [0.3, 1.0, 2.0, 10.0, 60.0])
def test_several_heartbeats_fit_in_a_lease_and_two_before_suspicion(lease_s: float) -> None:
    policy = LivenessPolicy(lease_s=lease_s)
    assert policy.heartbeat_s <= 0.5
    assert policy.lease_s / policy.heartbeat_s >= 4
    assert policy.suspect_s / policy.heartbeat_s >= 2


def test_a_peer_that_is_heard_is_neither_suspected_nor_lost() -> None:
    monitor = watching("a")
    for tick in range(1, 100):
        monitor.heard("a", tick * 0.5)
        assert monitor.poll(tick * 0.5) == []


def test_silence_is_suspected_once_and_again_after_the_peer_was_heard() -> None:
    monitor = watching("a")
    found = run(monitor, 2.0, vital=Vital.RUNNING)
    assert [type(event) for _, event in found] == [Suspected]
    monitor.heard("a", 2.0)
    found = run(monitor, 4.0, start=2.0, vital=Vital.RUNNING)
    assert [(at, type(event)) for at, event in found] == [(3.125, Suspected)]


def test_a_closed_connection_means_died_at_once_and_once() -> None:
    monitor = watching("a")
    monitor.poll(0.5)
    assert monitor.closed("a", "connection reset", 0.6) == Lost("a", Cause.DIED, "connection reset", 0.6)
    assert monitor.closed("a", "connection reset", 0.6) is None
    assert monitor.exited("a", "pidfd") is None
    assert monitor.kernel_gave_up("a", "ETIMEDOUT") is None
    assert losses(run(monitor, 10)) == []
    assert "a" not in monitor


@pytest.mark.parametrize(("method", "cause"), [
    ("exited", Cause.DIED), ("left", Cause.LEFT), ("kernel_gave_up", Cause.UNREACHABLE),
])  # fmt: skip
def test_final_evidence_names_its_cause(method: str, cause: Cause) -> None:
    monitor = watching("a", "b")
    lost = getattr(monitor, method)("a", "evidence")
    assert (lost.peer, lost.cause, lost.detail) == ("a", cause, "evidence")
    assert "b" in monitor


def test_a_removed_peer_gets_no_verdict() -> None:
    monitor = watching("a")
    monitor.remove("a")
    monitor.remove("a")
    assert run(monitor, 10) == []
    assert monitor.closed("a", "EOF", 10) is None


def test_a_stopped_peer_is_lost_when_the_lease_has_passed() -> None:
    assert losses(run(watching("a"), 10, vital=Vital.STOPPED)) == [(2.125, Cause.STOPPED)]


def test_a_peer_that_is_continued_in_time_is_kept() -> None:
    monitor = watching("a")
    assert losses(run(monitor, 1.875, vital=Vital.STOPPED)) == []
    monitor.heard("a", 1.9)
    assert losses(run(monitor, 3.75, start=1.875, vital=Vital.RUNNING)) == []


def test_a_busy_peer_is_kept_until_it_hangs() -> None:
    monitor = watching("a")
    assert losses(run(monitor, 302, vital=Vital.RUNNING)) == [(300.125, Cause.SILENT)]


def test_a_stop_after_a_busy_time_must_last_the_lease_by_itself() -> None:
    monitor = watching("a")
    assert losses(run(monitor, 30, vital=Vital.RUNNING)) == []
    assert losses(run(monitor, 40, start=30, vital=Vital.STOPPED)) == [(32.125, Cause.STOPPED)]


def test_short_stops_of_a_busy_peer_do_not_add_up() -> None:
    monitor = watching("a")
    for second in range(1, 21):
        assert losses(run(monitor, second - STEP, start=second - 1, vital=Vital.STOPPED)) == []
        assert losses(run(monitor, second, start=second - STEP, vital=Vital.RUNNING)) == []


def test_a_process_seen_to_have_ended_is_lost_with_the_next_poll() -> None:
    monitor = watching("a")
    monitor.poll(0.1)
    monitor.observed("a", Vital.EXITED, 0.2)
    monitor.heard("a", 0.2)  # its last words, read late
    assert monitor.next_deadline() == 0.1
    assert losses([(0.2, event) for event in monitor.poll(0.2)]) == [(0.2, Cause.DIED)]


def test_silence_without_any_evidence_is_silent() -> None:
    assert losses(run(watching("a"), 10)) == [(2.125, Cause.SILENT)]


def test_one_unanswered_question_does_not_cost_a_busy_peer_its_life() -> None:
    monitor = watching("a")
    for second in range(1, 21):
        run(monitor, second - STEP, start=second - 1, vital=Vital.UNKNOWN)
        assert losses(run(monitor, second, start=second - STEP, vital=Vital.RUNNING)) == []
    assert losses(run(monitor, 30, start=20, vital=Vital.UNKNOWN)) == [(22.125, Cause.SILENT)]


def test_a_cut_network_is_unreachable_within_the_default_bound() -> None:
    # The peer's last heartbeat came 1.0 s before its kernel's last acknowledgement, or 0.125 s before it.
    assert losses(run(watching("a"), 10, unacknowledged_since=1.0)) == [(2.125, Cause.UNREACHABLE)]
    assert losses(run(watching("a"), 10, unacknowledged_since=0.125)) == [(1.625, Cause.UNREACHABLE)]


def test_a_heartbeat_just_sent_to_a_hung_process_does_not_make_its_host_unreachable() -> None:
    monitor = watching("a")
    for tick in range(1, 17):
        assert losses([(0.0, event) for event in monitor.poll(tick * STEP)]) == []
    monitor.unacknowledged("a", POLICY.heartbeat_s + 0.05, 2.125)
    assert losses([(2.125, event) for event in monitor.poll(2.125)]) == [(2.125, Cause.SILENT)]


def test_a_long_lease_does_not_delay_unreachable() -> None:
    monitor = watching("a", policy=LivenessPolicy(lease_s=60))
    assert losses(run(monitor, 10, unacknowledged_since=0.5)) == [(2.0, Cause.UNREACHABLE)]


def test_a_peer_that_is_heard_is_reachable_whatever_our_kernel_says() -> None:
    monitor = watching("a")
    for tick in range(1, 40):
        now = tick * 0.25
        monitor.heard("a", now)
        monitor.unacknowledged("a", now, now)
        assert monitor.poll(now) == []


@pytest.mark.parametrize("vital", [Vital.RUNNING, Vital.STOPPED])
def test_a_peer_whose_process_is_seen_is_not_unreachable(vital: Vital) -> None:
    found = losses(run(watching("a"), 5, vital=vital, unacknowledged_since=0.125))
    assert [cause for _, cause in found] == ([] if vital is Vital.RUNNING else [Cause.STOPPED])


def test_a_cut_during_a_busy_time_is_found_once_the_sentinel_is_gone_too() -> None:
    monitor = watching("a")
    run(monitor, 30, vital=Vital.RUNNING)
    assert losses(run(monitor, 40, start=30, unacknowledged_since=30.25)) == [(31.75, Cause.UNREACHABLE)]


def test_an_old_reading_of_acknowledgements_counts_for_nothing() -> None:
    monitor = watching("a")
    for tick in range(1, 14):
        monitor.poll(tick * STEP)
    monitor.unacknowledged("a", 1.6, 1.0)
    assert monitor.poll(1.75) == []
    monitor.unacknowledged("a", 1.6, 1.75)
    assert losses([(1.75, event) for event in monitor.poll(1.75)]) == [(1.75, Cause.UNREACHABLE)]


def test_a_pause_of_our_own_kills_nobody() -> None:
    monitor = watching("a", "b", "c")
    for tick in range(1, 6):
        monitor.poll(tick * 0.3)
    assert [event for event in monitor.poll(61.5) if isinstance(event, Lost)] == []
    assert [event for event in monitor.poll(61.9) if isinstance(event, Lost)] == []
    for peer in ("a", "b", "c"):
        monitor.heard(peer, 61.95)  # what waited in the socket buffers
    assert losses(run(monitor, 63.9, start=61.9, vital=Vital.RUNNING)) == []


def test_after_a_pause_of_our_own_a_peer_near_its_end_has_a_heartbeat_to_speak_again() -> None:
    monitor = watching("a")
    assert losses(run(monitor, 2.0)) == []
    monitor.poll(60.0)
    assert losses(run(monitor, 60.375, start=60)) == []
    monitor.heard("a", 60.4)
    assert losses(run(monitor, 62.375, start=60.375)) == []


def test_a_stop_seen_before_a_pause_of_our_own_does_not_name_the_cause_after_it() -> None:
    monitor = watching("a")
    run(monitor, 1.875, vital=Vital.STOPPED)
    monitor.poll(60.0)
    assert losses(run(monitor, 70, start=60)) == [(60.5, Cause.SILENT)]


def test_evidence_that_needs_no_clock_counts_right_after_a_pause_of_our_own() -> None:
    monitor = watching("a", "b")
    monitor.observed("a", Vital.EXITED, 60.0)
    assert losses([(60.0, event) for event in monitor.poll(60.0)]) == [(60.0, Cause.DIED)]
    assert monitor.kernel_gave_up("b", "ETIMEDOUT") is not None


def test_a_dead_network_is_still_found_after_a_pause_of_our_own() -> None:
    monitor = watching("a")
    monitor.poll(0.25)
    assert losses(run(monitor, 90, start=60)) == [(62.0, Cause.SILENT)]


def test_deadlines_lead_a_shell_to_every_verdict_in_time() -> None:
    monitor = watching("a")
    now, polls = 0.0, 0
    while "a" in monitor:
        deadline = monitor.next_deadline()
        assert deadline is not None
        assert now <= deadline <= now + POLICY.heartbeat_s
        now, polls = max(deadline, now + 0.001), polls + 1
        for peer in monitor.unheard(now):
            monitor.observed(peer, Vital.STOPPED, now)
        monitor.poll(now)
    assert POLICY.lease_s < now <= POLICY.lease_s + 0.11
    assert polls <= 16
    assert monitor.next_deadline() is None


def test_a_peer_added_after_a_long_idle_time_starts_afresh() -> None:
    monitor = watching()
    assert monitor.next_deadline() is None
    monitor.add("a", 1000.0)
    assert losses(run(monitor, 1010, start=1000)) == [(1002.125, Cause.SILENT)]

"""Decide which peer processes are lost, from what was heard of them and observed about them. Pure: values and ``now``.

Evidence, strongest first: the kernel closed the peer's connection or its process ended (lost at once); the kernel gave
up on its host; its host acknowledges nothing; its process is stopped; nothing at all was heard for the lease. A process
that is seen running is busy, not lost, however long it holds its interpreter lock, up to ``hang_s``.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from enum import Enum
from math import inf, isfinite
from typing import Generic, TypeVar

P = TypeVar("P", bound=Hashable)

DEFAULT_LEASE_S = 2.0
"""How long a process may be silent, wherever nothing else is asked for: of worlds, jobs and deployments."""
MIN_LEASE_S, MAX_LEASE_S = 0.3, 60.0
LEASE_RANGE = f"{MIN_LEASE_S:g} to {MAX_LEASE_S:g} seconds"
READING_VALID_S = 0.5
"""How long a reading of the kernel's acknowledgements counts: past this age the data may have been acknowledged."""


def is_lease(lease_s: float) -> bool:
    return MIN_LEASE_S <= lease_s <= MAX_LEASE_S


def check_lease(lease_s: float, name: str = "lease_s") -> None:
    """Raise ValueError if a lease is too short or too long. ``name``: what the user calls it."""
    if not is_lease(lease_s):
        raise ValueError(
            f"{name} must be between {MIN_LEASE_S:g} and {MAX_LEASE_S:g} seconds, got {lease_s}: a shorter lease takes "
            "scheduling delays for faults, a longer one is no detection"
        )


class Vital(Enum):
    """What the operating system, or the sentinel beside a peer, says about the peer's process."""

    RUNNING = "running"
    STOPPED = "stopped"
    EXITED = "exited"
    UNKNOWN = "unknown"


class Cause(Enum):
    """Why a peer is lost; each has its own error class."""

    DIED = "died"
    STOPPED = "stopped"
    SILENT = "silent"
    UNREACHABLE = "unreachable"
    LEFT = "left"


@dataclass(frozen=True)
class Suspected(Generic[P]):
    """The peer is silent: examine it. Reversible, and reported once until it is heard again."""

    peer: P
    silent_s: float


@dataclass(frozen=True)
class Lost(Generic[P]):
    """The peer is gone, and forgotten by the monitor. ``detail`` is one clause of text: the evidence."""

    peer: P
    cause: Cause
    detail: str
    silent_s: float


@dataclass(frozen=True, kw_only=True)
class LivenessPolicy:
    """How long a peer may be silent, unreachable or hung before it is lost.

    ``lease_s``: a peer that was neither heard nor seen running for this long is lost. ``unreachable_s``: so is one
    whose host acknowledged nothing, and sent nothing, for this long. ``hang_s``: so is one that runs but says nothing.
    """

    lease_s: float = DEFAULT_LEASE_S
    unreachable_s: float = 1.5
    hang_s: float = 300.0

    def __post_init__(self) -> None:
        check_lease(self.lease_s)
        if not (self.unreachable_s > 0 and isfinite(self.unreachable_s)):
            raise ValueError(f"unreachable_s must be a positive number of seconds, got {self.unreachable_s}")
        if not self.hang_s >= self.lease_s:
            raise ValueError(f"hang_s must be at least lease_s: {self.hang_s} < {self.lease_s}")

    @property
    def heartbeat_s(self) -> float:
        """Seconds between two heartbeats: four to a lease, and never rarer than 2 per second.

        The cap keeps data in flight under a long lease too, so that a cut network shows in missing acknowledgements.
        """
        return min(self.lease_s / 4, 0.5)

    @property
    def suspect_s(self) -> float:
        """Silence after which a peer is suspected: two missed heartbeats or more."""
        return self.lease_s / 2

    @property
    def examine_after_s(self) -> float:
        """Silence after which the shell should read a peer's vitals and acknowledgements before each poll."""
        return min(self.suspect_s, self.unreachable_s)

    @property
    def examine_every_s(self) -> float:
        """Seconds between two polls while any peer is being examined."""
        return min(self.lease_s / 8, 0.1)


@dataclass(slots=True)
class _Record:
    """What is known about one peer. ``alive_at``: last proof of life, a word from it or a look at it running."""

    heard_at: float
    alive_at: float
    vital: Vital = Vital.UNKNOWN
    vital_at: float = -inf
    unacknowledged_s: float = 0.0
    unacknowledged_at: float = -inf
    suspected: bool = False


class LivenessMonitor(Generic[P]):
    """Collects evidence about peers and decides, each peer being lost at most once.

    The shell polls at ``next_deadline()`` at the latest, after it read vitals and acknowledgements of ``unheard()``.
    All times are seconds of one monotonic clock. Evidence about peers that are not, or no longer, watched is ignored.
    """

    def __init__(self, policy: LivenessPolicy, *, now: float) -> None:
        self.policy = policy
        self._records: dict[P, _Record] = {}
        self._now = now
        self._polled_at = now
        self._judge_from = now

    def __contains__(self, peer: object) -> bool:
        return peer in self._records

    def __len__(self) -> int:
        return len(self._records)

    def add(self, peer: P, now: float) -> None:
        """Watch a peer from now on; a peer that is watched already counts as heard."""
        self._advance(now)
        if not self._records:  # nobody polls an empty monitor, which is no pause
            self._polled_at = max(self._polled_at, now)
        if peer in self._records:
            self.heard(peer, now)
        else:
            self._records[peer] = _Record(heard_at=now, alive_at=now)

    def remove(self, peer: P) -> None:
        """Stop watching a peer without any verdict."""
        self._records.pop(peer, None)

    def heard(self, peer: P, now: float) -> None:
        """Note that a byte of the peer arrived."""
        self._advance(now)
        record = self._records.get(peer)
        if record is None:
            return
        record.heard_at = max(record.heard_at, now)
        record.alive_at = max(record.alive_at, now)
        record.suspected = False

    def observed(self, peer: P, vital: Vital, now: float) -> None:
        """Note what was seen of the peer's process. The verdict, if any, comes with the next ``poll``.

        ``UNKNOWN`` is no evidence and changes nothing: one lost answer must not cost a busy peer its life.
        """
        self._advance(now)
        record = self._records.get(peer)
        if record is None or vital is Vital.UNKNOWN or record.vital is Vital.EXITED:
            return
        record.vital, record.vital_at = vital, now
        if vital is Vital.RUNNING:
            record.alive_at = max(record.alive_at, now)

    def unacknowledged(self, peer: P, for_s: float, now: float) -> None:
        """Note for how long the peer's kernel has acknowledged nothing while data of ours is under way; else 0."""
        self._advance(now)
        record = self._records.get(peer)
        if record is not None:
            record.unacknowledged_s, record.unacknowledged_at = for_s, now

    def closed(self, peer: P, detail: str, now: float) -> Lost[P] | None:
        """The peer's kernel closed or reset the connection, without the peer having said that it leaves."""
        self._advance(now)
        return self._lose(peer, Cause.DIED, detail)

    def exited(self, peer: P, detail: str) -> Lost[P] | None:
        """The peer's process ended (its pidfd fired)."""
        return self._lose(peer, Cause.DIED, detail)

    def left(self, peer: P, detail: str) -> Lost[P] | None:
        """The peer said that it leaves."""
        return self._lose(peer, Cause.LEFT, detail)

    def kernel_gave_up(self, peer: P, detail: str) -> Lost[P] | None:
        """Our kernel ended the connection after keep-alive or user timeout, or has no route to the peer's host."""
        return self._lose(peer, Cause.UNREACHABLE, detail)

    def unheard(self, now: float) -> list[P]:
        """Return the peers to examine before the next poll: silent for ``policy.examine_after_s`` or longer."""
        silent_since = now - self.policy.examine_after_s
        return [peer for peer, record in self._records.items() if record.heard_at <= silent_since]

    def poll(self, now: float) -> list[Suspected[P] | Lost[P]]:
        """Return the peers newly suspected or lost."""
        self._advance(now)
        self._allow_for_own_pause(now)
        found: list[Suspected[P] | Lost[P]] = []
        for peer, record in list(self._records.items()):
            verdict = self._judge(record, now)
            lost = None if verdict is None else self._lose(peer, *verdict)
            silent_s = now - record.heard_at
            if lost is not None:
                found.append(lost)
            elif not record.suspected and silent_s > self.policy.suspect_s:
                record.suspected = True
                found.append(Suspected(peer, silent_s))
        return found

    def next_deadline(self) -> float | None:
        """Return when to poll next at the latest, or None while no peer is watched.

        Never more than a heartbeat after the last poll: a longer gap is how the monitor notices a pause of its own.
        """
        if not self._records:
            return None
        deadline = self._polled_at + self.policy.heartbeat_s
        while_examining = self._polled_at + self.policy.examine_every_s
        for record in self._records.values():
            if record.vital is Vital.EXITED:
                return self._polled_at
            deadline = min(deadline, max(record.heard_at + self.policy.examine_after_s, while_examining))
        return deadline

    def _advance(self, now: float) -> None:
        self._now = max(self._now, now)

    def _allow_for_own_pause(self, now: float) -> None:
        """Forgive silence that passed while this process did not run: what peers sent waits in socket buffers.

        Judging resumes a heartbeat later, when those buffers were read, and a host that was suspended as a whole has
        spoken again. Evidence that needs no clock of ours (closed, exited, given up by the kernel) counts at once.
        """
        pause_s = now - self._polled_at
        self._polled_at = max(self._polled_at, now)
        if pause_s <= 2 * self.policy.heartbeat_s:
            return
        self._judge_from = now + self.policy.heartbeat_s
        for record in self._records.values():
            record.heard_at = max(record.heard_at, min(now, record.heard_at + pause_s))
            record.alive_at = max(record.alive_at, min(now, record.alive_at + pause_s))

    def _judge(self, record: _Record, now: float) -> tuple[Cause, str] | None:
        policy = self.policy
        if record.vital is Vital.EXITED:
            return Cause.DIED, "its process has ended"
        if now < self._judge_from:
            return None
        silent_s = now - record.heard_at
        if silent_s > policy.hang_s:
            return (
                Cause.SILENT,
                f"its process is there but has sent nothing for {silent_s:.1f} s (hang_s {policy.hang_s:g})",
            )
        current = now - record.unacknowledged_at <= READING_VALID_S
        unacknowledged_s = record.unacknowledged_s if current else 0.0
        no_route = f"its host has acknowledged nothing for {unacknowledged_s:.1f} s"
        if now - record.alive_at > policy.lease_s:
            return self._name_expiry(record, unacknowledged_s, no_route, now)
        # A word from the peer, or a fresh look at its process, proves that it can be reached: with packet loss, data
        # may stay unacknowledged for long while other packets pass.
        if unacknowledged_s >= policy.unreachable_s <= now - max(record.heard_at, record.vital_at):
            return Cause.UNREACHABLE, no_route
        return None

    def _name_expiry(self, record: _Record, unacknowledged_s: float, no_route: str, now: float) -> tuple[Cause, str]:
        """Say why a lease ran out.

        Half a lease without an acknowledgement is enough here to call a host unreachable: with a heartbeat just sent, a
        host that answers may owe one for the heartbeat's interval (a quarter), one that is cut off for three quarters.
        """
        policy = self.policy
        lease = f"lease {policy.lease_s:g} s"
        if record.vital is Vital.STOPPED and now - record.vital_at <= policy.lease_s:
            return Cause.STOPPED, f"its process has been stopped for {now - record.alive_at:.1f} s ({lease})"
        if unacknowledged_s >= min(policy.unreachable_s, policy.lease_s / 2):
            return Cause.UNREACHABLE, no_route
        return Cause.SILENT, f"nothing was heard of its process for {now - record.alive_at:.1f} s ({lease})"

    def _lose(self, peer: P, cause: Cause, detail: str) -> Lost[P] | None:
        record = self._records.pop(peer, None)
        if record is None:
            return None
        return Lost(peer, cause, detail, max(0.0, self._now - record.heard_at))

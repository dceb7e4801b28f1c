"""The thread that talks to etcd for one agent: it looks for the coordinator, and keeps this agent's claim to be it."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from ...wire.progress.operation import Operation, pass_on
from ...wire.progress.thread import ProgressThread
from .base import Address
from .etcd_claim import Claim, may_replace
from .etcd_client import EtcdClient, Found
from .etcd_gateway import EtcdAccess, EtcdGateway, EtcdRefusedError, LeaseGoneError

logger = logging.getLogger(__name__)

RENEWALS = 3  # within the time of a lease
RETRY_S = 0.5
WAIT_S = 1.0  # for news, where the last look has led nowhere
RIVAL_S = 10.0


class EtcdKeeper:
    """``me``: where this agent listens. All methods return at once; results come on the progress thread."""

    def __init__(self, loop: ProgressThread, access: EtcdAccess, key: str, ttl_s: int, me: Address) -> None:
        self._loop, self._key, self._ttl_s, self._me = loop, key, ttl_s, me
        self._gateway = EtcdGateway(access)
        self._client = EtcdClient(self._gateway)
        self._bound_s = WAIT_S + access.timeout_s * (len(access.endpoints) + 2)
        self._where = str(access)
        self._changed = threading.Condition()  # guards the next four
        self._search: Operation[Claim] | None = None
        self._claim: Claim | None = None  # what shall stand there
        self._due = math.inf  # when to look after it again
        self._is_closed = False
        self._lease: int | None = None
        self._seen = 0  # the revision of the claim that the last look found
        self._is_away = False
        self._rival: tuple[Address, float] | None = None
        self._thread = threading.Thread(target=self._run, name="multiworld-etcd", daemon=True)
        self._thread.start()

    @property
    def rival(self) -> Address | None:
        """Who has begun to coordinate while etcd did not know of us; it may not know of us either."""
        rival = self._rival
        return rival[0] if rival is not None and time.monotonic() < rival[1] else None

    def look(self) -> Operation[Claim]:
        """Find who coordinates; this agent, from now on, if nobody does. Fails with EtcdError."""
        search: Operation[Claim] = Operation()
        with self._changed:
            self._search = search
            self._changed.notify()
        return search

    def announce(self, claim: Claim) -> None:
        """Keep this claim there from now on, also when etcd loses it, unless there is one of a later term."""
        with self._changed:
            self._claim, self._due = claim, 0.0
            self._changed.notify()

    def withdraw(self) -> None:
        """Take back our claim, and nobody else's."""
        with self._changed:
            self._claim, self._due = None, math.inf
            self._changed.notify()

    def close(self) -> None:
        """Withdraw, and end the thread. Idempotent."""
        with self._changed:
            if not self._is_closed:  # a second time, it would cut off what the first has begun
                self._claim, self._is_closed = None, True
                self._gateway.stop()
                self._changed.notify()

    def wait_closed(self, timeout_s: float) -> None:
        self._thread.join(timeout_s)

    # ---- on the thread

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._has_work():
                    self._changed.wait(self._until_due())
                if self._is_closed:
                    break
                self._gateway.resume()
                search, self._search = self._search, None
                claim = self._claim
            with self._bounded():
                if search is not None:
                    self._answer(search)
                elif claim is not None:
                    self._keep(claim)
                else:
                    self._let_go()
        self._gateway.resume()
        with self._bounded():
            self._let_go()

    def _has_work(self) -> bool:
        is_idle_lease = self._claim is None and self._lease is not None
        return self._is_closed or self._search is not None or is_idle_lease or time.monotonic() >= self._due

    def _until_due(self) -> float | None:
        return None if self._due == math.inf else max(0.0, self._due - time.monotonic())

    @contextmanager
    def _bounded(self) -> Iterator[None]:
        """An answer that comes byte by byte meets no timeout."""
        timer = self._loop.call_later(self._bound_s, self._gateway.stop)
        try:
            yield
        finally:
            timer.cancel()

    def _answer(self, search: Operation[Claim]) -> None:
        found = Operation[Claim]()
        try:
            found.succeed(self._find())
        except Exception as error:  # whatever it is, it belongs to the one who waits
            found.fail(error)
        self._loop.call_soon(partial(pass_on, found, search))

    def _find(self) -> Claim:
        found = self._client.get(self._key)
        if found.changed_at and found.changed_at == self._seen:
            self._client.wait_change(self._key, found.seen_at, WAIT_S)
            found = self._client.get(self._key)
        while found.value is None:
            mine = Claim(self._me, 1)
            if self._put(mine, found):
                self._has_claimed(mine)
                return mine
            found = self._client.get(self._key)  # another agent was first
        self._seen = found.changed_at
        try:
            claim = Claim.from_bytes(found.value)
        except ValueError as error:
            raise EtcdRefusedError(self._where, f"the key {self._key!r} is not this job's: {error}") from error
        if claim.address == self._me:  # we were told that this had failed
            self._has_claimed(claim)
        return claim

    def _has_claimed(self, claim: Claim) -> None:
        with self._changed:
            if not self._is_closed:
                self._claim, self._due = claim, time.monotonic() + self._ttl_s / RENEWALS

    def _put(self, claim: Claim, found: Found) -> bool:
        """Write the claim in place of what was found, under a lease of ours. False: that has changed meanwhile."""
        if self._lease is None:
            self._lease = self._client.grant(self._ttl_s)
        try:
            return self._client.replace(self._key, claim.to_bytes(), lease=self._lease, expected=found.changed_at)
        except LeaseGoneError:
            self._lease = None
            raise

    def _keep(self, claim: Claim) -> None:
        try:
            stands = self._renew(claim)
        except Exception as error:  # a claim is kept through our own defects, too
            again_s = RETRY_S
            logger.debug("the claim was not kept", exc_info=True)
            if not self._is_away:
                self._is_away = True
                logger.warning(
                    "%s; the job goes on, but hosts that are new to it cannot find it until that works", error
                )
        else:
            again_s = self._ttl_s / RENEWALS if stands else 0.0
            if self._is_away:
                self._is_away = False
                logger.warning("etcd at %s is back", self._where)
        with self._changed:
            if self._claim is claim:
                self._due = time.monotonic() + again_s

    def _renew(self, claim: Claim) -> bool:
        """Look after our claim. False: something has changed meanwhile, so it is to be done again."""
        if self._lease is not None and not self._client.keep_alive(self._lease):
            self._lease = None
        found = self._client.get(self._key)
        other = None
        if found.value is not None:
            try:
                other = Claim.from_bytes(found.value)
            except ValueError as error:
                logger.warning("the key %r in etcd is written over: %s", self._key, error)
        if other == claim and found.lease == self._lease:
            return True
        if other is not None and other.address != self._me and other.term <= claim.term:
            self._rival = other.address, time.monotonic() + RIVAL_S
        if other is not None and not may_replace(other, claim):
            return True
        return self._put(claim, found)

    def _let_go(self) -> None:
        """End our lease, and so our claim, if that still stands there."""
        lease, self._lease = self._lease, None
        if lease is None:
            return
        try:
            self._client.revoke(lease)
        except Exception as error:  # whatever it is, this thread goes on to look and to claim
            logger.debug("%s; the claim of this agent ends with its lease", error)

"""Watch the peer processes: send heartbeats, gather evidence, let ``liveness`` decide, report who is lost."""

from __future__ import annotations

import logging
import os
import select
import socket
import time
from collections.abc import Callable
from functools import partial

from ..wire.endpoints.addresses import family_of
from ..wire.progress.thread import ProgressThread, Timer
from .links.link import Link
from .links.messages import SentinelAt
from .liveness import LivenessMonitor, LivenessPolicy, Lost, Suspected, Vital
from .processes.kept_process import KeptProcess
from .processes.sentinel import NONCE_BYTES, Sentinel, decode_reply, encode_query, nonce_of
from .processes.vitals import observe_process, open_pidfd, shares_host

logger = logging.getLogger(__name__)

MAX_DATAGRAM = 256
LEFT = "its program ended or closed its manager"
SENTINEL = "the sentinel, without which peers on other hosts may take a busy process for a hung one,"


class Detector:
    """The shell around a ``LivenessMonitor``. Everything but ``close`` runs on the progress thread.

    ``on_lost(link, lost)`` is called once per link, ``on_suspected(link, silent_s)`` at each new silence.
    """

    def __init__(
        self,
        loop: ProgressThread,
        policy: LivenessPolicy,
        token: bytes,
        manager_id: str,
        *,
        on_lost: Callable[[Link, Lost[str]], None],
        on_suspected: Callable[[Link, float], None],
    ) -> None:
        self._loop, self._policy, self._token = loop, policy, token
        self._manager_id = manager_id
        self._on_lost, self._on_suspected = on_lost, on_suspected
        self._monitor: LivenessMonitor[str] = LivenessMonitor(policy, now=time.monotonic())
        self._links: dict[str, Link] = {}
        self._local: dict[str, _Pidfd] = {}
        self._timer: Timer | None = None
        self._beat_at = 0.0
        self._sentinels: dict[str, KeptProcess[Sentinel]] = {}  # by local address
        self._inquiries: dict[int, _Inquiry] = {}  # by address family
        self._closed = False

    def watch(self, link: Link) -> None:
        """Start to watch the peer at the other end of a link."""
        peer, now = link.peer, time.monotonic()
        if peer.id in self._links:
            self._release(self._links[peer.id])
        self._links[peer.id] = link
        self._monitor.add(peer.id, now)
        if shares_host(bytes.fromhex(peer.host_id), peer.pid, peer.start_time):
            fd = open_pidfd(peer.pid, peer.start_time) if peer.pid != os.getpid() else None
            self._local[peer.id] = _Pidfd(self, link, fd)
        else:
            self._provide_sentinel(link)
        if self._timer is None:
            self._tick()

    def heard(self, link: Link) -> None:
        self._monitor.heard(link.peer.id, time.monotonic())

    def gone(self, link: Link, reason: str, *, unreachable: bool, left: bool) -> None:
        """The link's connection ended: that is a verdict at once."""
        peer = link.peer.id
        if self._links.get(peer) is not link:
            return
        if left:
            lost = self._monitor.left(peer, LEFT)
        elif unreachable:
            lost = self._monitor.kernel_gave_up(peer, reason)
        else:
            lost = self._monitor.closed(peer, reason, time.monotonic())
        if lost is not None:
            self._lose(link, lost)

    def forget(self, link: Link) -> None:
        """Stop watching without a verdict."""
        if self._links.get(link.peer.id) is link:
            self._monitor.remove(link.peer.id)
            self._release(link)

    def close(self) -> None:
        """Stop everything; on the progress thread, or after it has stopped."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        for link in list(self._links.values()):
            self.forget(link)
        for inquiry in self._inquiries.values():
            inquiry.close()
        for sentinel in self._sentinels.values():
            sentinel.close()
        self._sentinels.clear()

    def _tick(self) -> None:
        self._timer = None
        now = time.monotonic()
        interval = min([self._policy.heartbeat_s, *(link.heartbeat_s for link in self._links.values())])
        try:
            self._round(now, interval)
        finally:  # whatever one round met, the next one comes: without heartbeats this process would count as hung
            deadline = self._monitor.next_deadline()
            if deadline is not None and not self._closed:
                delay = min(deadline - now, self._beat_at + interval - now)
                self._timer = self._loop.call_later(max(0.005, delay), self._tick)

    def _round(self, now: float, interval: float) -> None:
        """Heartbeats that are due, evidence about silent peers, verdicts."""
        if now - self._beat_at >= 0.9 * interval:
            self._beat_at = now
            for link in self._links.values():
                link.heartbeat(now)
        for peer in self._monitor.unheard(now):
            self._examine(self._links[peer], now)
        for verdict in self._monitor.poll(now):
            link = self._links[verdict.peer]
            if isinstance(verdict, Lost):
                self._lose(link, verdict)
            else:
                assert isinstance(verdict, Suspected)
                self._on_suspected(link, verdict.silent_s)

    def _examine(self, link: Link, now: float) -> None:
        peer = link.peer
        self._monitor.unacknowledged(peer.id, link.unacknowledged_s(now), now)
        if peer.id in self._local:
            self._monitor.observed(peer.id, observe_process(peer.pid, peer.start_time), now)
        elif link.sentinel is not None:
            self._ask(link)

    def _lose(self, link: Link, lost: Lost[str]) -> None:
        self._release(link)
        self._on_lost(link, lost)

    def _release(self, link: Link) -> None:
        self._links.pop(link.peer.id, None)
        pidfd = self._local.pop(link.peer.id, None)
        if pidfd is not None:
            pidfd.close()

    def exited(self, link: Link) -> None:
        """The peer's pidfd fired. Its last words may still sit in the link: a graceful end is not a death."""
        link.drain()
        if link.said_goodbye:  # its end, which was read just now, is only about to be told
            lost = self._monitor.left(link.peer.id, LEFT)
        else:
            lost = self._monitor.exited(link.peer.id, "its process has ended")
        if lost is not None:
            self._lose(link, lost)

    def _provide_sentinel(self, link: Link) -> None:
        """A peer on another host cannot look into our /proc: keep a child that it may ask.

        Started here and now, in a few milliseconds, and announced before anything else is said on the link: once a
        world is formed, this process may hold its interpreter lock, and the peer must know by then whom to ask.
        """
        host = link.local_host
        if host not in self._sentinels:
            self._sentinels[host] = kept = self._kept_sentinel(host)
            kept.begin()
        sentinel = self._sentinels[host].current
        if sentinel is not None:
            link.tell(SentinelAt(host=host, port=sentinel.port))

    def _kept_sentinel(self, host: str) -> KeptProcess[Sentinel]:
        port = 0

        def start() -> Sentinel:
            nonlocal port
            sentinel = Sentinel.start(host, _secret_for(self._token, self._manager_id), port=port)
            port = sentinel.port  # of a successor too: peers that are not told in time ask the right one
            return sentinel

        return KeptProcess(self._loop, SENTINEL, start, partial(self._announce, host))

    def _announce(self, host: str, sentinel: Sentinel) -> None:
        """Another sentinel answers at this address now."""
        for link in self._links.values():
            if link.open and link.peer.id not in self._local and link.local_host == host:
                link.tell(SentinelAt(host=host, port=sentinel.port))

    def _ask(self, link: Link) -> None:
        assert link.sentinel is not None
        family = family_of(link.local_host)
        inquiry = self._inquiries.get(family)
        if inquiry is None:
            try:
                inquiry = self._inquiries[family] = _Inquiry(self, self._loop, family, self._token)
            except OSError as error:  # there is no descriptor for it: verdicts on all others must not wait for one
                logger.debug("cannot ask the sentinel at %s: %s", link.sentinel, error)
                return
        inquiry.ask(link.peer.id, link.sentinel)

    def answered(self, peer: str, vital: Vital) -> None:
        self._monitor.observed(peer, vital, time.monotonic())


def _secret_for(token: bytes, peer_id: str) -> bytes:
    """A successor on the same port must not answer for a dead process."""
    return token + b"/" + peer_id.encode()


class _Pidfd:
    """Watches a local peer's process descriptor; without one (old kernel, no permission) the link alone tells."""

    def __init__(self, detector: Detector, link: Link, fd: int | None) -> None:
        self._detector, self._link, self._fd = detector, link, fd
        if fd is not None:
            detector._loop.register(fd, select.EPOLLIN, self)

    def on_ready(self, events: int) -> None:
        self._detector.exited(self._link)

    def on_failure(self, error: BaseException) -> None:
        self.close()

    def close_descriptor(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def close(self) -> None:
        if self._fd is not None:
            self._detector._loop.unregister(self._fd)
            self.close_descriptor()


class _Inquiry:
    """The datagram socket that asks peers' sentinels."""

    def __init__(self, detector: Detector, loop: ProgressThread, family: int, token: bytes) -> None:
        self._detector, self._loop, self._token = detector, loop, token
        self._asked: dict[bytes, str] = {}
        self._sock = socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
        loop.register(self._sock.fileno(), select.EPOLLIN, self)

    def ask(self, peer: str, address: tuple[str, int]) -> None:
        nonce = os.urandom(NONCE_BYTES)
        while len(self._asked) >= 1024:
            self._asked.pop(next(iter(self._asked)))
        self._asked[nonce] = peer
        try:
            self._sock.sendto(encode_query(nonce, _secret_for(self._token, peer)), address)
        except OSError as error:
            logger.debug("cannot ask the sentinel at %s: %s", address, error)

    def on_ready(self, events: int) -> None:
        while True:
            try:
                data, _ = self._sock.recvfrom(MAX_DATAGRAM)
            except BlockingIOError:
                return
            except OSError as error:  # an ICMP error of an earlier query
                logger.debug("sentinel query: %s", error)
                continue
            nonce = nonce_of(data)
            peer = None if nonce is None else self._asked.get(nonce)
            if nonce is None or peer is None:
                continue
            vital = decode_reply(data, nonce, _secret_for(self._token, peer))
            if vital is not None:
                del self._asked[nonce]
                self._detector.answered(peer, vital)

    def on_failure(self, error: BaseException) -> None:
        logger.error("sentinel queries end: %s", error)
        self.close()

    def close_descriptor(self) -> None:
        self._sock.close()

    def close(self) -> None:
        self._loop.unregister(self._sock.fileno())
        self._sock.close()

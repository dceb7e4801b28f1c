"""What a program may learn of its place in the job: the present one, and each other that the launcher gives it."""

from __future__ import annotations

import threading
from collections.abc import Callable

from ...wire.progress.waiting import wait_blocking
from ...world.launcher.launched import Place
from ...world.launcher.link import LaunchLink
from ...world.launcher.process_link import process_link
from ...world.subscription import Broadcaster

FIRST_WORD_S = 1.0


def place() -> Place | None:
    """Return the present place of this process in its job: its rank, world_size and generation among others.

    None outside of the launcher, and while there is none. The first call may wait for the agent's first word: for a
    millisecond as a rule, for a second at most.
    """
    link = process_link()
    if link is None:
        return None
    if link.place is None:
        wait_blocking(link.first_word(FIRST_WORD_S))
    return link.place


def on_membership_change(callback: Callable[[Place], None]) -> MembershipListener:
    """Call back with each new place that differs in rank, world_size or generation from the one before.

    The present one is no change. ``callback`` runs on a thread of its own, which hears nothing else meanwhile; what it
    raises is logged. Close what is returned in order to hear no more. Outside of the launcher nothing is ever called.
    """
    return MembershipListener(callback)


def membership() -> Memberships:
    """Return an async iterator over the present place, as soon as there is one, and each new membership after it.

    It ends when the agent is gone, and at once outside of the launcher.
    """
    return Memberships()


class MembershipListener:
    """Calls ``on_change`` until it is closed; a context manager."""

    def __init__(
        self,
        on_change: Callable[[Place], None],
        on_end: Callable[[], None] = lambda: None,
        *,
        tells_present: bool = False,
    ) -> None:
        self._on_change, self._on_end, self._tells_present = on_change, on_end, tells_present
        self._lock = threading.Lock()
        self._known: Place | None = None
        self._link: LaunchLink | None = process_link()
        if self._link is None:
            on_end()
            return
        with self._lock:  # else a change may come before the present one is known
            present = self._link.listen(self._heard, self._on_end)
            if present is not None:
                self._known = present
                if tells_present:
                    on_change(present)

    def __enter__(self) -> MembershipListener:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Idempotent. A call that is under way may still end later."""
        if self._link is not None:
            self._link.unlisten(self._heard, self._on_end)

    def _heard(self, place: Place) -> None:
        with self._lock:
            known, self._known = self._known, place
        is_news = self._tells_present if known is None else known.membership != place.membership
        if is_news:
            self._on_change(place)


class Memberships:
    """An async iterator; ``aclose`` ends it. A reader that falls thousands behind loses the oldest."""

    def __init__(self) -> None:
        broadcaster: Broadcaster[Place] = Broadcaster()
        self._unread = broadcaster.subscribe()
        self._listener = MembershipListener(broadcaster.publish, broadcaster.close, tells_present=True)

    def __aiter__(self) -> Memberships:
        return self

    async def __anext__(self) -> Place:
        return await self._unread.__anext__()

    async def aclose(self) -> None:
        """Stop listening."""
        self._listener.close()
        await self._unread.aclose()


def progress() -> None:
    """Say that this worker goes on, for a launcher that was given a deadline for that.

    It costs about a microsecond, so call it as often as it suits: the agent is told a few times a second at most. It
    neither blocks nor raises, needs no ``WorldManager``, and does nothing outside of the launcher.
    """
    link = process_link()
    if link is not None:
        link.progress()

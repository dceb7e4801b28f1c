"""This member's connection to the store of its training: when it is lost, another is looked for in the background.

The training needs no store while nothing fails. But newcomers read there who trains. So a newcomer to a new store must
find the others' generation there soon, however long a step takes.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from ...errors import MultiworldError, StoreError
from ...store.tcp import TCPStore
from ...wire.progress.operation import Operation
from ...wire.progress.waiting import OperationCancelled, wait_blocking
from ...world.launcher.process_link import process_link
from ...world.manager import WorldManager

logger = logging.getLogger(__name__)

DIAL_S = 2.0
LOOK_S, MAX_LOOK_S = 0.02, 0.5


class StoreLink:
    """Connects by a thread of its own. ``introduce(store)`` is called there with each new store, before others use it.

    What ``introduce`` raises as StoreError means that this store is lost as well.
    """

    def __init__(self, manager: WorldManager, url: str | None, introduce: Callable[[TCPStore], None]) -> None:
        self._manager, self._url, self._introduce = manager, url, introduce
        self._changed = threading.Condition()
        self._store: TCPStore | None = None  # guarded by _changed, as all below
        self._seeker: threading.Thread | None = None
        self._last_error: StoreError | None = None
        self._is_closed = False
        self._next_place: Operation[None] | None = None
        self._closing = threading.Event()

    def store_nowait(self) -> TCPStore | None:
        """Return the store, or None if there is none at present."""
        store = self._store
        return store if store is not None and store.lost_reason is None else None

    def store(self, timeout_s: float) -> TCPStore:
        """Return the store, and wait for one. Raises StoreError after ``timeout_s``."""
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while True:
                store = self.store_nowait()
                if store is not None:
                    return store
                self._seek()
                if self._is_closed or not self._changed.wait(max(0.0, deadline - time.monotonic())):
                    raise self._last_error or StoreError(self._url or "", "there is none")

    def close(self) -> None:
        with self._changed:
            self._is_closed = True
            seeker = self._seeker
        self._closing.set()
        if seeker is not None:
            seeker.join(DIAL_S + 1.0)  # closing the manager ends what it still waits for
        if self._next_place is not None:
            self._next_place.cancel_or_undo(OperationCancelled())
        if self._store is not None:
            self._store.close()

    def _seek(self) -> None:
        """Begin to look for a store, unless that is under way. The caller holds the lock."""
        if self._seeker is None and not self._is_closed:
            self._seeker = threading.Thread(target=self._run, name="multiworld-training-store", daemon=True)
            self._seeker.start()

    def _run(self) -> None:
        pause = LOOK_S
        while not self._closing.is_set():
            try:
                store = self._connect()
            except StoreError as error:
                logger.debug("the store of the training cannot be reached at present: %s", error)
                with self._changed:
                    self._last_error = error
                self._closing.wait(pause)
                pause = min(MAX_LOOK_S, 1.5 * pause)
                continue
            except MultiworldError:  # the manager was closed meanwhile
                break
            with self._changed:
                self._store, self._seeker = store, None
                self._changed.notify_all()
            store.wait(["multiworld/never"]).add_callback(lambda _, lost=store: self._lost(lost))  # type: ignore[misc]
            return
        with self._changed:
            self._seeker = None
            self._changed.notify_all()

    def _connect(self) -> TCPStore:
        url = self._url or _launchers_store()
        store = wait_blocking(self._manager.start_store_client(url, DIAL_S))
        try:
            if self._url is None:
                self._leave_once_moved(store, url)
            self._introduce(store)
        except BaseException:
            store.close()
            raise
        return store

    def _leave_once_moved(self, store: TCPStore, url: str) -> None:
        """Close the store when the launcher has another one: a host that is cut off neither answers nor closes."""
        link = process_link()
        place = None if link is None else link.place
        if link is None or store.lost_reason is not None or self._closing.is_set():
            return
        if place is not None and place.store and place.store != url:
            store.close()
            return
        self._next_place = waiting = link.next_place(place)
        waiting.add_callback(lambda done: None if done.error is not None else self._leave_once_moved(store, url))

    def _lost(self, store: TCPStore) -> None:
        """On the progress thread: the store is lost."""
        with self._changed:
            if self._store is store:
                self._seek()


def _launchers_store() -> str:
    link = process_link()
    if link is None:
        raise StoreError("", "no launcher started this process, so store= is needed")
    place = link.place
    if place is None or not place.store:
        raise StoreError("", "the launcher has no store at present")
    return place.store

"""Events of this process: filled in with who it is, shown, and given to the program's listeners."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from .events import TrainingEvent
from .recovery.records import Generation, Member

Listener = Callable[[TrainingEvent], None]


class Standing(Protocol):
    """Who this process is, and in which generation; see ``Membership``."""

    @property
    def member(self) -> Member: ...

    @property
    def generation(self) -> Generation | None: ...


class Publisher:
    """``listeners`` hear each event in their order, on the thread that publishes it. The first ones come first."""

    def __init__(self, job: str, standing: Standing, *listeners: Listener) -> None:
        self._job, self._standing = job, standing
        self._listeners = list(listeners)

    def listen(self, listener: Listener) -> None:
        self._listeners.append(listener)

    def publish(self, kind: type[TrainingEvent], **fields: Any) -> None:
        generation = self._standing.generation
        event = kind(
            job=self._job,
            member=self._standing.member.id,
            rank=self._standing.member.rank,
            generation=0 if generation is None else generation.number,
            **fields,
        )
        for listener in self._listeners:
            listener(event)

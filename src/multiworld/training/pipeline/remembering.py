"""Hears of recoveries on their way to those who show them, and remembers what plans depend on."""

from __future__ import annotations

from collections.abc import Callable

from ...errors import WorldBrokenError
from ..engine.observers import RecoveryObserver
from ..recovery.records import Generation
from .experience import Experience


class Remembering:
    """A ``RecoveryObserver`` before another one. ``foresee``: called with each generation that has begun."""

    def __init__(
        self, experience: Experience, observer: RecoveryObserver, foresee: Callable[[Generation], None]
    ) -> None:
        self._experience, self._observer, self._foresee = experience, observer, foresee

    def recovery_began(self, step: int, error: WorldBrokenError | None) -> None:
        self._observer.recovery_began(step, error)

    def recovery_phase(self, name: str, step: int, took_s: float) -> None:
        self._experience.took(name, took_s)
        self._observer.recovery_phase(name, step, took_s)

    def generation_began(self, before: Generation | None, now: Generation, step: int) -> None:
        self._experience.formed(is_change=before is not None)
        self._foresee(now)
        self._observer.generation_began(before, now, step)

    def state_received(self, step: int, size_bytes: int, sources: int, took_s: float) -> None:
        self._experience.moved(size_bytes, took_s)
        self._observer.state_received(step, size_bytes, sources, took_s)

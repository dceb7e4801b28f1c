"""Write down each step that counts, as a member of the training sees it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from ..engine.facts import Facts
from .ledger import Ledger, members_in
from .ledger_check import Data


class Recorded(Protocol):
    """A loader whose steps are written down."""

    def samples(self, step: int) -> Sequence[Sequence[str]]: ...

    def data(self) -> Data: ...


class CommitRecorder:
    """Opens the ledger of ``member`` with the first step that counts, since a newcomer sees none of those before."""

    def __init__(self, folder: str | os.PathLike[str], member: str, loader: Recorded) -> None:
        self._folder = folder
        self._member = member
        self._loader = loader
        self._ledger: Ledger | None = None
        self._next: int | None = None
        self._num_restarts = 0

    def commit(self, step: int, generation: int, facts: Sequence[Facts], *, num_restarts: int = 0) -> None:
        """``facts``: of all members that took part in the step, in the generation in which it was computed.

        ``num_restarts``: how often this member has begun together with the others, as nobody had the state.
        """
        if self._ledger is None:
            self._ledger = Ledger(self._folder, self._member, replace(self._loader.data(), first_step=step))
        if num_restarts > self._num_restarts:
            present = {self._member, *(each.member for each in facts)}
            before = [member for member in members_in(self._folder) if member not in present]
            if before:
                self._ledger.rewind(step, generation, before)
            self._num_restarts = num_restarts
        if self._next is not None and step < self._next:
            self._ledger.rewind(step, generation)
        self._next = step + 1
        done = {each.member: each.done for each in facts if each.done}
        self._ledger.commit(step, generation, done, self._loader.samples(step))

    def close(self) -> None:
        if self._ledger is not None:
            self._ledger.close()

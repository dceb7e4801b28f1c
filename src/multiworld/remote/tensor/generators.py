"""The states of nodes' generators, kept where they are: a checkpoint that computes again needs the same dropout."""

from __future__ import annotations

from typing import Any, Final

import torch

from ..protocol import records
from ..protocol.specs import Spec, number_of
from ..session.session import Session, next_id
from .wrapping import make

STATE_SPEC: Final = Spec((torch.get_rng_state().numel(),), (1,), 0, torch.uint8)
"""Of the state of a generator."""


def kept(cls: type[Any], session: Session) -> Any:
    """Return the state of the generator of a node's CPU, as it is behind what was issued before. Nothing waits."""
    id_ = next_id()
    session.emit(records.keep_generator(id_), "get_rng_state", 2)
    return make(cls, session, number_of(STATE_SPEC), id_)


def restore(state: Any) -> None:
    """Let the generator of its node go on from a state that ``kept`` returned."""
    state._session.emit(records.restore_generator(state._id), "set_rng_state", 2)

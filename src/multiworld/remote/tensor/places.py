"""Operands that live in several places: the error that says where, and what helps."""

from __future__ import annotations

from ..errors import PlaceMismatchError, RemoteError
from ..session.origins import here
from ..session.session import Session


def of_several_nodes(operation: str, one: Session, other: Session) -> RemoteError:
    """Return the error of an operation with operands of two sessions: NodeDeadError if one of them is over."""
    for session in (one, other):
        if session.dead is not None:
            return session.death(operation, here())
    first, second = f"node {one.number}", f"node {other.number}"
    return PlaceMismatchError(operation, first, second, f"Move one of them: tensor.to_node({one.number})")

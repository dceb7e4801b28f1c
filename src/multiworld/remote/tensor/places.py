"""Operands that live in several places: the error that says where, and what helps."""

from __future__ import annotations

from ..errors import ConnectionEndedError, PlaceMismatchError, RemoteError
from ..session.origins import here
from ..session.session import Session


def of_several_nodes(operation: str, one: Session, other: Session) -> RemoteError:
    """Return the error of an operation with operands of two sessions.

    NodeDeadError, ConnectionEndedError if one of them is over.
    """
    for session in (one, other):
        if session.dead is not None:
            return session.death(operation, here())
        if session.ended is not None:
            return ConnectionEndedError(session.ended)
    first, second = f"node {one.number}", f"node {other.number}"
    advice = f"Move one of them: tensor.to_node({one.number})"
    if one.number == other.number:
        second = f"{second} of another connection"
        advice = f"Move the older one: tensor.to_node({one.number}) means the connection that was opened last"
    return PlaceMismatchError(operation, first, second, advice)

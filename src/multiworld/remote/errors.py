"""What a master may get instead of a value: each error names node, operation and line."""

from __future__ import annotations

from typing import Final

from ..errors import (
    MultiworldError,
    PeerDiedError,
    PeerLeftError,
    PeerSilentError,
    PeerStoppedError,
    PeerUnreachableError,
    WorldBrokenError,
)


class RemoteError(MultiworldError):
    """The base of all errors of remote tensors."""


class RemoteOperationError(RemoteError):
    """An operation failed on its node. The results of all operations that need it are lost; all others are not.

    ``kind`` and ``text`` are the error on the node, ``line`` is where the master issued it (``file:line in function``).
    """

    def __init__(self, node: int, operation: str, line: str, kind: str, text: str) -> None:
        super().__init__(node, operation, line, kind, text)
        self.node, self.operation, self.line, self.kind, self.text = node, operation, line, kind, text

    def __str__(self) -> str:
        return (
            f"{self.operation} failed on node {self.node}: {self.kind}: {self.text}\n  issued at {self.line}\n"
            "Operations that need its result did not run; all others did."
        )


class NodeMemoryError(RemoteOperationError):
    """A node had too little memory for an operation. ``text`` says what is live there."""


class NodeDeadError(RemoteError):
    """A node is gone, and its tensors with it. Other nodes go on.

    ``operation`` and ``line``: what needed the node. ``reason``: how it was lost. ``first_lost``: the oldest operation
    that the node had not confirmed, with its line; empty if there was none.
    """

    def __init__(self, node: int, operation: str, line: str, reason: str, first_lost: str = "") -> None:
        super().__init__(node, operation, line, reason, first_lost)
        self.node, self.operation, self.line = node, operation, line
        self.reason, self.first_lost = reason, first_lost

    def __str__(self) -> str:
        lost = f"\n  The first operation without a confirmed result: {self.first_lost}" if self.first_lost else ""
        return (
            f"{self.operation} needs node {self.node}, which is lost: {self.reason}\n  needed at {self.line}{lost}\n"
            f"Its tensors are gone; other nodes go on. nodes[{self.node}].wait_alive() waits for its replacement."
        )


class NodeReturnsError(NodeDeadError):
    """A node was lost while something was waited for. Its tensors come back: what was issued is not lost."""

    def __str__(self) -> str:
        return (
            f"{self.operation} needs node {self.node}, which is lost: {self.reason}\n  needed at {self.line}\n"
            f"It is made anew, with all its tensors: nodes[{self.node}].wait_alive() waits for it. "
            "What was issued need not be issued again; only this wait is over."
        )


class NotReplayableWarning(UserWarning):
    """A node that ``remote.recoverable()`` covers was asked for a call that can't be made a second time.

    If it is lost before the next snapshot, which is taken at once, its tensors are gone.
    """

    def __init__(self, node: int, call: str, line: str) -> None:
        super().__init__(node, call, line)
        self.node, self.call, self.line = node, call, line

    def __str__(self) -> str:
        return (
            f"{self.call} on node {self.node} is not declared replayable: if the node is lost before the snapshot that "
            f"is taken now, its tensors are gone\n  called at {self.line}\n"
            "If a second call returns the same, declare it so: DeclaredCall(name=..., replayable=True), or --replayable"
        )


class SyncPointError(RemoteError):
    """An operation would have waited for a node inside ``remote.no_sync()``."""

    def __init__(self, operation: str, line: str) -> None:
        super().__init__(operation, line)
        self.operation, self.line = operation, line

    def __str__(self) -> str:
        return f"{self.operation} waits for a node, inside remote.no_sync(), at {self.line}"


class CaptureError(RemoteError):
    """Something can't be a part of a captured step, or the step can't be replayed (``reason``)."""

    def __init__(self, operation: str, line: str, reason: str, advice: str) -> None:
        super().__init__(operation, line, reason, advice)
        self.operation, self.line, self.reason, self.advice = operation, line, reason, advice

    def __str__(self) -> str:
        return f"remote.capture: {self.operation} at {self.line}: {self.reason}. {self.advice}"


class PlaceMismatchError(RemoteError):
    """The operands of one operation live in several places."""

    def __init__(self, operation: str, here: str, there: str, advice: str) -> None:
        super().__init__(operation, here, there, advice)
        self.operation, self.here, self.there, self.advice = operation, here, there, advice

    def __str__(self) -> str:
        return f"{self.operation}: one operand is on {self.here}, another on {self.there}. {self.advice}"


class UnsupportedOperationError(RemoteError, NotImplementedError):
    """An operation or a method does not exist for remote tensors. The message says what to do instead."""

    def __init__(self, operation: str, reason: str, advice: str) -> None:
        super().__init__(operation, reason, advice)
        self.operation, self.reason, self.advice = operation, reason, advice

    def __str__(self) -> str:
        return f"{self.operation}: {self.reason}. {self.advice}"


class CallNotDeclaredError(RemoteError):
    """A node was asked to call a function that its own side did not declare. ``declared``: those that it did."""

    def __init__(self, node: int, function: str, declared: tuple[str, ...] = ()) -> None:
        super().__init__(node, function, declared)
        self.node, self.function, self.declared = node, function, declared

    def __str__(self) -> str:
        return (
            f"node {self.node} does not call {self.function!r}: it did not declare it (declared: "
            f"{', '.join(self.declared) or 'none'}). Declare it where the node starts: multiworld nodes serve --call "
            f"{self.function}, or calls=[{self.function!r}] of remote.local, or of remote.connect on the node's rank"
        )


class ConnectionEndedError(RemoteError):
    """A remote tensor was used after its connection ended, or in a forked child."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return f"the connection of this remote tensor has ended ({self.reason}): its data is gone"


class ConnectError(RemoteError):
    """The nodes could not be reached, or do not fit to this process (``reason``)."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return self.reason


class DeviceNameError(RemoteError):
    """``"remote:N"`` is no device here: the name was not asked for, or its place is taken (``reason``)."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return (
            f'"remote:N" is no device in this process: {self.reason}. '
            "All else works without the name: nodes[1].load(model), nodes[1].send(tensor), tensor.fetch()"
        )


def reason_of(error: BaseException) -> str:
    """Return what happened to the peer, without the advice that is for those who use worlds."""
    if not isinstance(error, WorldBrokenError):
        return str(error)
    return f"{_WHAT_HAPPENED.get(type(error), 'the connection broke')}: {error.cause}"


_WHAT_HAPPENED: Final[dict[type[WorldBrokenError], str]] = {
    PeerDiedError: "it died",
    PeerStoppedError: "it is stopped",
    PeerSilentError: "it is silent",
    PeerUnreachableError: "it cannot be reached",
    PeerLeftError: "it left",
}

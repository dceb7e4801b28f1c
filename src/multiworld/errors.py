"""Every error that multiworld raises: one tree, each class with fields, each message with what to do next.

Errors cross processes, so ``args`` always equal the constructor's parameters and they pickle.

What ``torch.distributed`` raises is a RuntimeError, and so is all of this: one ``except`` serves both. Where PyTorch is
loaded, ``channel.torch_errors`` makes them kinds of its ``DistError``, too; this module never imports it.
"""

from __future__ import annotations

from typing import TypeVar

__all__ = [
    "BrokenWorldException",
    "ChannelUnavailableError",
    "CollectiveMismatchError",
    "HandshakeError",
    "InvalidTypeError",
    "InvalidValueError",
    "JoinError",
    "JoinMismatchError",
    "JoinRefusedError",
    "JoinTimeoutError",
    "MessageError",
    "MissingTensorError",
    "MultiworldError",
    "OperationTimeoutError",
    "PeerDiedError",
    "PeerLeftError",
    "PeerSilentError",
    "PeerStoppedError",
    "PeerUnreachableError",
    "ProtocolError",
    "ReasonError",
    "RecordError",
    "RequestCancelledError",
    "StaleGenerationError",
    "StoreError",
    "TensorMismatchError",
    "TokenError",
    "UnsupportedTensorError",
    "WorldBrokenError",
    "WorldClosedError",
]


class RuntimeBase(RuntimeError):
    """Where PyTorch is loaded, its ``DistError`` stands in this place.

    Python exchanges a class of its kind only for such a one, and RuntimeError itself is of another.
    """


class MultiworldError(RuntimeBase):
    """The root of the tree: ``except MultiworldError`` catches all that this package raises on purpose.

    Bad arguments are no part of it: they raise a ValueError or a TypeError (``InvalidValueError`` and its kin).
    """

    def __init__(self, *args: object) -> None:
        Exception.__init__(
            self, *args
        )  # not super(): TimeoutError, an OSError, would cut args to two, and pickling fail


Error = TypeVar("Error", bound=BaseException)


def again(error: Error) -> Error:
    """Return a copy to raise: an error that is kept would keep what it went through, with the locals of the caller.

    Raise what this returns at once. A frame that has it as a local keeps itself alive, and all that called it. What is
    none of ours cannot be copied, and is returned.
    """
    if not isinstance(error, MultiworldError):
        return error
    copy = type(error)(*error.args)
    copy.__dict__.update(error.__dict__)  # what its constructor did not set
    if error.__cause__ is not None:
        copy.__cause__ = error.__cause__
    return copy


class ReasonError(MultiworldError):
    """The root of errors with one field, ``reason``, which is their message."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return self.reason


class WorldBrokenError(MultiworldError):
    """A world lost a member, so none of its operations can succeed any more.

    Fields: ``world`` (name), ``generation``, ``rank`` (the world rank that caused it, -1 when no rank did), ``cause``
    (one clause of text: the evidence).
    """

    advice = "Leave it, or call manager.rejoin() to form its next generation."

    def __init__(self, world: str, generation: int, rank: int, cause: str) -> None:
        super().__init__(world, generation, rank, cause)
        self.world, self.generation, self.rank, self.cause = world, generation, rank, cause

    def what(self) -> str:
        """Return the clause that says what happened to the rank."""
        return f"was broken by rank {self.rank}"

    def summary(self) -> str:
        """Return what happened and the evidence, without advice."""
        return f"{self.what()}: {self.cause}"

    def __str__(self) -> str:
        where = f"world {self.world!r} (generation {self.generation})"
        return f"{where} {self.summary()}. Other worlds are unaffected. {self.advice}"


class PeerDiedError(WorldBrokenError):
    """The peer's process ended without leaving: the kernel closed its sockets, or its pidfd fired."""

    advice = "Start a replacement, and call manager.rejoin() to form the next generation with it."

    def what(self) -> str:
        return f"lost rank {self.rank}, which died"


class PeerStoppedError(WorldBrokenError):
    """The peer's process is stopped (SIGSTOP, a debugger, a frozen container) for longer than the lease."""

    advice = "Rejoin with a replacement, or raise lease_s if such pauses are expected."

    def what(self) -> str:
        return f"lost rank {self.rank}, which is stopped"


class PeerSilentError(WorldBrokenError):
    """The peer's host answers but its process does not, for longer than the lease: it hangs."""

    advice = "Rejoin with a replacement, or raise lease_s if the peer was only slow."

    def what(self) -> str:
        return f"lost rank {self.rank}, which is silent"


class PeerUnreachableError(WorldBrokenError):
    """The peer's host no longer acknowledges packets: the host or the network is gone."""

    advice = "Check the network between the hosts; rejoin when it is back, or with a replacement elsewhere."

    def what(self) -> str:
        return f"lost rank {self.rank}, which cannot be reached"


class PeerLeftError(WorldBrokenError):
    """The peer left the world on purpose: ``leave()``, closing its manager, or a normal end of its program."""

    def what(self) -> str:
        return f"ended because rank {self.rank} left"


class StaleGenerationError(WorldBrokenError):
    """This process was fenced: the others broke this generation while it was stopped, cut off or slow."""

    advice = "Discard what was computed for it and call manager.rejoin() to join the current generation."

    def what(self) -> str:
        return f"was revoked by rank {self.rank} while this process was away (fenced by generation)"


class BrokenWorldException(WorldBrokenError):
    """What ``WorldCommunicator`` raises for a world that is broken, removed or unknown; the cause is typed.

    Constructed by hand it has ``generation`` 0 and ``rank`` -1; ``of`` takes both from the error that broke the world.
    """

    def __init__(self, world_name: str, msg: str) -> None:
        super().__init__(world_name, 0, -1, msg)
        self.args = (world_name, msg)  # the fields that differ travel in the instance's dictionary when it is pickled
        self.msg = msg

    @classmethod
    def of(cls, error: WorldBrokenError) -> BrokenWorldException:
        """Return the exception that says what ``error`` says; raise it ``from`` that error."""
        advice = f"Other worlds are unaffected. To form it again, call initialize_world({error.world!r}, ...)."
        exception = cls(error.world, f"{error.summary()}. {advice}")
        exception.generation, exception.rank, exception.cause = error.generation, error.rank, error.cause
        return exception

    def __str__(self) -> str:
        return f"{self.world} broken: {self.msg}"


class WorldClosedError(MultiworldError):
    """An operation on a world that this process has itself left, aborted or closed, or that a fork has copied."""

    def __init__(self, world: str, generation: int, forked: bool = False) -> None:
        super().__init__(world, generation, *([forked] if forked else []))
        self.world, self.generation, self.forked = world, generation, forked

    def __str__(self) -> str:
        closed = f"world {self.world!r} (generation {self.generation}) is closed in this process"
        if self.forked:
            return f"{closed}, which was forked: it remains its parent's. Join worlds with a WorldManager made here."
        return f"{closed}: it was left or aborted here. Join it again to use it."


class OperationTimeoutError(MultiworldError, TimeoutError):
    """An operation ran past the ``timeout_s`` that its caller set. The world stays usable (on gloo, see its docs)."""

    def __init__(self, world: str, generation: int, operation: str, timeout_s: float) -> None:
        super().__init__(world, generation, operation, timeout_s)
        self.world, self.generation, self.operation, self.timeout_s = world, generation, operation, timeout_s

    def __str__(self) -> str:
        return (
            f"{self.operation} in world {self.world!r} (generation {self.generation}) timed out: it did not finish "
            f"within its deadline of {self.timeout_s:g} s. All members are alive; the world stays usable. Raise "
            "timeout_s, or check that the peer issued the matching operation."
        )


class RequestCancelledError(MultiworldError):
    """A request was ended by its ``cancel()``; its tensor is no longer read or written."""

    def __init__(self, world: str, generation: int, operation: str) -> None:
        super().__init__(world, generation, operation)
        self.world, self.generation, self.operation = world, generation, operation

    def __str__(self) -> str:
        return (
            f"{self.operation} in world {self.world!r} (generation {self.generation}) was cancelled here. What its "
            "tensor holds is undefined; start the operation again to go on."
        )


class TensorMismatchError(MultiworldError, ValueError):
    """The tensor that a receive offered does not fit the message that was sent; the message stays queued."""

    def __init__(self, world: str, generation: int, rank: int, expected: str, actual: str) -> None:
        super().__init__(world, generation, rank, expected, actual)
        self.world, self.generation, self.rank = world, generation, rank
        self.expected, self.actual = expected, actual

    def __str__(self) -> str:
        return (
            f"world {self.world!r} (generation {self.generation}): rank {self.rank} sent {self.actual}, but this "
            f"receive offers "
            f"{self.expected}. The message was kept: receive it again with a fitting tensor, or use recv_tensors()."
        )


class CollectiveMismatchError(MultiworldError, ValueError):
    """Ranks disagree on what the n-th collective of a world is (kind, dtype, size, root or reduce operation)."""

    def __init__(self, world: str, generation: int, rank: int, expected: str, actual: str) -> None:
        super().__init__(world, generation, rank, expected, actual)
        self.world, self.generation, self.rank = world, generation, rank
        self.expected, self.actual = expected, actual

    def __str__(self) -> str:
        return (
            f"world {self.world!r} (generation {self.generation}): this rank issued {self.expected}, but rank "
            f"{self.rank} issued "
            f"{self.actual} as the same collective. Every rank must issue the same collectives in the same order."
        )


class JoinError(MultiworldError):
    """A world could not be formed. Nothing is left behind; the same call may be tried again."""

    def __init__(self, world: str, reason: str) -> None:
        super().__init__(world, reason)
        self.world, self.reason = world, reason

    def __str__(self) -> str:
        return f"cannot join world {self.world!r}: {self.reason}"


class JoinTimeoutError(JoinError, TimeoutError):
    """The other members did not come, or the store did not answer, within ``timeout_s``."""

    def __str__(self) -> str:
        return f"cannot join world {self.world!r}: timed out: {self.reason}"


class JoinMismatchError(JoinError):
    """The members disagree about the world: its size, backend or version."""


class JoinRefusedError(JoinError):
    """The name or rank is taken, the store's port is taken, or the token is wrong."""


class ChannelUnavailableError(JoinError):
    """The channel asked for cannot work here; ``reason`` says why (``multiworld doctor`` shows all of them)."""


class StoreError(MultiworldError):
    """A key-value store could not be served or reached. ``url`` names it."""

    def __init__(self, url: str, reason: str) -> None:
        super().__init__(url, reason)
        self.url, self.reason = url, reason

    def __str__(self) -> str:
        return f"store {self.url}: {self.reason}"


class ProtocolError(ReasonError):
    """Bytes on a connection that are not ours, or not of this version; the connection is closed, nothing else."""


class MessageError(ProtocolError):
    """A message does not decode, and is dropped. Nothing else is harmed.

    Fields: ``kind`` (as it came; empty if there is none), ``field`` (its path, ``roster.members[3].port``), ``why``.
    """

    def __init__(self, kind: str, field: str, why: str) -> None:
        MultiworldError.__init__(self, kind, field, why)
        self.kind, self.field, self.why = kind, field, why
        where = f"{field}: " if field else ""
        self.reason = f"a message {kind!r} is refused: {where}{why}" if kind else f"a message is refused: {where}{why}"


class HandshakeError(ProtocolError):
    """The other end of a connection could not prove the job token, or speaks for another job or version."""


class TokenError(HandshakeError):
    """The two ends of a connection do not know the same job token."""


class RecordError(ProtocolError):
    """A record after the handshake does not verify: somebody on the path writes into the connection. It is closed."""

    def __init__(self, number: int) -> None:
        MultiworldError.__init__(self, number)
        self.number = number
        """How many records came before it."""
        self.reason = (
            f"record {number} does not verify: on its way it was changed, put in, repeated, left out or put in another "
            "order. Somebody can write into the connections between these hosts; give them a network of their own, or "
            "WireGuard"
        )


class InvalidValueError(ValueError, RuntimeError):
    """An argument of an operation has a value that it cannot have. Nothing was sent.

    A RuntimeError too, as c10d raises one for most of these.
    """


class MissingTensorError(InvalidValueError, NotImplementedError):
    """A list of tensors is empty. Nothing was sent.

    A NotImplementedError too, which c10d raises then, as it finds no device that would say which backend is meant.
    """


class InvalidTypeError(TypeError, RuntimeError):
    """An argument of an operation is of a type that it cannot have. Nothing was sent."""


class UnsupportedTensorError(TypeError, NotImplementedError):
    """A tensor has a layout or a dtype that cannot be sent. Nothing was sent.

    A NotImplementedError, which is a RuntimeError, because c10d raises one for a layout that its backend lacks.
    """

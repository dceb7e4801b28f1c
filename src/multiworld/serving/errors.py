"""What a request can end in instead of an answer: one class per cause, each with the HTTP status that it maps to."""

from __future__ import annotations

from typing import ClassVar

from ..errors import MultiworldError, ReasonError, WorldBrokenError

__all__ = [
    "BadRequestError",
    "CanaryFailedError",
    "DeadlineExceededError",
    "DeploymentError",
    "GatewayClosedError",
    "HostExhaustedError",
    "MemberLostError",
    "OverloadedError",
    "PoisonedRequestError",
    "RequestIdReusedError",
    "RequestLostError",
    "SequenceTooLongError",
    "ServingError",
    "StageFailedError",
    "StageUnavailableError",
    "StateLostError",
    "UnknownStageError",
    "what_happened",
]


class ServingError(MultiworldError):
    """The root of what ``infer`` raises. ``http_status``: how the gateway answers it."""

    http_status: ClassVar[int] = 500


class DeploymentError(ServingError, ReasonError):
    """A pipeline could not be brought up, or changed. Field: ``reason``, a sentence."""


class HostExhaustedError(DeploymentError):
    """A host has no descriptors, memory or processes left for a member. That passes, and is no fault of the member."""


class BadRequestError(ServingError):
    """The request can never succeed as it is. Fields: ``stage`` (empty: the gateway itself), ``reason``."""

    http_status = 400

    def __init__(self, stage: str, reason: str) -> None:
        super().__init__(stage, reason)
        self.stage, self.reason = stage, reason

    def __str__(self) -> str:
        where = f"stage {self.stage!r} refused the request" if self.stage else "bad request"
        return f"{where}: {self.reason}"


class SequenceTooLongError(BadRequestError):
    """A generation asks for more tokens of a sequence than a stage serves. Fields: ``stage``, ``reason``."""


class StageFailedError(ServingError):
    """The code of a stage raised. Fields: ``stage``, ``replica``, ``error`` (class and message of what it raised)."""

    http_status = 500

    def __init__(self, stage: str, replica: str, error: str) -> None:
        super().__init__(stage, replica, error)
        self.stage, self.replica, self.error = stage, replica, error

    def __str__(self) -> str:
        return f"stage {self.stage!r} failed in replica {self.replica}: {self.error}. Other requests are unaffected."


class OverloadedError(ServingError):
    """The pipeline takes no more at this moment. Fields: ``waiting`` (requests), ``retry_after_s``."""

    http_status = 429

    def __init__(self, waiting: int, retry_after_s: float) -> None:
        super().__init__(waiting, retry_after_s)
        self.waiting, self.retry_after_s = waiting, retry_after_s

    def __str__(self) -> str:
        return (
            f"overloaded: {self.waiting} requests wait already. Nothing was started; "
            f"try again in {self.retry_after_s:.1f} s, or add replicas."
        )


class GatewayClosedError(ServingError):
    """The gateway stops: it takes nothing more, or did not get this answer in time. Field: ``member``."""

    http_status = 503

    def __init__(self, member: str) -> None:
        super().__init__(member)
        self.member = member

    def __str__(self) -> str:
        return f"{self.member} stops. Ask another gateway, or again later."


class RequestIdReusedError(ServingError):
    """Another payload was sent with the same id a while ago. Field: ``request_id``."""

    http_status = 422

    def __init__(self, request_id: str) -> None:
        super().__init__(request_id)
        self.request_id = request_id

    def __str__(self) -> str:
        return (
            f"the id {self.request_id!r} was that of another request, with another payload. Only the same request may "
            "be sent again with its id; others need ids of their own."
        )


class StageUnavailableError(ServingError):
    """A stage has no live replica, and none came in time. Fields: ``stage``, ``waited_s``."""

    http_status = 503

    def __init__(self, stage: str, waited_s: float) -> None:
        super().__init__(stage, waited_s)
        self.stage, self.waited_s = stage, waited_s

    def __str__(self) -> str:
        return f"stage {self.stage!r} has had no live replica for {self.waited_s:.1f} s. Try again later."


class DeadlineExceededError(ServingError):
    """The request's time was over before its answer was there. Fields: ``timeout_s``, ``where`` (a stage, if known)."""

    http_status = 504

    def __init__(self, timeout_s: float, where: str) -> None:
        super().__init__(timeout_s, where)
        self.timeout_s, self.where = timeout_s, where

    def __str__(self) -> str:
        where = f" (it was at {self.where})" if self.where else ""
        return f"no answer within {self.timeout_s:g} s{where}. The request has been given up everywhere."


class PoisonedRequestError(ServingError):
    """Replicas died while they executed this request, too often for chance. Fields: ``stage``, ``deaths``."""

    http_status = 500

    def __init__(self, stage: str, deaths: int) -> None:
        super().__init__(stage, deaths)
        self.stage, self.deaths = stage, deaths

    def __str__(self) -> str:
        return (
            f"refused: {self.deaths} replicas of stage {self.stage!r} died while they executed this request. "
            "Others are served. Do not send it again before the stage has been mended."
        )


class RequestLostError(ServingError):
    """A stage that must not execute a request twice was lost with it. Fields: ``stage``, ``replica``."""

    http_status = 502

    def __init__(self, stage: str, replica: str) -> None:
        super().__init__(stage, replica)
        self.stage, self.replica = stage, replica

    def __str__(self) -> str:
        return (
            f"replica {self.replica} of stage {self.stage!r} was lost with the request, and the stage is declared not "
            "idempotent: whether it has executed is not known, so it was not tried again."
        )


class MemberLostError(ServingError):
    """The controller says that a member is gone, before the edge with it broke by itself. Field: ``member``."""

    def __init__(self, member: str) -> None:
        super().__init__(member)
        self.member = member

    def __str__(self) -> str:
        return f"{self.member} is gone, as the controller says. What it held is sent elsewhere."


class CanaryFailedError(ServingError):
    """A new replica did not answer a canary request as it should. Fields: ``stage``, ``difference``, a sentence."""

    def __init__(self, stage: str, difference: str) -> None:
        super().__init__(stage, difference)
        self.stage, self.difference = stage, difference

    def __str__(self) -> str:
        return f"stage {self.stage!r} does not answer a canary request as it should: {self.difference}"


class StateLostError(ServingError):
    """A replica does not have what earlier requests of a sequence left there: it was evicted, or is new.

    Raised by stages with state per sequence; the token loop sends the whole sequence again. Fields: ``stage``,
    ``sequence``.
    """

    http_status = 409

    def __init__(self, stage: str, sequence: str) -> None:
        super().__init__(stage, sequence)
        self.stage, self.sequence = stage, sequence

    def __str__(self) -> str:
        return f"stage {self.stage!r} has no state of sequence {self.sequence!r}; send its tokens again from the start"


class UnknownStageError(ServingError):
    """There is no such stage or replica. Fields: ``name``, ``known``."""

    http_status = 404

    def __init__(self, name: str, known: tuple[str, ...]) -> None:
        super().__init__(name, known)
        self.name, self.known = name, known

    def __str__(self) -> str:
        return f"there is no {self.name!r}; there are {', '.join(self.known) or 'none'}"


def what_happened(error: BaseException) -> str:
    """Return that alone: advice to call ``rejoin()`` is for programs. A deployment's worlds are the controller's."""
    return error.summary() if isinstance(error, WorldBrokenError) else str(error)

"""Ask a controller from any process: the command line's end. Blocking; imports no torch by itself."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

from ....errors import HandshakeError, MessageError
from ....process.link import CallRefusedError, ControlLink, LinkLostError
from ....process.link.blocking import BlockingLinks, wait_for
from ....wire.endpoints.addresses import show
from ....wire.endpoints.dialer import DialError
from ....wire.endpoints.token import check_token
from ...errors import DeploymentError
from .questions import CONTROLLER_QUESTIONS, ControllerQuestion

PURPOSE = "client"

A = TypeVar("A")


class ControllerLostError(DeploymentError):
    """The connection to a controller ended. If it was killed, another one listens at its address soon."""


def link_to_controller() -> ControlLink[ControllerQuestion, None]:
    """Return the asking end of a link, to be dialed."""
    return ControlLink(CONTROLLER_QUESTIONS, None)


class ControllerCalls:
    """Questions to one controller, one after the other."""

    def __init__(self, link: ControlLink[ControllerQuestion, None], where: str, timeout_s: float) -> None:
        self._link, self._where, self._timeout_s = link, where, timeout_s

    def ask(self, question: ControllerQuestion, answer: type[A]) -> A:
        """Return the answer. Raises DeploymentError (ControllerLostError if the connection is over)."""
        with explained(self._where, self._timeout_s):
            return wait_for(self._link.ask(question, answer), self._timeout_s)


def ask(
    address: tuple[str, int], token: str, question: ControllerQuestion, answer: type[A], timeout_s: float = 30.0
) -> A:
    """Return the controller's answer. Raises DeploymentError, which says why there is none, or what was refused."""
    with conversation(address, token, timeout_s) as calls:
        return calls.ask(question, answer)


@contextmanager
def conversation(address: tuple[str, int], token: str, timeout_s: float = 30.0) -> Iterator[ControllerCalls]:
    """Dial a controller, to ask it again and again, for ``timeout_s`` each time. Raises DeploymentError."""
    check_token(token)
    where = show(*address)
    with BlockingLinks("multiworld-client") as links:
        with explained(where, timeout_s):
            link = links.connect(*address, token, PURPOSE, link_to_controller(), timeout_s)
        yield ControllerCalls(link, where, timeout_s)


@contextmanager
def explained(where: str, timeout_s: float) -> Iterator[None]:
    """Raise DeploymentError for what goes wrong between a command and the controller at ``where``."""
    try:
        yield
    except TimeoutError:
        raise DeploymentError(f"the controller at {where} did not answer within {timeout_s:g} s") from None
    except HandshakeError as error:
        raise DeploymentError(f"the handshake with the controller at {where} failed: {error}") from None
    except CallRefusedError as error:
        raise DeploymentError(error.reason) from None
    except MessageError as error:
        raise DeploymentError(f"the controller at {where} is of another version: {error}") from None
    except LinkLostError as error:
        if error.is_forged:
            raise DeploymentError(
                f"the answer of the controller at {where} cannot be trusted: {error.reason}"
            ) from None
        raise ControllerLostError(f"the controller at {where} is gone: {error.reason}") from None
    except DialError as error:
        if error.errno == errno.ETIMEDOUT:
            raise DeploymentError(f"the controller at {where} did not answer within {timeout_s:g} s") from None
        if error.errno == errno.EPROTO:
            raise DeploymentError(f"what listens at {where} is no controller: {error.reason}") from None
        raise DeploymentError(f"no controller can be reached at {where}: {error.reason}") from None

"""The secret that the processes of a job prove to each other: where there must be one, and which can be guessed."""

from __future__ import annotations

import ipaddress
import logging
from typing import Final

logger = logging.getLogger(__name__)

TOKEN_VARIABLE: Final = "MULTIWORLD_TOKEN"
FEW_CHARACTERS: Final = 16
DRAW: Final = "openssl rand -hex 32"

_told: set[str] = set()


def check_token(token: str, name: str = TOKEN_VARIABLE) -> str:
    """Return a token that must be there. Raises ValueError for an empty one; ``name``: where it comes from."""
    if not isinstance(token, str):
        raise TypeError(f"{name}: a token is text, got {type(token).__name__}")
    if not token:
        what = "is not set" if name == TOKEN_VARIABLE else "is empty"
        raise ValueError(f"{name} {what}: it must be the secret that all of a job share; to draw one: {DRAW}")
    return token


def weakness_of(token: str, name: str = TOKEN_VARIABLE) -> str:
    """Return what the user should know of a token; empty if it is long enough, or none."""
    if not 0 < len(token) < FEW_CHARACTERS:
        return ""
    return (
        f"{name} has only {len(token)} characters: whoever records a connection can try short secrets until one fits. "
        f"Draw a long one: {DRAW}"
    )


def warn_of_no_token(host: str) -> None:
    """Log, once in a process, that others than this host reach it at that numeric address, and need prove nothing."""
    if not ipaddress.ip_address(host).is_loopback and host not in _told:
        _told.add(host)
        logger.warning("%s is not set: whoever reaches %s can join worlds of this process", TOKEN_VARIABLE, host)


def warn_of_weakness(token: str, name: str = TOKEN_VARIABLE) -> None:
    """Log it, once in a process for each token."""
    text = weakness_of(token, name)
    if text and token not in _told:
        _told.add(token)
        logger.warning("%s", text)


def weakness_is_told(token: str) -> None:
    """The giver of the token has warned of it."""
    _told.add(token)

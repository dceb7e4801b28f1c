"""Decide whether a host process or a command may talk to a controller: both prove the token, neither says it. Pure.

The dialer says hello (its purpose and a nonce), the acceptor answers with a nonce, the dialer with its proof, the
acceptor with ``accepted`` and its own proof; or it says why it refuses and closes. The proofs are those of
``wire.handshake``, and as there the dialer proves first. Both then have a ``key`` that authenticates what follows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...errors import HandshakeError, TokenError
from ...wire.handshake import (
    NONCE_BYTES,
    STRANGER,
    TOKEN,
    check_proof,
    check_version,
    derive_key,
    encode_fields,
    prove,
    tokens_differ,
)
from ...wire.token import check_token

__all__ = ["LONGEST_GREETING", "PURPOSES", "AcceptorGreeting", "DialerGreeting", "refusal_of"]

VERSION = 2
PURPOSES = ("host", "client")
LONGEST_GREETING = 4096
ACCEPTOR, DIALER = b"serving-acceptor", b"serving-dialer"


class DialerGreeting:
    """The side of who connects. ``nonce`` must be drawn for this connection. Raises ValueError without a token."""

    def __init__(self, token: str, purpose: str, nonce: bytes) -> None:
        self._token, self._nonce = check_token(token).encode(), nonce
        self._theirs = b""
        self.key = b""
        """What both ends share once the acceptor has been checked."""
        self.hello: dict[str, Any] = {"multiworld": VERSION, "purpose": purpose, "nonce": nonce.hex()}

    @property
    def has_answered(self) -> bool:
        return bool(self._theirs)

    def answer(self, challenge: Mapping[str, Any]) -> dict[str, Any]:
        """Return what proves the token. Raises HandshakeError with the reason of a refusal."""
        _raise_refusal(challenge)
        self._theirs = _bytes_of(challenge, "nonce")
        proof = prove(self._token, DIALER, encode_fields(self.hello), self._nonce, self._theirs)
        return {"proof": proof.hex()}

    def check_accepted(self, answer: Mapping[str, Any]) -> None:
        """Raises HandshakeError with the reason of a refusal, or if the acceptor does not prove the token."""
        _raise_refusal(answer)
        if answer.get("accepted") is not True:
            raise HandshakeError("the other end does not speak this protocol")
        hello = encode_fields(self.hello)
        try:
            check_proof(_bytes_of(answer, "proof"), self._token, ACCEPTOR, hello, self._nonce, self._theirs)
        except TokenError:
            raise TokenError(STRANGER) from None
        self.key = derive_key(self._token, hello, self._nonce, self._theirs)


class AcceptorGreeting:
    """The side of who listens. Raises HandshakeError for a hello that means nothing here."""

    def __init__(self, token: str, hello: Mapping[str, Any], nonce: bytes) -> None:
        self._token, self._nonce, self._hello = check_token(token).encode(), nonce, encode_fields(dict(hello))
        check_version(hello.get("multiworld"), VERSION)
        if hello.get("purpose") not in PURPOSES:
            raise HandshakeError(f"purpose must be one of {', '.join(PURPOSES)}, got {hello.get('purpose')!r}")
        self.purpose = str(hello["purpose"])
        self._theirs = _bytes_of(hello, "nonce")

    @property
    def challenge(self) -> dict[str, Any]:
        return {"nonce": self._nonce.hex()}

    def accept(self, answer: Mapping[str, Any]) -> dict[str, Any]:
        """Return the acceptance. Raises HandshakeError unless the dialer has proved the token."""
        proof = _bytes_of(answer, "proof")
        check_proof(proof, self._token, DIALER, self._hello, self._theirs, self._nonce)
        ours = prove(self._token, ACCEPTOR, self._hello, self._theirs, self._nonce)
        return {"accepted": True, "proof": ours.hex()}

    @property
    def key(self) -> bytes:
        """What both ends share once the dialer has been checked."""
        return derive_key(self._token, self._hello, self._theirs, self._nonce)


def refusal_of(error: HandshakeError) -> dict[str, Any]:
    """Return the record that says why a greeting failed."""
    return {"refused": str(error), **({"cause": TOKEN} if isinstance(error, TokenError) else {})}


def _raise_refusal(answer: Mapping[str, Any]) -> None:
    if "refused" in answer:
        raise tokens_differ() if answer.get("cause") == TOKEN else HandshakeError(str(answer["refused"]))


def _bytes_of(record: Mapping[str, Any], name: str) -> bytes:
    try:
        content = bytes.fromhex(record[name])
    except (KeyError, TypeError, ValueError) as error:
        raise HandshakeError(f"{name} is missing or not hexadecimal") from error
    if len(content) < NONCE_BYTES:
        raise HandshakeError(f"{name} has {len(content)} bytes; at least {NONCE_BYTES} are expected")
    return content

"""Decide whether a host process or a command may talk to a controller: both prove the token, neither says it. Pure.

The dialer says hello (its purpose and a nonce), the acceptor answers with a nonce and a proof, the dialer with its own
proof, the acceptor with ``accepted``; or it says why it refuses and closes. The proofs are those of ``wire.handshake``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...errors import HandshakeError
from ...wire.handshake import NONCE_BYTES, check_proof, encode_fields, prove

__all__ = ["LONGEST_GREETING", "PURPOSES", "AcceptorGreeting", "DialerGreeting"]

VERSION = 1
PURPOSES = ("host", "client")
LONGEST_GREETING = 4096
ACCEPTOR, DIALER = b"serving-acceptor", b"serving-dialer"


class DialerGreeting:
    """The side of who connects. ``nonce`` must be drawn for this connection."""

    def __init__(self, token: bytes, purpose: str, nonce: bytes) -> None:
        self._token, self._nonce = token, nonce
        self.hello: dict[str, Any] = {"multiworld": VERSION, "purpose": purpose, "nonce": nonce.hex()}

    def answer(self, challenge: Mapping[str, Any]) -> dict[str, Any]:
        """Return what proves the token. Raises HandshakeError if the acceptor has not proved it."""
        _raise_refusal(challenge)
        theirs, hello = _bytes_of(challenge, "nonce"), encode_fields(self.hello)
        check_proof(_bytes_of(challenge, "proof"), self._token, ACCEPTOR, hello, self._nonce, theirs)
        return {"proof": prove(self._token, DIALER, hello, self._nonce, theirs).hex()}

    def check_accepted(self, answer: Mapping[str, Any]) -> None:
        """Raises HandshakeError with the reason of a refusal."""
        _raise_refusal(answer)
        if answer.get("accepted") is not True:
            raise HandshakeError("the other end does not speak this protocol")


class AcceptorGreeting:
    """The side of who listens. Raises HandshakeError for a hello that means nothing here."""

    def __init__(self, token: bytes, hello: Mapping[str, Any], nonce: bytes) -> None:
        self._token, self._nonce, self._hello = token, nonce, encode_fields(dict(hello))
        if hello.get("multiworld") != VERSION:
            raise HandshakeError(f"expected version {VERSION} of this protocol, got {hello.get('multiworld')!r}")
        if hello.get("purpose") not in PURPOSES:
            raise HandshakeError(f"purpose must be one of {', '.join(PURPOSES)}, got {hello.get('purpose')!r}")
        self.purpose = str(hello["purpose"])
        self._theirs = _bytes_of(hello, "nonce")

    @property
    def challenge(self) -> dict[str, Any]:
        proof = prove(self._token, ACCEPTOR, self._hello, self._theirs, self._nonce)
        return {"nonce": self._nonce.hex(), "proof": proof.hex()}

    def check(self, answer: Mapping[str, Any]) -> None:
        """Raises HandshakeError unless the dialer has proved the token."""
        proof = _bytes_of(answer, "proof")
        check_proof(proof, self._token, DIALER, self._hello, self._theirs, self._nonce)


def _raise_refusal(answer: Mapping[str, Any]) -> None:
    if "refused" in answer:
        raise HandshakeError(str(answer["refused"]))


def _bytes_of(record: Mapping[str, Any], name: str) -> bytes:
    try:
        content = bytes.fromhex(record[name])
    except (KeyError, TypeError, ValueError) as error:
        raise HandshakeError(f"{name} is missing or not hexadecimal") from error
    if len(content) < NONCE_BYTES:
        raise HandshakeError(f"{name} has {len(content)} bytes; at least {NONCE_BYTES} are expected")
    return content

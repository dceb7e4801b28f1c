"""Decide whether the other end of a connection may talk. Pure: the proofs of a job token by challenge and response.

The dialer says HELLO (who it is, what it wants, a nonce), the acceptor answers CHALLENGE (its own nonce), the dialer
PROOF, the acceptor ACCEPTED with its own proof, or REFUSED. Each proof is an HMAC-SHA256 keyed with the token over the
role, both nonces and the HELLO, so that none can be replayed or reflected. The dialer proves first, so that each guess
costs it a connection: a stranger who had the acceptor's proof for the asking would try tokens at home. The same runs
with an empty token when none is set.

Both ends then share a key, made of the token, the HELLO and the nonces, which authenticates what follows (``records``).
Two processes that are linked so keep that of their link. Whoever dials further connections names itself in the HELLO
(``by``) and sends its PROOF with that key right behind it; the acceptor puts its nonce and proof into ACCEPTED, and
nobody waits for a challenge. A third party that overhears that can say it again, so what such a connection is for must
be wanted once only. If the acceptor does not know the key, it challenges as ever.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass
from typing import NamedTuple

from ...errors import HandshakeError, MessageError, TokenError
from ..messages import from_json, message, parse, sparse

PROTOCOL_VERSION = 4
NONCE_BYTES = 16
TOKEN = "token"
"""The cause in a refusal because of the token."""
STRANGER = "who listens there accepts, but does not know the job token: it is none of this job"


class Voucher(NamedTuple):
    """What spares a dialer the challenge: its own id, by which the acceptor finds the key that both share."""

    by: str
    key: bytes


@message("hello")
@sparse
@dataclass(frozen=True, kw_only=True)
class DialerHello:
    """What a dialer wants. A purpose that needs more has a class on top of this one.

    ``version``, ``nonce`` (in hex) and ``by`` are the handshake's: ``dial`` sets them.
    """

    purpose: str = ""
    version: int = 0
    nonce: str = ""
    by: str = ""


@message("refused")
@dataclass(frozen=True, kw_only=True)
class HandshakeRefused:
    """Why an acceptor does not let a dialer in. ``cause``: ``TOKEN``, or nothing."""

    reason: str = "no reason given"
    cause: str = ""


def read_hello(meta: bytes) -> tuple[object, DialerHello]:
    """Return a HELLO as JSON, and what each says. Raises HandshakeError for what is none of our protocol's version."""
    try:
        fields = parse(meta)
        hello = from_json(DialerHello, fields)
    except MessageError as error:
        raise HandshakeError(f"the HELLO is no control record of ours: {error}") from None
    check_version(hello.version, PROTOCOL_VERSION)
    return fields, hello


def check_version(version: object, ours: int) -> None:
    """Raise HandshakeError unless a HELLO is of our version of the protocol."""
    if version != ours:
        raise HandshakeError(
            f"the dialer speaks version {version} of the protocol, and the process that it dialed version {ours}: "
            "install the same multiworld everywhere"
        )


def prove(token: bytes, role: bytes, hello: bytes, dialer_nonce: bytes, acceptor_nonce: bytes) -> bytes:
    digest = hashlib.sha256(hello).digest()
    return hmac.digest(token, b"multiworld:" + role + b":" + dialer_nonce + acceptor_nonce + digest, "sha256")


def derive_key(token: bytes, hello: bytes, dialer_nonce: bytes, acceptor_nonce: bytes) -> bytes:
    """Return what the two share who have proved the token to each other, in the place of the token."""
    return prove(token, b"key", hello, dialer_nonce, acceptor_nonce)


def check_proof(
    proof: bytes, token: bytes, role: bytes, hello: bytes, dialer_nonce: bytes, acceptor_nonce: bytes
) -> None:
    """Raise TokenError unless ``proof`` was made with the same token."""
    if not hmac.compare_digest(proof, prove(token, role, hello, dialer_nonce, acceptor_nonce)):
        raise tokens_differ()


def tokens_differ(*, has_token: bool = True) -> TokenError:
    """Return the error. ``has_token``: whether the process that reads it has one; a stranger is not told that."""
    which = "" if has_token else ", as this process has none"
    return TokenError(
        f"the job tokens differ{which}; give all processes of the job the same token= or MULTIWORLD_TOKEN"
    )

"""Decide whether the other end of a connection may talk. Pure: the proofs of a job token by challenge and response.

The dialer says HELLO (who it is, what it wants, a nonce), the acceptor answers CHALLENGE (its own nonce and its proof),
the dialer answers PROOF, the acceptor ACCEPTED or REFUSED. Each proof is an HMAC-SHA256 keyed with the token over the
role, both nonces and the HELLO, so that none can be replayed or reflected. The same runs with an empty token when none
is set. It authenticates the peers; it does not encrypt what follows.

Two processes that are linked so share a key from then on, made of the token and the nonces. Whoever dials further
connections names itself in the HELLO (``by``) and sends its PROOF with that key right behind it; the acceptor puts its
own into ACCEPTED, and nobody waits for a challenge. Whoever overhears that can say it again, so what such a connection
is for must be wanted once only. If the acceptor does not know the key, it challenges as ever.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from typing import Any, NamedTuple

from ..errors import HandshakeError

__all__ = [
    "NONCE_BYTES",
    "PROTOCOL_VERSION",
    "Voucher",
    "check_proof",
    "decode_fields",
    "derive_key",
    "encode_fields",
    "prove",
]

PROTOCOL_VERSION = 3
NONCE_BYTES = 16
PROOF_BYTES = 32


class Voucher(NamedTuple):
    """What spares a dialer the challenge: its own id, by which the acceptor finds the key that both share."""

    by: str
    key: bytes


def encode_fields(fields: dict[str, Any]) -> bytes:
    """Encode a small control record as JSON."""
    return json.dumps(fields, separators=(",", ":")).encode()


def decode_fields(meta: bytes) -> dict[str, Any]:
    """Decode what ``encode_fields`` made; anything else raises HandshakeError."""
    try:
        fields = json.loads(meta)
    except (UnicodeDecodeError, ValueError, RecursionError) as error:
        raise HandshakeError(f"a control record is not JSON: {error}") from error
    if not isinstance(fields, dict):
        raise HandshakeError("a control record is not an object")
    return fields


def prove(token: bytes, role: bytes, hello: bytes, dialer_nonce: bytes, acceptor_nonce: bytes) -> bytes:
    digest = hashlib.sha256(hello).digest()
    return hmac.digest(token, b"multiworld:" + role + b":" + dialer_nonce + acceptor_nonce + digest, "sha256")


def derive_key(token: bytes, hello: bytes, dialer_nonce: bytes, acceptor_nonce: bytes) -> bytes:
    """Return what the two share who have proved the token to each other, in the place of the token."""
    return prove(token, b"key", hello, dialer_nonce, acceptor_nonce)


def check_proof(
    proof: bytes, token: bytes, role: bytes, hello: bytes, dialer_nonce: bytes, acceptor_nonce: bytes
) -> None:
    """Raise HandshakeError unless ``proof`` was made with the same token."""
    if not hmac.compare_digest(proof, prove(token, role, hello, dialer_nonce, acceptor_nonce)):
        which = ", as this process has none" if role == b"acceptor" and not token else ""  # the other hears of nothing
        raise HandshakeError(
            f"the job tokens differ{which}; give all processes of the job the same token= or MULTIWORLD_TOKEN"
        )

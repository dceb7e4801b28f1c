"""The proofs of the job token: who knows it is let in; nothing can be replayed, reflected or forged."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given

from multiworld.errors import HandshakeError, TokenError
from multiworld.wire.endpoints.handshake import (
    PROTOCOL_VERSION,
    DialerHello,
    check_proof,
    check_version,
    prove,
    read_hello,
    tokens_differ,
)
from multiworld.wire.messages import encode

HELLO = encode(DialerHello(purpose="link", nonce="00"))
ONE, TWO = b"1" * 16, b"2" * 16


@pytest.mark.parametrize("token", [b"", b"secret", b"\x00" * 100])
@pytest.mark.parametrize("role", [b"dialer", b"acceptor"])
def test_a_proof_with_the_same_token_is_accepted(token: bytes, role: bytes) -> None:
    check_proof(prove(token, role, HELLO, ONE, TWO), token, role, HELLO, ONE, TWO)


@pytest.mark.parametrize(
    "proof",
    [
        prove(b"other", b"dialer", HELLO, ONE, TWO),
        prove(b"", b"dialer", HELLO, ONE, TWO),
        prove(b"secret", b"acceptor", HELLO, ONE, TWO),  # reflected
        prove(b"secret", b"dialer", HELLO, ONE, ONE),  # replayed: for another nonce of the acceptor
        prove(b"secret", b"dialer", HELLO, TWO, TWO),
        prove(b"secret", b"dialer", HELLO, TWO, ONE),
        prove(b"secret", b"dialer", encode(DialerHello(purpose="data", nonce="00")), ONE, TWO),  # other intentions
        b"",
        b"\x00" * 32,
        prove(b"secret", b"dialer", HELLO, ONE, TWO)[:-1],
        prove(b"secret", b"dialer", HELLO, ONE, TWO) + b"\x00",
    ],
)
def test_any_other_proof_is_refused(proof: bytes) -> None:
    with pytest.raises(HandshakeError, match="tokens differ"):
        check_proof(proof, b"secret", b"dialer", HELLO, ONE, TWO)


def test_a_refusal_does_not_say_whether_there_is_a_token() -> None:
    proof = prove(b"secret", b"dialer", HELLO, ONE, TWO)
    for token in (b"", b"other"):
        with pytest.raises(TokenError, match="differ; give"):
            check_proof(proof, token, b"dialer", HELLO, ONE, TWO)
    assert "differ, as this process has none; give" in str(tokens_differ(has_token=False))


@pytest.mark.parametrize("version", [PROTOCOL_VERSION - 1, PROTOCOL_VERSION + 1, None, "x"])
def test_another_version_is_refused_by_both_numbers(version: object) -> None:
    check_version(PROTOCOL_VERSION, PROTOCOL_VERSION)
    with pytest.raises(HandshakeError, match=f"version {version} of the protocol, .* version {PROTOCOL_VERSION}:"):
        check_version(version, PROTOCOL_VERSION)


def test_the_token_is_not_in_what_is_sent() -> None:
    assert b"secret" not in prove(b"secret", b"dialer", HELLO, ONE, TWO)


@given(st.text(), st.text(), st.text())
def test_fields_survive_the_round_trip(purpose: str, nonce: str, by: str) -> None:
    hello = DialerHello(purpose=purpose, version=PROTOCOL_VERSION, nonce=nonce, by=by)
    assert read_hello(encode(hello))[1] == hello


@given(st.binary(max_size=200).filter(lambda meta: not meta.strip().startswith(b"{")))
def test_noise_raises_a_handshake_error_and_nothing_else(meta: bytes) -> None:
    with pytest.raises(HandshakeError, match="control record"):
        read_hello(meta)


@pytest.mark.parametrize("meta", [b"[]", b"1", b"null", b'"x"', b"[" * 4000, b'{"a":' * 900, b"1" * 5000, b"\xff", b""])
def test_what_is_no_record_raises_a_handshake_error(meta: bytes) -> None:
    with pytest.raises(HandshakeError, match="control record"):
        read_hello(meta)

"""Bodies that come compressed, and answers that go so: within the same bounds as others."""

from __future__ import annotations

import gzip
import tracemalloc
import zlib
from typing import Any

import orjson
import pytest
import torch

from multiworld.serving.gateway import GatewayOptions
from multiworld.serving.gateway.error_body import HttpError
from multiworld.serving.gateway.formats.kserve import HEADER_LENGTH
from multiworld.serving.gateway.http import inflating
from multiworld.serving.gateway.http.compression import accepted_coding
from multiworld.serving.gateway.http.inflating import Inflater
from tests.unit.serving.gateway.client import Client

PLAIN = orjson.dumps({"inputs": list(range(3000))})


def raw_deflate(body: bytes) -> bytes:
    deflater = zlib.compressobj(9, zlib.DEFLATED, -15)
    return deflater.compress(body) + deflater.flush()


WAYS = {
    "gzip": gzip.compress(PLAIN, mtime=0),
    "X-GZip": gzip.compress(PLAIN[:1000], mtime=0) + gzip.compress(PLAIN[1000:], mtime=0),
    "GZIP": gzip.compress(PLAIN[:1000], mtime=0) + bytes(700) + gzip.compress(PLAIN[1000:], mtime=0) + bytes(20),
    "deflate": zlib.compress(PLAIN),
    "Deflate": raw_deflate(PLAIN),
}


async def sent(client: Client, body: bytes, coding: str, *, step: int = 1 << 20) -> Any:
    headers = {"content-type": "application/json", "content-encoding": coding, "transfer-encoding": "chunked"}
    pieces = [body[at : at + step] for at in range(0, len(body), step)]
    return await client.call("POST", "/infer", headers, pieces or [b""])


@pytest.mark.parametrize("step", [1, 7, 1 << 20])
@pytest.mark.parametrize("coding", WAYS)
async def test_a_compressed_body_is_read_however_it_comes(coding: str, step: int) -> None:
    reply = await sent(Client(), WAYS[coding], coding, step=step)
    assert (reply.status, reply.json()["outputs"][2999]) == (200, 2999)


@pytest.mark.parametrize(
    ("body", "coding", "said"),
    [
        (WAYS["gzip"][:-9], "gzip", "truncated"),
        (WAYS["gzip"][:5], "gzip", "truncated"),
        (WAYS["gzip"] + b"more", "gzip", "inflated"),
        (WAYS["deflate"] + b"more", "deflate", "follows its end"),
        (WAYS["gzip"] + bytes(9) + b"more", "gzip", "inflated"),
        (WAYS["gzip"] + bytes(9) + WAYS["gzip"][:9], "gzip", "truncated"),
        (bytes(9) + WAYS["gzip"], "gzip", "inflated"),
        (WAYS["deflate"] + bytes(9), "deflate", "follows its end"),
        (b"{}", "gzip", "inflated"),
        (b"\xff" * 9, "deflate", "inflated"),
        (gzip.compress(b"", mtime=0) * 2000, "gzip", "follows its end"),
    ],
)
async def test_what_cannot_be_inflated_is_refused(body: bytes, coding: str, said: str) -> None:
    reply = await sent(Client(), body, coding)
    assert reply.status == 400
    assert said in reply.json()["error"]["message"]


def test_what_is_found_broken_only_after_all_was_taken_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inflating, "PIECE_BYTES", 1)
    broken = bytes.fromhex("789c3d8a0112000004c2ecff9f461477520dacdd993d76dc93f24315883653075a09ed58a6010ac10033")
    inflater = Inflater("deflate")
    with pytest.raises(HttpError, match="cannot be inflated as deflate"):
        [list(inflater.inflate(broken[at : at + 1])) for at in range(len(broken))]


@pytest.mark.parametrize("coding", ["br", "gzip, gzip", "zstd"])
async def test_other_codings_are_refused(coding: str) -> None:
    reply = await sent(Client(), PLAIN, coding)
    assert reply.status == 415
    assert "gzip, deflate" in reply.json()["error"]["message"]


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
async def test_a_small_body_that_would_become_a_large_one_is_refused_before_it_does(coding: str) -> None:
    bomb = bytes(64 << 20)
    body = (gzip.compress if coding == "gzip" else zlib.compress)(bomb)
    del bomb
    client = Client(options=GatewayOptions(max_json_bytes=1 << 20))
    tracemalloc.start()
    try:
        reply = await sent(client, body, coding)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert reply.status == 413
    assert peak_bytes < 4 << 20
    assert client.app.vitals()["held_bytes"] == 0


async def test_what_bodies_become_counts_among_what_all_may_hold() -> None:
    client = Client(options=GatewayOptions(max_body_bytes=100_000, max_held_bytes=150_000))
    body = gzip.compress(bytes(60_000))
    raw = {"content_encoding": "gzip", "x_dtype": "uint8"}
    assert (await client.post("/infer", body, "application/octet-stream", **raw)).body == bytes(60_000)
    client.app._held.take(100_000)
    assert (await client.post("/infer", body, "application/octet-stream", **raw)).status == 429
    assert client.app.vitals()["held_bytes"] == 100_000


async def test_answers_are_compressed_for_clients_that_ask() -> None:
    client = Client()
    for coding, inflate in (("gzip", gzip.decompress), ("deflate", zlib.decompress)):
        reply = await client.post_json("/infer", {"inputs": list(range(50_000))}, accept_encoding=coding)
        assert (reply.headers["content-encoding"], reply.headers["vary"]) == (coding, "accept-encoding")
        assert orjson.loads(inflate(reply.body))["outputs"][49_999] == 49_999
        assert client.app.vitals()["held_bytes"] == 0
    plain = await client.post_json("/infer", {"inputs": list(range(50_000))})
    assert "content-encoding" not in plain.headers
    assert plain.headers["vary"] == "accept-encoding"
    assert "content-encoding" not in (await client.get("/healthz", accept_encoding="gzip")).headers, "it is short"


async def test_an_answer_goes_plain_where_there_is_no_room_to_compress_it() -> None:
    body = bytes(torch.randint(0, 32, (60_000,), dtype=torch.uint8).tolist())  # shrinks to some 38 kB
    for max_held_bytes, coding in ((150_000, None), (300_000, "gzip")):
        client = Client(options=GatewayOptions(max_body_bytes=100_000, max_held_bytes=max_held_bytes))
        asked = {"x_dtype": "uint8", "accept_encoding": "gzip"}
        reply = await client.post("/infer", body, "application/octet-stream", **asked)
        assert (reply.status, reply.headers.get("content-encoding")) == (200, coding)
        assert (reply.body if coding is None else gzip.decompress(reply.body)) == body
        assert client.app.vitals()["held_bytes"] == 0


async def test_binary_answers_are_compressed_if_they_shrink() -> None:
    client = Client()
    header = orjson.dumps(
        {
            "parameters": {"binary_data_output": True},
            "inputs": [
                {"name": "x", "datatype": "FP32", "shape": [9000], "parameters": {"binary_data_size": 36_000}},
            ],
        }
    )
    for tensor, shrinks in ((torch.zeros(9000), True), (torch.rand(9000) * 1e9, False)):
        request = gzip.compress(header + tensor.numpy().tobytes())
        reply = await client.post(
            "/v2/models/echo/infer",
            request,
            "application/octet-stream",
            **{HEADER_LENGTH: str(len(header)), "content_encoding": "gzip", "accept_encoding": "gzip"},
        )
        assert reply.status == 200
        assert ("content-encoding" in reply.headers) == shrinks
        body = gzip.decompress(reply.body) if shrinks else reply.body
        assert body[int(reply.headers[HEADER_LENGTH]) :] == tensor.numpy().tobytes()


@pytest.mark.parametrize(
    ("accept", "coding"),
    [
        ("gzip, deflate, br", "gzip"),
        ("deflate;q=1.0, gzip;q=0.5", "deflate"),
        ("GZIP", "gzip"),
        ("*", "gzip"),
        ("gzip;q=0", None),
        ("gzip;q=0, *", "deflate"),
        ("identity, gzip;q=0.5", None),
        ("gzip;q=x", None),
        ("br", None),
        ("", None),
    ],
)
def test_the_coding_of_an_answer_is_the_one_that_is_liked_best(accept: str, coding: str | None) -> None:
    assert accepted_coding({"accept-encoding": accept}) == coding

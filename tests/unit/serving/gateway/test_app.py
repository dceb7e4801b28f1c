"""The gateway's application: every endpoint, and what each request ends in."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import io
import logging
from collections.abc import AsyncIterator
from typing import Any, cast

import numpy as np
import orjson
import pytest
import torch
from torch import Tensor

from multiworld.serving import errors
from multiworld.serving.gateway import GatewayOptions, Payload
from multiworld.serving.gateway.formats.kserve import HEADER_LENGTH
from tests.unit.serving.gateway.client import Client, FakePipeline, StreamingPipeline

ONE = {"inputs": [1.0]}


async def test_infer_answers_in_the_format_of_the_request() -> None:
    client = Client(FakePipeline(work=lambda payload: cast(Tensor, payload) * 2))
    reply = await client.post_json("/infer", {"inputs": [[1, 2]], "dtype": "float32"})
    assert (reply.status, reply.headers["content-type"]) == (200, "application/json")
    assert reply.json() == {"outputs": [[2.0, 4.0]], "dtype": "float32", "shape": [1, 2]}
    raw = await client.post("/infer", b"\x01\x02", "application/octet-stream", x_dtype="int8", x_shape="2,1")
    assert (raw.body, raw.headers["x-shape"], raw.headers["x-dtype"]) == (b"\x02\x04", "2,1", "int8")
    npy = await client.post("/infer", b"\x01", "application/octet-stream", x_dtype="int8", accept="application/x-npy")
    assert np.load(io.BytesIO(npy.body)).tolist() == [2]


async def test_large_answers_are_sent_as_they_are() -> None:
    tensor = torch.arange(100_000, dtype=torch.float32)
    reply = await Client().post("/infer", tensor.numpy().tobytes(), "application/octet-stream", x_dtype="float32")
    assert reply.body == tensor.numpy().tobytes()


async def test_the_head_becomes_the_arguments() -> None:
    client = Client(options=GatewayOptions(default_timeout_s=9.0))
    headers = {"Idempotency_Key": "order 66", "X_Timeout_S": "2.5", "X_Routing_Key": "user-1"}
    reply = await client.post_json("/infer", ONE, **headers)
    assert reply.headers["x-request-id"] == "order 66"
    call = client.served.calls[0]
    assert (call["request_id"], call["timeout_s"], call["key"]) == ("order 66", 2.5, "user-1")
    reply = await client.post_json("/infer", ONE)
    call = client.served.calls[1]
    assert "request_id" not in call, "nobody will ask for this again"
    assert reply.headers["x-request-id"]
    assert (call["timeout_s"], call["key"]) == (9.0, None)


class ReportingPipeline(FakePipeline):
    reports = True

    async def infer(self, payload: Payload, **asked: Any) -> Payload:
        asked["report"].versions = {"embed": (1,), "head": (2, 3)}
        return await super().infer(payload, **asked)


async def test_an_answer_tells_its_weights_and_a_trace_is_passed_on() -> None:
    client = Client(ReportingPipeline())
    reply = await client.post_json("/infer", ONE, traceparent="00-abc-def-01")
    assert reply.headers["multiworld-weights"] == "embed=1,head=2+3"
    assert client.served.calls[0]["report"].traceparent == "00-abc-def-01"
    reply = await client.post_json("/v2/models/echo/infer", v2_request())
    assert reply.headers["multiworld-weights"] == "embed=1,head=2+3"
    assert "multiworld-weights" not in (await Client().post_json("/infer", ONE)).headers


@pytest.mark.parametrize(
    "headers",
    [
        {"X_Timeout_S": "0"},
        {"X_Timeout_S": "nan"},
        {"Request_Timeout": "soon"},
        {"X_Timeout_S": "1e99"},
        {"Idempotency_Key": ""},
        {"Idempotency_Key": "x" * 257},
        {"X_Routing_Key": "naïve"},
    ],
)
async def test_a_head_that_makes_no_sense_is_refused_before_the_body(headers: dict[str, str]) -> None:
    client = Client()
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    reply = await client.call(
        "POST", "/infer", {"content-type": "application/json", "content-length": "9", **named}, [b'{"inputs"']
    )
    assert reply.status == 400
    assert reply.json()["error"]["type"] == "BadRequestError"
    assert not client.served.calls


@pytest.mark.parametrize(
    ("error", "status", "stage", "retry_after"),
    [
        (errors.BadRequestError("blocks", "wrong shape"), 400, "blocks", None),
        (errors.SequenceTooLongError("blocks", "9 tokens"), 400, "blocks", None),
        (errors.StageFailedError("blocks", "blocks-1", "ValueError: no"), 500, "blocks", None),
        (errors.OverloadedError(7, 0.2), 429, None, "1"),
        (errors.OverloadedError(7, 2.1), 429, None, "3"),
        (errors.StageUnavailableError("blocks", 1.0), 503, "blocks", "1"),
        (errors.DeadlineExceededError(1.0, "blocks"), 504, "blocks", None),
        (errors.DeadlineExceededError(1.0, ""), 504, None, None),
        (errors.PoisonedRequestError("blocks", 2), 500, "blocks", None),
        (errors.RequestLostError("blocks", "blocks-1"), 502, "blocks", None),
    ],
)
async def test_errors_of_the_pipeline_keep_their_meaning(
    error: errors.ServingError, status: int, stage: str | None, retry_after: str | None
) -> None:
    client = Client(FakePipeline(error=error))
    reply = await client.post_json("/infer", ONE)
    assert (reply.status, reply.headers.get("retry-after")) == (status, retry_after)
    assert reply.json()["error"].get("stage") == stage
    assert reply.json()["error"]["type"] == type(error).__name__
    assert reply.json()["error"]["message"] == str(error)
    assert "x-request-id" in reply.headers
    v2 = await client.post_json("/v2/models/echo/infer", v2_request())
    assert (v2.status, v2.json()) == (status, {"error": str(error)})


async def test_an_unexpected_error_is_logged_and_not_shown(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR):
        reply = await Client(FakePipeline(error=KeyError("secret"))).post_json("/infer", ONE)
    assert reply.status == 500
    assert b"secret" not in reply.body
    assert "secret" in caplog.text


async def test_wrong_paths_methods_and_types() -> None:
    client = Client()
    assert (await client.get("/nowhere")).status == 404
    assert (await client.get("/v2/models/other")).status == 404
    assert (await client.post_json("/v2/models/other/infer", v2_request())).json()["error"].startswith("there is no")
    assert (await client.get("/v2/models/echo/versions/9")).status == 404
    assert (await client.get("/v2/models/echo/shutdown")).status == 404
    wrong = await client.get("/infer")
    assert (wrong.status, wrong.headers["allow"]) == (405, "POST")
    assert (await client.post_json("/healthz", {})).headers["allow"] == "GET, HEAD"
    assert (await client.post("/infer", b"a=1", "application/x-www-form-urlencoded")).status == 415
    assert (await client.post_json("/infer", ONE, content_encoding="br")).status == 415
    assert (await client.post_json("/infer", ONE, accept="text/html")).status == 406
    assert (await client.post_json("/generate", ONE)).status == 501
    assert not client.served.calls


def v2_request(**more: Any) -> dict[str, Any]:
    return {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [1.5, 2.5]}], **more}


async def test_kserve_in_json_and_in_binary() -> None:
    client = Client()
    reply = await client.post_json("/v2/models/echo/infer", v2_request(id="41"))
    output = {"name": "output", "datatype": "FP32", "shape": [1, 2], "data": [1.5, 2.5]}
    assert reply.json() == {"model_name": "echo", "model_version": "1", "id": "41", "outputs": [output]}
    request = v2_request(parameters={"binary_data_output": True})
    reply = await client.post_json("/v2/models/echo/versions/1/infer", request)
    length = int(reply.headers[HEADER_LENGTH])
    assert np.frombuffer(reply.body[length:], np.float32).tolist() == [1.5, 2.5]
    tensor = {"name": "x", "datatype": "FP32", "shape": [2], "parameters": {"binary_data_size": 8}}
    header = orjson.dumps({"inputs": [tensor]})
    body = header + np.array([3, 4], np.float32).tobytes()
    reply = await client.post(
        "/v2/models/echo/infer", body, "application/octet-stream", **{HEADER_LENGTH: str(len(header))}
    )
    assert reply.json()["outputs"][0]["data"] == [3.0, 4.0]
    assert (await client.post("/v2/models/echo/infer", b"{}", "text/plain")).status == 415
    assert (await client.post_json("/v2/models/echo/infer", {})).status == 400


async def test_probes_and_metadata() -> None:
    client = Client()
    for path in ("/healthz", "/readyz", "/v2", "/v2/health/live", "/v2/health/ready", "/v2/models/echo/ready", "/v2/"):
        assert (await client.get(path)).status == 200, path
        head = await client.get(path, "HEAD")
        assert head.status == 200, path
    assert (await client.get("/v2")).json()["extensions"] == ["binary_tensor_data"]
    assert (await client.get("/v2/models/echo/versions/1")).json()["name"] == "echo"
    status = (await client.get("/status")).json()
    assert (status["stages"], status["gateway"]["ready"]) == (["a", "b"], True)
    client.served.unready = "stage 'b' has no live replica"
    reply = await client.get("/readyz")
    assert (reply.status, reply.headers["retry-after"]) == (503, "1")
    assert reply.json()["error"]["message"] == "stage 'b' has no live replica"
    assert (await client.get("/v2/models/echo/ready")).json() == {"error": "stage 'b' has no live replica"}
    assert (await client.get("/healthz")).status == 200
    client.served.unready, client.app.is_stopping = "", True
    assert (await client.get("/v2/health/ready")).status == 503
    assert (await client.get("/healthz")).headers["connection"] == "close"


async def test_metrics_are_what_prometheus_reads() -> None:
    client = Client()
    await client.post_json("/infer", ONE)
    await client.get("/x/y")
    text = (await client.get("/metrics")).body.decode()
    assert 'multiworld_http_requests_total{route="/infer",code="200"} 1\n' in text
    assert 'multiworld_http_requests_total{route="unknown",code="404"} 1\n' in text
    assert 'multiworld_replicas{stage="a\\"b\\n"} 2\n' in text
    assert "# TYPE multiworld_waiting gauge\nmultiworld_waiting 3\n" in text
    assert 'multiworld_http_infer_seconds_bucket{le="+Inf"} 1\n' in text
    assert "multiworld_ready 1\n" in text
    for line in text.splitlines():
        assert line.startswith("#") or len(line.rsplit(" ", 1)) == 2


async def test_documentation_needs_nothing_from_elsewhere() -> None:
    client = Client(StreamingPipeline(name="<echo>"))
    assert (await client.get("/")).headers["location"] == "/docs"
    description = (await client.get("/openapi.json")).json()
    assert description["openapi"] == "3.1.0"
    for path in description["paths"]:
        known = path.replace("{name}", "<echo>").replace("{version}", "1")
        assert (await client.get(known, "DELETE")).status == 405, path
    references = {part.split('"')[0] for part in orjson.dumps(description).decode().split("#/components/schemas/")[1:]}
    assert references <= description["components"]["schemas"].keys()
    html = (await client.get("/docs")).body.decode()
    assert "&lt;echo&gt;" in html
    assert "<echo>" not in html
    assert "http" not in html.replace("application/http", "")
    assert "/generate" in html
    assert "/generate" not in (await Client().get("/docs")).body.decode()


async def test_the_documentation_runs_no_script_but_its_own() -> None:
    reply = await Client().get("/docs")
    policy = reply.headers["content-security-policy"]
    assert "unsafe-inline" not in policy
    script = reply.body.decode().rpartition("<script>")[2].partition("</script>")[0]
    assert base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() in policy


def described(description: Any, method: str, path: str, status: int) -> Any:
    """What the document says of such an answer, with what its schema refers to."""
    content = description["paths"][path][method]["responses"][str(status)]["content"]
    name = content["application/json"]["schema"].get("$ref", "").rpartition("/")[2]
    return content, description["components"]["schemas"].get(name)


KSERVE_INFER = "/v2/models/{name}/infer"


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (errors.RequestLostError("blocks", "blocks-1"), 502),
        (errors.StateLostError("blocks", "41"), 409),
        (errors.RequestIdReusedError("41"), 422),
        (errors.OverloadedError(7, 0.2), 429),
        (errors.StageUnavailableError("blocks", 1.0), 503),
        (errors.DeadlineExceededError(1.0, "blocks"), 504),
    ],
)
async def test_the_documentation_knows_the_errors_of_the_pipeline(error: errors.ServingError, status: int) -> None:
    client = Client(StreamingPipeline(error=error, parts=0))
    description = (await client.get("/openapi.json")).json()
    for path, asked in (("/infer", ONE), ("/generate", ONE), (KSERVE_INFER, v2_request())):
        reply = await client.post_json(path.replace("{name}", "echo"), asked)
        assert reply.status == status
        _, schema = described(description, "post", path, status)
        assert isinstance(reply.json()["error"], str) == (schema["properties"]["error"]["type"] == "string")


async def test_the_documentation_knows_what_is_not_acceptable_and_no_model() -> None:
    complex_ones = Client(StreamingPipeline(work=lambda payload: torch.ones(1, dtype=torch.complex64)))
    description = (await complex_ones.get("/openapi.json")).json()
    for path, asked in (("/infer", ONE), ("/generate", ONE), (KSERVE_INFER, v2_request())):
        assert (await complex_ones.post_json(path.replace("{name}", "echo"), asked)).status == 406
        described(description, "post", path, 406)
    assert (await complex_ones.post_json("/v2/models/other/infer", v2_request())).status == 404
    assert described(description, "post", KSERVE_INFER, 404)[1]["properties"] == {"error": {"type": "string"}}
    for path in ("/v2/models/{name}", "/v2/models/{name}/ready", "/v2/models/{name}/versions/{version}"):
        described(description, "get", path, 404)


async def test_the_documentation_knows_the_shapes_of_answers_and_requests() -> None:
    client = Client()
    description = (await client.get("/openapi.json")).json()
    reply = await client.post_json("/v2/models/echo/infer", v2_request(parameters={"binary_data_output": True}))
    content, _ = described(description, "post", KSERVE_INFER, 200)
    assert reply.headers["content-type"] in content
    told = description["paths"][KSERVE_INFER]["post"]["responses"]["200"]["headers"]
    assert HEADER_LENGTH in {name.lower() for name in told}
    client.served.unready = "no replica"
    for path in ("/readyz", "/v2/health/ready", "/v2/models/{name}/ready"):
        reply = await client.get(path.replace("{name}", "echo"))
        _, schema = described(description, "get", path, 503)
        is_text = isinstance(reply.json()["error"], str)
        assert is_text == (schema["properties"]["error"]["type"] == "string"), path
    one_each = {"inputs": {"x": [1], "y": [2]}, "dtype": {"x": "int8", "y": "float16"}}
    assert (await client.post_json("/infer", one_each)).status == 200
    kinds = description["components"]["schemas"]["Request"]["properties"]["dtype"]["oneOf"]
    assert "object" in [kind.get("type") for kind in kinds]


async def test_a_body_beyond_the_limit_is_refused_at_once() -> None:
    client = Client(options=GatewayOptions(max_body_bytes=1000, max_json_bytes=100))
    raw = {"content-type": "application/octet-stream", "x-dtype": "uint8"}
    declared = await client.call("POST", "/infer", {**raw, "content-length": "5000000"}, [bytes(10)])
    assert (declared.status, declared.headers["connection"]) == (413, "close")
    chunked = await client.call("POST", "/infer", {**raw, "transfer-encoding": "chunked"}, [bytes(600), bytes(600)])
    assert chunked.status == 413
    assert (await client.post("/infer", bytes(1000), content_type=raw["content-type"], x_dtype="uint8")).status == 200
    assert (await client.post("/infer", bytes(101))).status == 413
    assert client.app.vitals()["held_bytes"] == 0


async def test_a_length_of_any_number_of_digits_is_understood() -> None:
    client = Client()
    headers, body = {"content-type": "application/json"}, orjson.dumps(ONE)
    padded = {**headers, "content-length": f"{len(body):020000}"}
    assert (await client.call("POST", "/infer", padded, [body])).status == 200
    endless = {**headers, "content-length": "9" * 20_000}
    assert (await client.call("POST", "/infer", endless, [body])).status == 413
    nothing = {**headers, "content-length": "0" * 20_000}
    assert (await client.call("POST", "/infer", nothing, [b""])).status == 400


async def test_the_memory_of_all_bodies_is_bounded() -> None:
    client = Client(FakePipeline(is_slow=True), GatewayOptions(max_body_bytes=1000, max_held_bytes=1000))
    headers = {"content_type": "application/octet-stream", "x_dtype": "uint8"}
    first = asyncio.create_task(client.post("/infer", bytes(800), **headers))
    await client.served.started.wait()
    reply = await client.post("/infer", bytes(300), **headers)
    assert (reply.status, reply.headers["retry-after"]) == (429, "1")
    assert client.app.vitals()["held_bytes"] == 800
    client.gone.set()
    assert (await first).status == 0
    assert client.app.vitals()["held_bytes"] == 0


async def test_a_body_that_stalls_is_answered_408() -> None:
    client = Client(options=GatewayOptions(body_timeout_s=0.02))
    headers = {"content-type": "application/json", "content-length": "1000000"}
    call = asyncio.create_task(client.call("POST", "/infer", headers, [b"{"], stalls=True))
    await client.answered.wait()
    client.gone.set()
    reply = await call
    assert (reply.status, reply.json()["error"]["type"]) == (408, "RequestTimeoutError")
    assert client.app.vitals()["held_bytes"] == 0


async def test_a_body_may_take_long_as_a_whole_only_so_long() -> None:
    client = Client(options=GatewayOptions(body_total_timeout_s=0.02))
    client.gone.set()  # the first piece, then nobody
    headers = {"content-type": "application/json", "content-length": "10"}
    reply = await client.call("POST", "/infer", headers, [b"{"], stalls=True)
    assert reply.status == 0
    assert client.app.vitals()["clients_gone"] == 1


async def test_a_client_that_goes_cancels_its_request() -> None:
    client = Client(FakePipeline(is_slow=True))
    call = asyncio.create_task(client.post_json("/infer", ONE))
    await client.served.started.wait()
    client.gone.set()
    assert (await call).status == 0
    assert client.served.num_cancelled == 1
    assert client.app.vitals() == {
        "connections": 0,
        "requests_open": 0,
        "held_bytes": 0,
        "clients_gone": 1,
        "stopping": False,
    }


async def test_what_is_interrupted_by_a_stop_is_answered_503() -> None:
    client = Client(FakePipeline(is_slow=True))
    call = asyncio.create_task(client.post_json("/infer", ONE))
    await client.served.started.wait()
    client.app.interrupt_all()
    reply = await call
    assert (reply.status, reply.json()["error"]["type"]) == (503, "StoppingError")
    assert client.served.num_cancelled == 1


async def test_cancelling_the_task_itself_is_not_swallowed() -> None:
    client = Client(FakePipeline(is_slow=True))
    call = asyncio.create_task(client.post_json("/infer", ONE))
    await client.served.started.wait()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert client.app.vitals()["requests_open"] == 0


async def test_nan_is_refused_when_the_policy_says_so() -> None:
    request = {"inputs": [1.0, "NaN"]}
    assert (await Client().post_json("/infer", request)).json()["outputs"] == [1.0, "NaN"]
    strict = Client(options=GatewayOptions(nan_policy="refuse"))
    assert (await strict.post_json("/infer", request)).status == 400
    nan = {"name": "x", "datatype": "FP32", "shape": [1], "data": ["NaN"]}
    assert (await strict.post_json("/v2/models/echo/infer", {"inputs": [nan]})).status == 400
    assert not strict.served.calls


async def test_a_stream_is_server_sent_events() -> None:
    served = StreamingPipeline()
    reply = await Client(served).post_json("/generate", ONE, idempotency_key="a")
    assert reply.headers["content-type"] == "text/event-stream"
    event = b'data: {"outputs":[1.0],"dtype":"float32","shape":[1]}\n\n'
    assert reply.body == event * 3 + b"event: done\ndata: {}\n\n"
    assert (served.num_closed, served.calls[0]["request_id"]) == (1, "a")


async def test_a_stream_is_told_which_trace_it_belongs_to() -> None:
    served = StreamingPipeline()
    await Client(served).post_json("/generate", ONE, traceparent="00-abc-def-01")
    assert "report" not in served.calls[0]
    served.reports = True
    await Client(served).post_json("/generate", ONE, traceparent="00-abc-def-01")
    assert served.calls[1]["report"].traceparent == "00-abc-def-01"


async def test_the_last_event_of_a_stream_tells_why_it_ended_and_the_head_of_a_whole_answer() -> None:
    class Generating(StreamingPipeline):
        async def infer(self, payload: Payload, **asked: Any) -> Payload:
            asked["report"].finish_reason = "length"
            return await super().infer(payload, **asked)

        async def stream(self, payload: Payload, **asked: Any) -> AsyncIterator[Payload]:
            async for part in super().stream(payload, **asked):
                yield part
            asked["report"].finish_reason, asked["report"].versions = "stop", {"embed": (1, 2)}

    client = Client(Generating(reports=True))
    reply = await client.post_json("/generate", ONE)
    assert reply.body.endswith(b'\n\nevent: done\ndata: {"weights":"embed=1+2","finish_reason":"stop"}\n\n')
    reply = await client.post_json("/infer", ONE)
    assert reply.headers["multiworld-finish-reason"] == "length"
    assert "multiworld-weights" not in reply.headers


async def test_a_stream_that_fails_says_so_in_its_status_or_in_its_last_event() -> None:
    error = errors.StageFailedError("head", "head-0", "ValueError")
    early = StreamingPipeline(error=error, parts=0)
    reply = await Client(early).post_json("/generate", ONE)
    assert (reply.status, early.num_closed) == (500, 1)
    late = StreamingPipeline(error=error, parts=1)
    reply = await Client(late).post_json("/generate", ONE)
    assert reply.status == 200
    last = reply.body.split(b"\n\n")[-2]
    assert last.startswith(b"event: error\n")
    assert b'"stage":"head"' in last
    empty = await Client(StreamingPipeline(parts=0)).post_json("/generate", ONE)
    assert empty.body == b"event: done\ndata: {}\n\n"


async def test_a_client_that_goes_ends_its_stream() -> None:
    served = StreamingPipeline(parts=1, stalls=True)
    client = Client(served)
    call = asyncio.create_task(
        client.call(
            "POST", "/generate", {"content-type": "application/json", "content-length": "16"}, [b'{"inputs":[1.0]}']
        )
    )
    await served.started.wait()
    client.gone.set()
    with pytest.raises(AssertionError):  # the body has no end
        await call
    assert (served.num_closed, client.app.vitals()["clients_gone"]) == (1, 1)


async def test_no_other_protocol_is_served() -> None:
    with pytest.raises(NotImplementedError):
        await Client().app({"type": "websocket"}, None, None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "wrong",
    [
        {"host": ""},
        {"port": 70000},
        {"port": True},
        {"max_body_bytes": 0},
        {"max_body_bytes": 10, "max_held_bytes": 9},
        {"nan_policy": "maybe"},
        {"body_timeout_s": 0},
        {"answer_total_timeout_s": -1.0},
        {"default_timeout_s": float("nan")},
        {"max_connections": 1.5},
        {"cors_origins": "https://app.example.org"},
        {"cors_origins": ["app.example.org"]},
        {"allowed_hosts": ["models.example.org:443"]},
    ],
)
def test_options_that_make_no_sense_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        GatewayOptions(**wrong)


async def test_an_error_of_any_text_can_be_answered() -> None:
    name = b"caf\xe9".decode(errors="surrogateescape")
    client = Client(FakePipeline(error=errors.StageFailedError("embed", "embed-1", f"ValueError: bad {name}")))
    reply = await client.post_json("/infer", ONE)
    assert reply.status == 500
    assert "bad caf\\udce9" in reply.json()["error"]["message"]


KSERVE_BODY = b'{"inputs":[{"name":"x","datatype":"FP32","shape":[1],"data":[1]}]}'


@pytest.mark.parametrize(
    ("method", "path"),
    [
        *(("GET", path) for path in ("/healthz", "/status", "/metrics", "/docs", "/v2", "/v2/models/echo", "/nowhere")),
        *(("POST", path) for path in ("/infer", "/generate", "/v2/models/echo/infer", "/mounted/x")),
    ],
)
async def test_pages_of_other_sites_get_nothing_of_any_path(method: str, path: str) -> None:
    client = Client(StreamingPipeline(), mounts={"/mounted": mounted_app})
    for headers in (
        {"host": "rebound.example.org"},
        {"host": "localhost:8000", "origin": "http://evil.example.org", "sec-fetch-site": "cross-site"},
        {"host": "localhost:8000", "sec-fetch-site": "cross-site"},
    ):
        reply = await client.call(method, path, headers, [KSERVE_BODY])
        assert reply.status == 403, headers
        assert not any(name.startswith("access-control") for name in reply.headers)
    assert client.served.calls == []
    assert "--allow-host" in reply.body.decode()


async def test_pages_of_an_allowed_site_ask_beforehand_and_read_the_answer() -> None:
    client = Client(options=GatewayOptions(cors_origins=("https://app.example.org",)), mounts={"/mounted": mounted_app})
    page = {"host": "localhost:8000", "origin": "https://app.example.org", "sec-fetch-site": "cross-site"}
    asked = {"access-control-request-method": "POST", "access-control-request-headers": "content-type"}
    for path in ("/infer", "/mounted/x"):
        before = await client.call("OPTIONS", path, {**page, **asked}, [b""])
        assert before.status == 200
        assert before.headers["access-control-allow-headers"] == "content-type"
        assert before.headers["access-control-allow-origin"] == "https://app.example.org"
    reply = await client.post("/infer", b'{"inputs":[1]}', **page)
    assert (reply.status, reply.headers["access-control-allow-origin"]) == (200, "https://app.example.org")
    assert (await client.post("/infer", b"{}", **page)).headers["access-control-allow-origin"], "errors, too"
    mounted = await client.call("GET", "/mounted/x", page, [b""])
    assert (mounted.status, mounted.headers["access-control-allow-origin"]) == (200, "https://app.example.org")
    other = {**page, "origin": "https://evil.example.org"}
    assert (await client.call("OPTIONS", "/infer", {**other, **asked}, [b""])).status == 403


async def test_an_answer_says_all_that_it_varies_by() -> None:
    page = {"origin": "https://app.example.org"}
    long = {"inputs": list(range(50_000))}
    client = Client(options=GatewayOptions(cors_origins=("https://app.example.org",)), mounts={"/mounted": mounted_app})
    for asked in (page, {}):
        reply = await client.post_json("/infer", long, accept_encoding="gzip", **asked)
        assert (reply.headers["content-encoding"], reply.headers["vary"]) == ("gzip", "accept-encoding, origin")
        assert (await client.get("/healthz", **asked)).headers["vary"] == "origin"
        assert (await client.get("/mounted/x", **asked)).headers["vary"] == "cookie, origin"
    refused = await client.get("/healthz", origin="https://evil.example.org")
    assert (refused.status, refused.headers["vary"]) == (403, "origin")
    assert "vary" not in (await Client().get("/healthz")).headers


async def mounted_app(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"Vary", b"cookie")]})
    await send({"type": "http.response.body", "body": b"mounted", "more_body": False})

"""KServe's protocol as stock clients use it: names, metadata, parameters, what is not served."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from multiworld.serving import Signature, TensorSpec
from multiworld.serving.gateway import GatewayOptions
from tests.unit.serving.gateway.client import Client, FakePipeline

INFER = "/v2/models/echo/infer"
PIXELS = Signature(
    inputs=(TensorSpec("pixels", "float32", (-1, 2)),), outputs=(TensorSpec("scores", "bfloat16", (-1,)),)
)


def tensor(name: str = "pixels", **more: Any) -> dict[str, Any]:
    return {"name": name, "datatype": "FP32", "shape": [1, 2], "data": [1.5, 2.5], **more}


async def payload_of(signature: Signature | None, *names: str, **more: Any) -> Any:
    client = Client(FakePipeline(signature=signature))
    reply = await client.post_json(INFER, {"inputs": [tensor(name) for name in names], **more})
    return client.served.calls[0]["payload"] if reply.status == 200 else reply.json()["error"]


async def test_one_input_keeps_its_name_where_the_model_takes_names() -> None:
    assert list(await payload_of(PIXELS, "pixels")) == ["pixels"]
    assert list(await payload_of(Signature(takes="dict"), "any")) == ["any"]
    for signature in (None, Signature(takes="tensor"), Signature.of(torch.ones(1, 2))):
        assert (await payload_of(signature, "whatever")).tolist() == [[1.5, 2.5]]
    assert len(await payload_of(Signature(takes="list"), "b", "a")) == 2
    asked = {"parameters": {"payload": "tensor"}}
    assert (await payload_of(PIXELS, "pixels", **asked)).tolist() == [[1.5, 2.5]]


async def test_the_inputs_of_a_list_come_in_the_order_of_the_model() -> None:
    both = Signature.of([torch.ones(1, 2), torch.ones(1, 2)])
    client = Client(FakePipeline(signature=both))
    inputs = [tensor("input-1", data=[3, 4]), tensor("input-0", data=[1, 2])]
    assert (await client.post_json(INFER, {"inputs": inputs})).status == 200
    assert [each.tolist() for each in client.served.calls[0]["payload"]] == [[[1.0, 2.0]], [[3.0, 4.0]]]


async def test_inputs_that_the_model_has_not_are_refused_by_name() -> None:
    assert await payload_of(PIXELS, "pixel") == "there is no input 'pixel'; the model takes pixels"
    two = Signature(inputs=(TensorSpec("a", "float32", (-1,)), TensorSpec("b", "float32", (-1,))))
    assert await payload_of(two, "a") == "input 'b' is missing; the model takes a, b"
    assert "takes one input, and the request has 2: a, b" in await payload_of(Signature(takes="tensor"), "a", "b")


async def test_an_optional_input_may_be_left_out() -> None:
    a, b = TensorSpec("a", "float32", (-1, 2)), TensorSpec("b", "float32", (-1, 2), optional=True)
    named = Signature(inputs=(a, b))
    assert list(await payload_of(named, "a")) == ["a"]
    assert list(await payload_of(named, "b", "a")) == ["a", "b"]
    assert await payload_of(named, "b") == "input 'a' is missing; the model takes a and maybe b"
    assert await payload_of(named, "a", "c") == "there is no input 'c'; the model takes a and maybe b"
    assert list(await payload_of(Signature(inputs=(a, b), is_open=True), "c", "a")) == ["a", "c"]
    c = TensorSpec("c", "float32", (-1, 2), optional=True)
    listed = Signature(inputs=(a, b, c), takes="list")
    assert len(await payload_of(listed, "b", "a")) == 2
    assert await payload_of(listed, "a", "c") == "input 'b' is missing; the model takes a and maybe b, c"


async def test_metadata_lists_what_the_signature_tells() -> None:
    told = (await Client(FakePipeline(signature=PIXELS)).get("/v2/models/echo")).json()
    assert told["inputs"] == [{"name": "pixels", "datatype": "FP32", "shape": [-1, 2]}]
    assert told["outputs"] == [{"name": "scores", "datatype": "BF16", "shape": [-1]}]
    for unknown in (None, Signature.of(torch.ones(1, dtype=torch.complex64))):
        told = (await Client(FakePipeline(signature=unknown)).get("/v2/models/echo")).json()
        assert (told["inputs"], told["outputs"]) == ([], [])


async def test_an_output_is_called_as_the_metadata_says() -> None:
    client = Client(FakePipeline(signature=PIXELS))
    for more in ({}, {"outputs": [{"name": "scores"}]}):
        served = {"payload": "tensor"}
        reply = await client.post_json(INFER, {"inputs": [tensor()], "parameters": served, **more})
        assert [output["name"] for output in reply.json()["outputs"]] == ["scores"]


@pytest.mark.parametrize(
    ("asked", "limit_s"),
    [
        ({"parameters": {"timeout": 1_500_000}}, 1.5),
        ({"parameters": {"timeout": 3_000_000}}, 2.0),
        ({"parameters": {"timeout": 0}}, 2.0),
        ({"parameters": {"timeout": None}}, 2.0),
        ({}, 2.0),
    ],
)
async def test_a_time_limit_in_microseconds_holds_if_it_is_the_shortest(asked: dict[str, Any], limit_s: float) -> None:
    client = Client(options=GatewayOptions(default_timeout_s=2.0))
    assert (await client.post_json(INFER, {"inputs": [tensor()], **asked})).status == 200
    assert client.served.calls[0]["timeout_s"] == limit_s


@pytest.mark.parametrize("level", ["request", "input", "output"])
@pytest.mark.parametrize(
    "name",
    [
        *("priority", "sequence_id", "sequence_start", "sequence_end", "classification", "anything"),
        *("shared_memory_region", "shared_memory_offset", "shared_memory_byte_size"),
    ],
)
async def test_parameters_that_are_not_served_are_refused_by_name(level: str, name: str) -> None:
    given: dict[str, Any] = {"parameters": {name: 2}}
    request: dict[str, Any] = {"inputs": [tensor(**(given if level == "input" else {}))]}
    request["outputs"] = [{"name": "output", **(given if level == "output" else {})}]
    client = Client()
    reply = await client.post_json(INFER, {**request, **(given if level == "request" else {})})
    assert reply.status == 400
    assert f"parameters.{name} is not served" in reply.json()["error"]
    assert not client.served.calls


@pytest.mark.parametrize(
    ("request_", "said"),
    [
        ({"parameters": {"timeout": -1}}, "parameters.timeout"),
        ({"parameters": {"timeout": "1s"}}, "parameters.timeout"),
        ({"parameters": {"timeout": True}}, "parameters.timeout"),
        ({"parameters": {"timeout": [1]}}, "parameters.timeout"),
        ({"parameters": {"binary_data_output": 1}}, "parameters.binary_data_output"),
        ({"parameters": {"sequence_id": {}}}, "parameters.sequence_id"),
        ({"outputs": [{"name": "output", "parameters": {"binary_data": "yes"}}]}, "parameters.binary_data"),
        ({"inputs": [tensor(parameters={"content_type": "str"})]}, "content_type"),
        ({"inputs": [tensor(parameters={"binary_data_size": 8})]}, "both data and"),
    ],
)
async def test_parameters_that_make_no_sense_are_refused(request_: dict[str, Any], said: str) -> None:
    reply = await Client().post_json(INFER, {"inputs": [tensor()], **request_})
    assert reply.status == 400
    assert said in reply.json()["error"]


async def test_a_whole_request_may_say_that_it_is_numpys_as_mlservers_codecs_do() -> None:
    reply = await Client().post_json(INFER, {"inputs": [tensor()], "parameters": {"content_type": "np"}})
    assert reply.status == 200, reply.json()
    reply = await Client().post_json(INFER, {"inputs": [tensor()], "parameters": {"content_type": "pd"}})
    assert (reply.status, "'pd' is not served; 'np' is" in reply.json()["error"]) == (400, True)


async def test_parameters_that_ask_for_nothing_are_taken() -> None:
    nothing = {"priority": 0, "sequence_id": 0, "sequence_start": False, "sequence_end": False, "timeout": 0}
    inputs = [tensor(parameters={"content_type": "np"})]
    outputs = [{"name": "output", "parameters": {"classification": 0, "binary_data": False}}]
    reply = await Client().post_json(INFER, {"inputs": inputs, "outputs": outputs, "parameters": nothing})
    assert reply.status == 200


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v2/models/stats"),
        ("GET", "/v2/models/stats/"),
        ("GET", "/v2/models/echo/stats"),
        ("GET", "/v2/models/echo/versions/1/stats"),
        ("GET", "/v2/models/echo/trace/setting"),
        ("POST", "/v2/trace/setting"),
        ("GET", "/v2/logging"),
        ("POST", "/v2/repository/models/echo/load"),
        ("GET", "/v2/systemsharedmemory/status"),
        ("POST", "/v2/cudasharedmemory/region/x/register"),
        ("POST", "/v2/models/echo/generate"),
    ],
)
async def test_extensions_that_are_not_served_say_so(method: str, path: str) -> None:
    reply = await Client().get(path, method)
    assert reply.status == 501
    assert "extension" in reply.json()["error"]


async def test_a_model_may_be_called_as_an_extension() -> None:
    client = Client(FakePipeline(name="stats"))
    assert (await client.get("/v2/models/stats")).json()["name"] == "stats"
    assert (await client.get("/v2/models/stats/stats")).status == 501


async def test_the_index_of_models_has_the_one_that_there_is() -> None:
    client = Client()
    index = "/v2/repository/index"
    assert (await client.post_json(index, {})).json() == [
        {"name": "echo", "version": "1", "state": "READY", "reason": ""}
    ]
    client.served.unready = "no replica"
    assert (await client.post_json(index, {"ready": False})).json()[0]["reason"] == "no replica"


async def test_a_body_without_a_content_type_is_json() -> None:
    client = Client()
    for path in (INFER, "/infer"):
        body = b'{"inputs": [{"name": "x", "datatype": "FP32", "shape": [1], "data": [1]}]}'
        body = body if path == INFER else b'{"inputs": [1]}'
        length = {"content-length": str(len(body))}
        for headers in (length, {"content-type": "", **length}):
            assert (await client.call("POST", path, headers, [body])).status == 200
        across = {"origin": "https://elsewhere.example", **length}
        assert (await client.call("POST", path, across, [body])).status == 403

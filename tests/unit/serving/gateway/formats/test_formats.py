"""Payloads through every format of a body, and what is no payload."""

from __future__ import annotations

import asyncio
import functools
import io
import math
import time
import tracemalloc
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import numpy as np
import orjson
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load as load_safetensors
from torch import Tensor

from multiworld.serving.gateway.error_body import HttpError
from multiworld.serving.gateway.formats import json_reading
from multiworld.serving.gateway.formats import kserve as kserve_module
from multiworld.serving.gateway.formats import registry as formats
from multiworld.serving.gateway.formats.dtypes import DTYPES, KSERVE, dtype_name, kserve_name
from multiworld.serving.gateway.formats.elements import MAX_TENSORS, Buffer, as_bytes, check_finite, from_bytes
from multiworld.serving.gateway.formats.json_reading import Numbers, load
from multiworld.serving.gateway.formats.json_writing import TensorWriter
from multiworld.serving.gateway.formats.kserve import HEADER_LENGTH, Question
from multiworld.serving.gateway.formats.raw_format import SHAPE
from multiworld.serving.gateway.formats.registry import FORMATS, Encoded, Format, accepted_format, sent_format
from multiworld.serving.gateway.formats.safetensors_format import MAX_HEADER_BYTES
from multiworld.serving.gateway.http.budget import APART_BYTES, Budget, HeldBytes, Turns
from multiworld.serving.gateway.served import Payload

T = TypeVar("T")
JSON, NPY, SAFE, RAW = FORMATS
MAX_JSON_BYTES = 1 << 20
REAL = [dtype for dtype in DTYPES.values() if not dtype.is_complex]
NOT_IN_NUMPY = (torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2)


@st.composite
def tensors(draw: st.DrawFn, dtypes: list[torch.dtype]) -> Tensor:
    """Any bits, as any type: NaN with payloads, infinities, denormals, negative zeros."""
    dtype = draw(st.sampled_from(dtypes))
    shape = tuple(draw(st.lists(st.integers(0, 4), max_size=4)))
    size = math.prod(shape) * dtype.itemsize
    return from_bytes(bytearray(draw(st.binary(min_size=size, max_size=size))), dtype, shape)


def run(work: Coroutine[Any, Any, T]) -> T:
    """Return what a coroutine does that waits for nothing but its turn, without the cost of a loop."""
    while True:
        try:
            work.send(None)
        except StopIteration as done:
            value: T = done.value
            return value


def some_budget(max_bytes: int = 1 << 30) -> Budget:
    return Budget(HeldBytes(max_bytes), Turns())


def decode(form: Format, body: bytearray, headers: dict[str, str]) -> Payload:
    drive = run if len(body) <= APART_BYTES else asyncio.run  # what is large may go to a thread
    return drive(formats.decode(form, body, headers, some_budget(), check=lambda _: None))


def encode(form: Format, payload: Payload, max_bytes: int = 1 << 20) -> Encoded:
    budget = some_budget()
    return run(formats.encode(form, payload, TensorWriter(budget, max_bytes), budget))


def parse_question(body: bytearray, headers: dict[str, str], *, max_json_bytes: int) -> Question:
    return run(kserve_module.parse_question(body, headers, max_json_bytes=max_json_bytes, budget=some_budget()))


def answer_question(question: Question, payload: Payload, *, model: str, version: str) -> tuple[list[Buffer], int]:
    budget = some_budget()
    writer = TensorWriter(budget, 1 << 20)
    return run(kserve_module.answer_question(question, payload, writer, budget, model=model, version=version))


def joined(encoded: Encoded) -> tuple[bytearray, dict[str, str]]:
    return bytearray(b"".join(bytes(piece) for piece in encoded[0])), encoded[1]


def there_and_back(form: Format, payload: Payload) -> Payload:
    return decode(form, *joined(encode(form, payload)))


def status_of(parse: Callable[[], object]) -> int:
    try:
        parse()
    except HttpError as refusal:
        return refusal.status
    return 200


def is_same(one: Payload, other: Payload) -> bool:
    if isinstance(one, Tensor) or isinstance(other, Tensor):
        if not (isinstance(one, Tensor) and isinstance(other, Tensor)):
            return False
        same_bits = bytes(as_bytes(one)) == bytes(as_bytes(other))
        return one.dtype == other.dtype and one.shape == other.shape and same_bits
    if isinstance(one, dict) or isinstance(other, dict):
        if not (isinstance(one, dict) and isinstance(other, dict)):
            return False
        return one.keys() == other.keys() and all(is_same(one[name], other[name]) for name in one)
    return len(one) == len(other) and all(map(is_same, one, other))


@given(tensors(list(DTYPES.values())))
def test_raw_bodies_keep_every_bit(tensor: Tensor) -> None:
    assert is_same(there_and_back(RAW, tensor), tensor)


@given(tensors([dtype for dtype in DTYPES.values() if dtype not in NOT_IN_NUMPY]))
def test_npy_keeps_every_bit(tensor: Tensor) -> None:
    body, _ = joined(encode(NPY, tensor))
    read = np.load(io.BytesIO(body), allow_pickle=False)
    assert read.tobytes() == bytes(as_bytes(tensor))
    assert is_same(decode(NPY, body, {}), tensor)


@given(st.data())
def test_safetensors_keeps_every_bit_of_every_payload(data: st.DataObject) -> None:
    known = tensors([dtype for dtype in DTYPES.values() if dtype != torch.complex128])
    names = st.text(min_size=1, max_size=8).filter(lambda name: name != "__metadata__" and name.isprintable())
    payload = data.draw(
        known | st.lists(known, min_size=1, max_size=3) | st.dictionaries(names, known, min_size=1, max_size=3)
    )
    assert is_same(there_and_back(SAFE, payload), payload)


@given(tensors(REAL))
def test_json_keeps_every_number(tensor: Tensor) -> None:
    if tensor.is_floating_point():
        wide = tensor.double() if tensor.dtype.itemsize > 1 else tensor.float().double()
        tensor = torch.where(wide.isnan(), torch.full_like(wide, math.nan), wide).to(tensor.dtype)  # one NaN of many
    body, _ = joined(encode(JSON, tensor))
    answer = orjson.loads(body)
    assert answer["shape"] == list(tensor.shape)
    again = orjson.dumps({"inputs": {"data": answer["outputs"], "dtype": answer["dtype"], "shape": answer["shape"]}})
    result = decode(JSON, bytearray(again), {})
    assert isinstance(result, Tensor)
    assert result.dtype == tensor.dtype
    assert result.shape == tensor.shape
    if tensor.is_floating_point():
        compared = (result.float(), tensor.float()) if tensor.dtype.itemsize == 1 else (result, tensor)
        assert torch.equal(compared[0].isnan(), compared[1].isnan())
        assert torch.equal(compared[0].nan_to_num(0.0), compared[1].nan_to_num(0.0))
        assert torch.equal(compared[0].signbit() & ~compared[0].isnan(), compared[1].signbit() & ~compared[1].isnan())
    else:
        assert is_same(result, tensor)


@given(tensors(list(KSERVE.values())), st.booleans())
def test_kserve_keeps_every_bit_in_binary_and_every_number_in_json(tensor: Tensor, is_binary: bool) -> None:
    if not is_binary and tensor.is_floating_point():
        tensor = tensor.nan_to_num(0.0)
    question = Question(tensor, "7", None, is_binary)
    pieces, length = answer_question(question, tensor, model="m", version="1")
    body = bytearray(b"".join(bytes(piece) for piece in pieces))
    answer = orjson.loads(body[: length or len(body)])
    assert (answer["id"], answer["model_name"]) == ("7", "m")
    assert answer["outputs"][0]["datatype"] == kserve_name(tensor.dtype)
    header = orjson.dumps({"inputs": answer["outputs"]})
    again = parse_question(
        bytearray(header) + body[length:] if length else bytearray(header),
        {HEADER_LENGTH: str(len(header))},
        max_json_bytes=MAX_JSON_BYTES,
    )
    assert is_same(again.payload, tensor)


@given(st.sampled_from(FORMATS), st.binary(max_size=200), st.sampled_from([b"", b"\x93NUMPY\x01\x00", b'{"inputs":']))
def test_garbage_is_refused_or_read_but_never_an_error_of_ours(form: Format, body: bytes, start: bytes) -> None:
    headers = {"x-dtype": "uint8"}
    assert status_of(lambda: decode(form, bytearray(start + body), headers)) in (200, 400, 406)


@given(st.binary(max_size=300), st.integers(0, 300))
def test_a_damaged_npy_or_safetensors_is_refused_or_read(noise: bytes, at: int) -> None:
    for form in (NPY, SAFE):
        body, _ = joined(encode(form, torch.arange(12.0).reshape(3, 4)))
        body[at : at + len(noise)] = noise
        assert status_of(functools.partial(decode, form, body, {})) in (200, 400)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.sampled_from(["NaN", "x", ""]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["data", "dtype", "shape", "name", "datatype", "a"]), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(json_values, json_values, json_values)
def test_any_json_is_refused_or_read(inputs: Any, dtype: Any, shape: Any) -> None:
    request = orjson.dumps({"inputs": inputs, "dtype": dtype, "shape": shape})
    assert status_of(lambda: decode(JSON, bytearray(request), {})) in (200, 400)
    assert status_of(lambda: parse_question(bytearray(request), {}, max_json_bytes=MAX_JSON_BYTES)) in (200, 400)


def test_words_among_numbers_take_no_more_memory_than_numbers() -> None:
    data = ["x" * 5000, *[1] * 100_000]  # numpy would give each element as much room as the longest word
    body = bytearray(orjson.dumps({"inputs": data}))
    tracemalloc.start()
    try:
        assert status_of(lambda: decode(JSON, body, {})) == 400
        question = bytearray(orjson.dumps({"inputs": [{"name": "x", "datatype": "FP32", "shape": [3], "data": data}]}))
        assert status_of(lambda: parse_question(question, {}, max_json_bytes=4 << 20)) == 400
        assert tracemalloc.get_traced_memory()[1] < 50 << 20
    finally:
        tracemalloc.stop()


def many_tensors(kind: str, number: int) -> bytearray:
    one = {"datatype": "FP32", "shape": [1], "data": [1]} if kind == "kserve" else {"data": 1}
    if kind == "kserve":
        return bytearray(orjson.dumps({"inputs": [{"name": str(index), **one} for index in range(number)]}))
    return bytearray(
        orjson.dumps({"inputs": [one] * number if kind == "list" else {str(index): one for index in range(number)}})
    )


def read(kind: str, body: bytearray) -> object:
    return parse_question(body, {}, max_json_bytes=MAX_JSON_BYTES) if kind == "kserve" else decode(JSON, body, {})


@pytest.mark.parametrize("kind", ["list", "dict", "kserve"])
def test_a_body_may_have_only_so_many_tensors(kind: str) -> None:
    assert status_of(functools.partial(read, kind, many_tensors(kind, MAX_TENSORS))) == 200
    assert status_of(functools.partial(read, kind, many_tensors(kind, MAX_TENSORS + 1))) == 413


def test_the_json_part_of_a_binary_body_is_bounded_as_json_is() -> None:
    request = orjson.dumps({"inputs": [{"name": "x", "datatype": "FP32", "shape": [9], "data": [1.5] * 9}]})
    headers = {HEADER_LENGTH: str(len(request))}
    assert status_of(lambda: parse_question(bytearray(request), headers, max_json_bytes=len(request))) == 200
    assert status_of(lambda: parse_question(bytearray(request), headers, max_json_bytes=len(request) - 1)) == 413


def test_a_safetensors_header_is_bounded() -> None:
    body, headers = joined(encode(SAFE, torch.ones(3)))
    header, data = body[8:-12], body[-12:]

    def padded(length: int) -> bytearray:  # as the format allows
        return bytearray(length.to_bytes(8, "little") + header + b" " * (length - len(header)) + data)

    assert status_of(lambda: decode(SAFE, padded(MAX_HEADER_BYTES), headers)) == 200
    assert status_of(lambda: decode(SAFE, padded(MAX_HEADER_BYTES + 8), headers)) == 413


def read_json(text: str) -> Payload:
    return decode(JSON, bytearray(text.encode()), {})


def refusal_of_json(text: str) -> str:
    with pytest.raises(HttpError) as caught:
        read_json(text)
    assert caught.value.status == 400
    return caught.value.message


def test_json_takes_a_tensor_a_dict_and_a_list() -> None:
    tensor = read_json('{"inputs": [[1.5, 2], [3, 4]]}')
    assert isinstance(tensor, Tensor)
    assert (tensor.dtype, tensor.tolist()) == (torch.float32, [[1.5, 2.0], [3.0, 4.0]])
    named = read_json('{"inputs": {"x": [1, 2], "y": {"data": [1, 0], "dtype": "int8"}}, "dtype": {"x": "bfloat16"}}')
    assert isinstance(named, dict)
    assert [tensor.dtype for tensor in named.values()] == [torch.bfloat16, torch.int8]
    listed = read_json('{"inputs": [{"data": 3}, {"data": [true], "shape": [1, 1]}]}')
    assert isinstance(listed, list)
    assert [(each.dtype, tuple(each.shape)) for each in listed] == [(torch.int64, ()), (torch.bool, (1, 1))]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "not JSON"),
        ("[1]", "JSON object"),
        ("{}", '"inputs"'),
        ('{"inputs": [[1], [2, 3]]}', "ragged"),
        ('{"inputs": [1, [2]]}', "ragged"),
        ('{"inputs": [1, "two"]}', "number"),
        ('{"inputs": [null]}', "numbers"),
        ('{"inputs": [1.5], "dtype": "int32"}', "fractions"),
        ('{"inputs": [-1], "dtype": "uint8"}', "beyond"),
        ('{"inputs": [300], "dtype": "uint8"}', "beyond"),
        ('{"inputs": [2], "dtype": "bool"}', "true and false"),
        ('{"inputs": [1e39], "dtype": "float32"}', "large"),
        ('{"inputs": [1], "dtype": "float31"}', "unknown dtype"),
        ('{"inputs": [1], "dtype": "complex64"}', "safetensors"),
        ('{"inputs": [1, 2, 3], "shape": [2, 2]}', "shape"),
        ('{"inputs": [[1, 2], [3, 4]], "shape": [4]}', "shape"),
        ('{"inputs": [1], "shape": [-1]}', "dimensions"),
        ('{"inputs": [], "shape": [0, 999999999999, 9999999]}', "too large"),
        ('{"inputs": [1], "input": [2]}', "unknown keys"),
        ('{"inputs": {}}', "empty"),
        ('{"inputs": {"x": {"dtype": "int8"}}}', "must have data"),
        ('{"inputs": NaN}', "not JSON"),
        ('{"inputs": ' + "[" * 900 + "]" * 900 + "}", "deep"),
        ('{"inputs": ' + "[" * 90000 + "}", "deep"),
    ],
)
def test_json_that_is_no_payload_says_why(text: str, said: str) -> None:
    assert said in refusal_of_json(text)


def test_words_stand_for_what_json_has_no_numbers_for() -> None:
    tensor = read_json('{"inputs": ["NaN", "Infinity", "-Infinity", 1]}')
    assert isinstance(tensor, Tensor)
    assert tensor[0].isnan()
    assert tensor[1:].tolist() == [math.inf, -math.inf, 1.0]
    assert orjson.loads(joined(encode(JSON, tensor))[0])["outputs"] == ["NaN", "Infinity", "-Infinity", 1.0]
    for payload in (tensor, [tensor], {"x": tensor}):
        with pytest.raises(HttpError, match="NaN or infinite"):
            check_finite(payload)
    check_finite([torch.ones(2), torch.tensor([1]), torch.ones(1, dtype=torch.float8_e5m2)])
    check_finite(torch.tensor([1e300], dtype=torch.float64))


def test_json_writes_the_fewest_digits() -> None:
    body, _ = joined(encode(JSON, torch.tensor([0.1, 1 / 3], dtype=torch.float32)))
    assert b"[0.1,0.33333334]" in body


def test_npy_reads_other_orders_and_no_objects() -> None:
    for array in (np.asfortranarray(np.arange(6.0).reshape(2, 3)), np.arange(3, dtype=">i4"), np.array(True)):
        stream = io.BytesIO()
        np.save(stream, array)
        tensor = decode(NPY, bytearray(stream.getvalue()), {})
        assert isinstance(tensor, Tensor)
        assert tensor.tolist() == array.tolist()
        assert tensor.is_contiguous()
    stream = io.BytesIO()
    np.save(stream, np.array([{}], dtype=object), allow_pickle=True)
    with pytest.raises(HttpError, match="unpickled"):
        decode(NPY, bytearray(stream.getvalue()), {})
    stream = io.BytesIO()
    np.save(stream, np.array(["text"]))
    with pytest.raises(HttpError, match="no tensor has"):
        decode(NPY, bytearray(stream.getvalue()), {})


@pytest.mark.parametrize("form", [NPY, RAW])
def test_an_answer_that_a_format_cannot_hold_names_another(form: Format) -> None:
    with pytest.raises(HttpError, match="safetensors") as caught:
        encode(form, [torch.ones(1), torch.ones(1)])
    assert caught.value.status == 406
    assert len(encode(form, {"only": torch.ones(1)})[0]) >= 1


def test_npy_has_no_bfloat16() -> None:
    with pytest.raises(HttpError, match="bfloat16"):
        encode(NPY, torch.ones(1, dtype=torch.bfloat16))


@pytest.mark.parametrize(
    ("body", "headers", "said"),
    [
        (b"1234", {}, "X-Dtype"),
        (b"1234", {"x-dtype": "float99"}, "unknown dtype"),
        (b"12345", {"x-dtype": "float32"}, "not 5"),
        (b"1234", {"x-dtype": "float32", "x-shape": "2"}, "8 bytes"),
        (b"1234", {"x-dtype": "uint8", "x-shape": "-4"}, "X-Shape"),
        (b"1234", {"x-dtype": "uint8", "x-shape": "4;1"}, "X-Shape"),
    ],
)
def test_raw_bodies_that_do_not_fit_their_head_say_why(body: bytes, headers: dict[str, str], said: str) -> None:
    with pytest.raises(HttpError, match=said):
        decode(RAW, bytearray(body), headers)


@pytest.mark.parametrize("text", ["6", " 2,3 ", "[2, 3]", "( 2 ,3 , )", "[ 6 ]", "2,3", "(6,)"])
def test_a_shape_may_be_written_as_python_writes_it(text: str) -> None:
    tensor = decode(RAW, bytearray(6), {"x-dtype": "uint8", "x-shape": text})
    assert isinstance(tensor, Tensor)
    assert tensor.numel() == 6


@pytest.mark.parametrize("text", ["", "()", "[]", "( )", "[  "])
def test_an_empty_shape_is_that_of_a_scalar(text: str) -> None:
    tensor = decode(RAW, bytearray(1), {"x-dtype": "uint8", "x-shape": text})
    assert isinstance(tensor, Tensor)
    assert tensor.shape == ()


@pytest.mark.parametrize("text", ["[{}x", "1{}x", "1,{}x", "1{},{}x", "[1{},{}1{},{}x"])
def test_blanks_in_a_shape_take_no_more_time_than_other_characters(text: str) -> None:
    began = time.process_time()
    assert SHAPE.fullmatch(text.replace("{}", " " * 3000)) is None  # tried in all ways, it takes a minute and more
    assert time.process_time() - began < 5


def test_a_shape_that_is_longer_than_any_is_not_searched() -> None:
    with pytest.raises(HttpError, match="X-Shape"):
        decode(RAW, bytearray(1), {"x-dtype": "uint8", "x-shape": "[" + " " * 2000 + "1]"})


def test_safetensors_payloads_are_told_by_metadata_and_names() -> None:
    from safetensors.torch import save

    one = torch.ones(2)
    assert isinstance(decode(SAFE, bytearray(save({"input": one})), {}), Tensor)
    assert isinstance(decode(SAFE, bytearray(save({"x": one})), {}), dict)
    assert isinstance(decode(SAFE, bytearray(save({"0": one}, {"payload": "list"})), {}), list)
    for wrong in ({"payload": "set"}, {"payload": "list"}):
        with pytest.raises(HttpError, match="metadata"):
            decode(SAFE, bytearray(save({"x": one}, wrong)), {})
    with pytest.raises(HttpError, match="no tensors"):
        decode(SAFE, bytearray(save({})), {})


def test_answers_are_contiguous_and_apart_whatever_the_pipeline_returns() -> None:
    base = torch.arange(6.0).reshape(2, 3)
    payload = {"a": base, "b": base.t(), "c": base[0], "d": base.requires_grad_()}
    read = there_and_back(SAFE, payload)
    assert isinstance(read, dict)
    assert all(torch.equal(read[name], tensor) for name, tensor in payload.items())


@pytest.mark.parametrize(
    ("accept", "expected"),
    [
        ("", RAW),
        ("*/*", RAW),
        ("application/x-npy", NPY),
        ("text/html, application/json;q=0.5, application/npy", NPY),
        ("application/json;q=0.1, application/safetensors; q=0.9", SAFE),
        ("text/html, */*;q=0.1", RAW),
    ],
)
def test_the_answer_has_the_format_that_is_accepted(accept: str, expected: Format) -> None:
    assert accepted_format({"accept": accept}, RAW) is expected


def test_what_is_not_spoken_is_refused() -> None:
    for accept in ("text/html", "application/json;q=0", "application/json;q=no"):
        with pytest.raises(HttpError) as caught:
            accepted_format({"accept": accept}, JSON)
        assert caught.value.status == 406
    for name in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"):
        with pytest.raises(HttpError) as caught:
            sent_format({"content-type": name})
        assert caught.value.status == 415
    assert sent_format({}) is sent_format({"content-type": " "}) is JSON
    assert sent_format({"content-type": "Application/JSON; charset=utf-8"}) is JSON


def kserve(request: dict[str, Any], tail: bytes = b"", headers: dict[str, str] | None = None) -> Question:
    header = orjson.dumps(request)
    return parse_question(
        bytearray(header + tail),
        {HEADER_LENGTH: str(len(header)), **(headers or {})},
        max_json_bytes=MAX_JSON_BYTES,
    )


def binary(name: str, shape: list[int], size: Any = None) -> dict[str, Any]:
    return {"name": name, "datatype": "FP32", "shape": shape, "parameters": {"binary_data_size": size}}


def test_kserve_mixes_binary_and_json_inputs_at_any_offset() -> None:
    flat = {"name": "y", "datatype": "INT8", "shape": [2, 1], "data": [1, 2]}
    bits = {"name": "z", "datatype": "UINT8", "shape": [1], "parameters": {"binary_data_size": 1}}
    tail = b"\x07" + np.arange(2, dtype=np.float32).tobytes()
    question = kserve({"id": "a", "inputs": [bits, flat, binary("x", [2], 8)]}, tail)
    assert isinstance(question.payload, dict)
    assert {name: tensor.tolist() for name, tensor in question.payload.items()} == {
        "z": [7],
        "y": [[1], [2]],
        "x": [0.0, 1.0],
    }
    listed = kserve({"inputs": [bits], "parameters": {"payload": "list"}}, b"\x01").payload
    assert isinstance(listed, list)


@pytest.mark.parametrize(
    ("request_", "tail", "said"),
    [
        ({}, b"", "inputs"),
        ({"inputs": [{"datatype": "FP32", "shape": [0], "data": []}]}, b"", "name"),
        ({"inputs": [binary("x", [1], 4), binary("x", [1], 4)]}, bytes(8), "name"),
        ({"inputs": [binary("x", [1], 4)]}, b"", "0 bytes are left"),
        ({"inputs": [binary("x", [1], 8)]}, bytes(8), "is 4 bytes"),
        ({"inputs": [binary("x", [1], 4)]}, bytes(5), "1 bytes longer"),
        ({"inputs": [{"name": "x", "datatype": "BYTES", "shape": [1], "data": ["a"]}]}, b"", "BYTES"),
        ({"inputs": [{"name": "x", "datatype": "FP9", "shape": [1], "data": [1]}]}, b"", "datatype"),
        ({"inputs": [{"name": "x", "datatype": "FP32", "data": [1]}]}, b"", "shape"),
        ({"inputs": [{"name": "x", "datatype": "FP32", "shape": [1]}]}, b"", "neither"),
        ({"inputs": [binary("x", [1], 4)], "parameters": {"payload": "bag"}}, bytes(4), "payload"),
        ({"inputs": [binary("x", [1], 4)], "parameters": 3}, bytes(4), "parameters"),
        ({"inputs": [binary("x", [1], 4)], "id": 3}, bytes(4), "id"),
        ({"inputs": [binary("x", [1], 4)], "outputs": [{}]}, bytes(4), "outputs"),
    ],
)
def test_kserve_requests_that_make_no_sense_say_why(request_: dict[str, Any], tail: bytes, said: str) -> None:
    with pytest.raises(HttpError, match=said) as caught:
        kserve(request_, tail)
    assert caught.value.status == 400


@pytest.mark.parametrize("length", ["0", "-1", "9999", "x", "٣", ""])
def test_a_kserve_header_length_that_lies_is_refused(length: str) -> None:
    with pytest.raises(HttpError, match="Content-Length"):
        kserve({"inputs": [binary("x", [1], 4)]}, bytes(4), {HEADER_LENGTH: length})


def test_kserve_gives_the_outputs_that_were_asked_for() -> None:
    payload = {"a": torch.ones(1), "b": torch.zeros(1)}
    question = Question(payload, None, {"b": True}, False)
    pieces, length = answer_question(question, payload, model="m", version="1")
    [output] = orjson.loads(bytes(pieces[0]))["outputs"]
    assert (output["name"], output["parameters"], length) == ("b", {"binary_data_size": 4}, len(pieces[0]))
    with pytest.raises(HttpError, match="no output 'c'"):
        answer_question(Question(payload, None, {"c": False}, False), payload, model="m", version="1")
    only, _ = answer_question(Question(payload, None, {"c": False}, False), payload["a"], model="m", version="1")
    assert orjson.loads(bytes(only[0]))["outputs"][0]["name"] == "c"


def test_types_without_a_name_are_refused_not_guessed() -> None:
    with pytest.raises(HttpError):
        dtype_name(torch.complex32)
    with pytest.raises(HttpError):
        kserve_name(torch.complex64)


# ---- large bodies and answers, slice by slice


@pytest.fixture
def tiny_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("SMALL_BYTES", 0), ("SLICE_BYTES", 48), ("SCAN_BYTES", 16), ("MAX_KEPT", 0)):
        monkeypatch.setattr(json_reading, name, value)


numbers = st.integers(-(2**63), 2**64 - 1) | st.floats() | st.booleans() | st.sampled_from(["NaN", "-Infinity"])
nested = st.recursive(
    st.lists(numbers, max_size=5), lambda inner: st.lists(inner, max_size=4) | inner.map(lambda x: [x, x]), max_leaves=8
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.dictionaries(st.sampled_from(["inputs", 'a"[{', "x\\"]), nested | numbers | st.text(), max_size=3), st.data())
def test_a_body_in_slices_means_what_it_means_at_once(
    tiny_slices: None, request_: dict[str, Any], data: st.DataObject
) -> None:
    indent = data.draw(st.sampled_from([0, orjson.OPT_INDENT_2]))
    body = bytearray(orjson.dumps(request_, option=indent))
    for name, expected in orjson.loads(body).items():
        try:
            array, has_words = json_reading.as_array(expected, "x")
        except HttpError:
            array = None
        try:
            found = run(load(body, some_budget()))[name]
        except HttpError:
            continue  # some list is ragged, or no list of numbers
        if isinstance(found, Numbers):
            assert array is not None
            assert (found.array.shape, found.array.dtype) == (array.shape, array.dtype)
            assert np.array_equal(found.array, array, equal_nan=array.dtype.kind == "f")
            assert found.has_words == has_words
        else:
            assert repr(found) == repr(expected) or isinstance(expected, list)


@pytest.mark.parametrize(
    "text",
    [
        *("[[1],[2,3]]", "[[1],2]", "[1,[2]]", "[[1],[]]", "[[],[1]]", "[[1]2]", "[2[1]]", "[[1]5,[2]6]", "[1 2]"),
        *("[1,,2]", "[1,]", "[,1]", "[[],]", "[[] []]", "[[1]e5]", "[-[1]]", "[tru]", "[[[1]],[1]]", "[[1,2],[3 4]]"),
        *("[1", "[[1]", "[1]]", '["NaN" 1]', "[01]", "[1e]", "[" * 40 + "]" * 40, "[" + "1" * 100 + ",1]"),
    ],
)
def test_lists_that_are_no_tensor_are_refused_in_slices_too(tiny_slices: None, text: str) -> None:
    assert status_of(lambda: read_json(f'{{"inputs": {text}}}')) == 400


@pytest.mark.parametrize("text", ['{"a": "x', '{"a": "x\\', '{"a"', "", "[", '"', '{"a": [1}'])
def test_what_is_cut_is_refused_in_slices_too(tiny_slices: None, text: str) -> None:
    assert status_of(lambda: read_json(text)) == 400


def test_a_name_that_looks_like_a_list_taken_out_stays_a_name(tiny_slices: None) -> None:
    found = run(load(bytearray(b'{"a": "0:0", "b": [1, 2]}'), some_budget()))
    assert found["a"] == "0:0"
    assert found["b"].array.tolist() == [1, 2]


@pytest.mark.parametrize(
    ("shape", "status"), [("[65536, 0]", 200), ("[65537, 0]", 413), ("[1099511627775, 0]", 413), ("[0, 70000]", 200)]
)
def test_a_shape_without_elements_has_only_so_many_rows(shape: str, status: int) -> None:
    assert status_of(lambda: read_json(f'{{"inputs": [], "shape": {shape}}}')) == status
    dims = [int(each) for each in shape[1:-1].split(",")]
    assert status_of(lambda: decode(RAW, bytearray(), {"x-dtype": "int8", "x-shape": shape})) == status
    header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({dims[0]}, {dims[1]}), }}".encode()
    npy = bytearray(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header)
    assert status_of(lambda: decode(NPY, npy, {})) == status
    header = orjson.dumps({"input": {"dtype": "F32", "shape": dims, "data_offsets": [0, 0]}})
    assert status_of(lambda: decode(SAFE, bytearray(len(header).to_bytes(8, "little") + header), {})) == status
    one = {"name": "x", "datatype": "FP32", "shape": dims, "data": []}
    question = bytearray(orjson.dumps({"inputs": [one]}))
    assert status_of(lambda: parse_question(question, {}, max_json_bytes=MAX_JSON_BYTES)) == status


def test_lists_without_elements_have_only_so_many_rows() -> None:
    assert status_of(lambda: read_json('{"inputs": [' + "[]," * 65_535 + "[]]}")) == 200
    assert status_of(lambda: read_json('{"inputs": [' + "[]," * 65_536 + "[]]}")) == 413


@pytest.mark.parametrize("text", ['{"a":1},', '"a",', '{"a":', '"a":1,', "[1,[2,", '"' + "a" * 1000 + '",'])
def test_only_so_much_of_a_body_may_be_other_things_than_numbers(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr(json_reading, "MAX_VALUES", 1000)
    monkeypatch.setattr(json_reading, "MAX_REST_BYTES", 100_000)
    status = 400 if text.startswith("[") else 413  # that is nested too deeply first
    assert status_of(lambda: read_json('{"inputs": [' + text * 1500)) == status
    assert status_of(lambda: read_json('{"inputs": {"a":' + text * 1500)) == status


def test_what_a_body_becomes_counts_before_it_is_made() -> None:
    body = bytearray(b'{"inputs":[' + b"1," * 100_000 + b"1]}")
    assert run(load(body, some_budget(16 * 100_001 + 3 * len(body) + 1000)))["inputs"].array.shape == (100_001,)
    with pytest.raises(HttpError, match="open requests take"):
        run(load(body, some_budget(16 * 100_001 + len(body))))


@pytest.mark.parametrize("text", [b"[[[[[1]]]]],", b"1,", b"0.25,", b'"NaN",', b"[1.5,2],"])
async def test_others_have_their_turn_while_a_large_body_is_read(text: bytes) -> None:
    num_turns = 0

    async def other() -> None:
        nonlocal num_turns
        while True:
            num_turns += 1
            await asyncio.sleep(0)

    body = bytearray(b'{"inputs":[' + (text * ((1 << 18) // len(text)))[:-1] + b"]}")
    beside = asyncio.ensure_future(other())
    try:
        await formats.decode(JSON, body, {}, some_budget(), check=lambda _: None)
    finally:
        beside.cancel()
    assert num_turns >= len(body) // json_reading.SLICE_BYTES


@pytest.mark.parametrize("begin", ["[", "[[", "[[[", "[\n  ", "[ [ [\t"])
@pytest.mark.parametrize("number", [1000, 1600, 5000])
def test_many_short_numbers_behind_brackets_or_blanks_are_read(begin: str, number: int) -> None:
    for blanks in ("", "\n  "):
        text = f'{blanks}{{{blanks}"inputs":{begin}{"0," * number}1{"]" * begin.count("[")}}}'
        tensor = read_json(text)
        assert isinstance(tensor, Tensor)
        assert (tensor.shape[-1], tensor.sum().item()) == (number + 1, 1)


@pytest.mark.parametrize("text", [b'[1,"a"],', b'[[1],"a"],', b'{"a":[1]},', b'[1,{"a":2}],', b'["a"],'])
async def test_short_lists_of_other_things_take_no_turn_each(monkeypatch: pytest.MonkeyPatch, text: bytes) -> None:
    monkeypatch.setattr(json_reading, "MAX_VALUES", 1 << 30)
    num_turns = 0

    class Counting(Turns):
        async def wait_next(self) -> None:
            nonlocal num_turns
            num_turns += 1

    num_lists = (1 << 18) // len(text)
    body = bytearray(b'{"x":[' + (text * num_lists)[:-1] + b"]}")
    found = await load(body, Budget(HeldBytes(1 << 30), Counting()))
    assert found == orjson.loads(body)
    assert 16 <= num_turns <= num_lists // 20


@pytest.mark.parametrize(
    "integers", [[-1, 1 << 63], [0] * 3000 + [1 << 63] + [5] * 3000 + [-1], [(1 << 64) - 1, -5] * 900]
)
def test_integers_that_no_type_holds_together_are_not_rounded_silently(integers: list[int]) -> None:
    for inputs in (integers, [integers]):
        text = orjson.dumps(inputs).decode()
        assert "no type of integers holds" in refusal_of_json(f'{{"inputs": {text}}}')
        assert refusal_of_json(f'{{"inputs": {text}, "dtype": "int64"}}')
        rounded = read_json(f'{{"inputs": {text}, "dtype": "float64"}}')
        assert isinstance(rounded, Tensor)
        assert rounded.tolist() == torch.tensor(inputs, dtype=torch.float64).tolist()


@pytest.mark.parametrize("numbers_", [[-1, 1 << 63, 0.5], ["NaN", -1, 1 << 63], [-1.5, 1e19]])
def test_fractions_among_integers_make_all_of_them_floats(numbers_: list[Any]) -> None:
    for number in (1, 2000):
        tensor = read_json(f'{{"inputs": {orjson.dumps(numbers_ * number).decode()}}}')
        assert isinstance(tensor, Tensor)
        assert tensor.dtype == torch.float32


@pytest.mark.parametrize("tensor", [torch.ones(3, 0), torch.ones(2, 5000), torch.full((9, 900, 2), math.nan)])
def test_a_large_answer_in_json_is_the_same_in_slices(tensor: Tensor) -> None:
    answer = orjson.loads(joined(encode(JSON, [tensor, tensor + 1, torch.ones(2)]))[0])
    assert [each["shape"] for each in answer["outputs"]] == [list(tensor.shape)] * 2 + [[2]]
    words = tensor.numpy().astype(object)
    words[np.isnan(tensor.numpy())] = "NaN"
    assert answer["outputs"][0]["data"] == words.tolist()
    pieces, _ = answer_question(Question(tensor, None, None, False), tensor, model="m", version="1")
    flat = orjson.loads(b"".join(bytes(piece) for piece in pieces))["outputs"][0]["data"]
    assert flat == words.reshape(-1).tolist()


@pytest.mark.parametrize(
    "tensor", [torch.zeros(1 << 40, 0), torch.zeros(1).expand(1 << 40), torch.full((250_000,), 1 / 3)]
)
def test_an_answer_of_too_much_text_is_refused_before_it_is_made(tensor: Tensor) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(HttpError, match="more than 1000000 bytes as JSON; ask for it in binary"):
            encode(JSON, tensor, 1_000_000)
        with pytest.raises(HttpError, match="bytes as JSON"):
            encode(JSON, {str(index): torch.full((9_000,), 1 / 3) for index in range(20)}, 1_000_000)
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()


def test_safetensors_share_the_memory_of_the_body() -> None:
    body, _ = joined(encode(SAFE, {"a": torch.ones(1 << 16), "b": torch.ones(3, dtype=torch.int8)}))
    tracemalloc.start()
    try:
        payload = decode(SAFE, body, {})
        assert tracemalloc.get_traced_memory()[1] < 1 << 16
    finally:
        tracemalloc.stop()
    assert isinstance(payload, dict)
    assert payload["a"].untyped_storage().data_ptr() != 0
    assert is_same(payload, {"a": torch.ones(1 << 16), "b": torch.ones(3, dtype=torch.int8)})
    assert set(load_safetensors(bytes(body))) == {"a", "b"}


@pytest.mark.parametrize(
    "entries",
    [
        {"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 8]}},
        {"a": {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}},
        {
            "a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]},
            "b": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]},
        },
        {"a": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}},
        {"a": {"dtype": "F32", "shape": [2], "data_offsets": [False, 8]}},
        {"a": {"dtype": "F32", "shape": [2]}},
        {"a": [1]},
        {"a": {"dtype": [], "shape": [2], "data_offsets": [0, 8]}},
        [1],
    ],
)
def test_a_safetensors_header_that_lies_is_refused(entries: Any) -> None:
    header = orjson.dumps(entries)
    body = bytearray(len(header).to_bytes(8, "little") + header + bytes(8))
    assert status_of(lambda: decode(SAFE, body, {})) == 400

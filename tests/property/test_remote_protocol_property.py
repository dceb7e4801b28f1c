"""A node reads each call as its master wrote it, and refuses or obeys any bytes."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import example, given
from hypothesis import strategies as st

from multiworld.errors import ProtocolError
from multiworld.remote.protocol import records, template
from multiworld.remote.protocol.records import HEAD, Kind
from multiworld.remote.protocol.specs import Spec, from_json, to_json
from multiworld.remote.protocol.template import FLOAT, GENERATOR, TENSOR, Template

DTYPES = st.sampled_from([torch.float32, torch.float64, torch.bool, torch.complex64, torch.int8, torch.bfloat16])
CONSTANTS = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.complex_numbers(allow_nan=False), st.text()
)
SPECS = st.builds(
    Spec,
    st.lists(st.integers(0, 2**40), max_size=5).map(tuple),
    st.lists(st.integers(0, 2**40), max_size=5).map(tuple),
    st.integers(0, 2**40),
    DTYPES,
    st.sampled_from(["cpu", "cuda:0"]),
    st.booleans(),
    st.booleans(),
)
ITEMS = st.recursive(
    st.one_of(st.sampled_from([TENSOR, FLOAT, GENERATOR]), CONSTANTS, DTYPES),
    lambda item: st.lists(item, max_size=3),
    max_leaves=8,
)
READERS: dict[Kind, Any] = {
    Kind.DEFINE: records.read_define,
    Kind.FORGET: records.read_forget,
    Kind.FREE: records.read_free,
    Kind.LOAD: records.read_load,
    Kind.ARRIVED: records.read_arrived,
    Kind.FETCH: records.read_fetch,
    Kind.SEED: records.read_seed,
    Kind.ASK: records.read_ask,
    Kind.SYNC: records.read_sync,
}


@st.composite
def templates(draw: st.DrawFn) -> Template:
    args = tuple(draw(st.lists(ITEMS, max_size=4)))
    kwargs = draw(st.dictionaries(st.text(max_size=5), ITEMS, max_size=3))
    outputs = tuple(draw(st.lists(st.one_of(st.none(), SPECS), max_size=3)))
    call = Template(operator="aten.add.Tensor", args=args, kwargs=kwargs, outputs=outputs)
    writes = draw(st.lists(st.integers(0, call.num_tensors - 1), max_size=2)) if call.num_tensors else []
    return Template(operator=call.operator, args=args, kwargs=kwargs, outputs=outputs, writes=tuple(writes))


@given(templates())
def test_a_call_is_read_as_it_was_written(call: Template) -> None:
    back = template.decode(call.encode())
    assert back == call
    assert repr(back) == repr(call)  # tells True from 1, and -0.0 from 0.0


@given(SPECS)
def test_a_spec_is_read_as_it_was_written(spec: Spec) -> None:
    assert from_json(to_json(spec)) == spec


@given(st.sampled_from(list(READERS)), st.binary(max_size=80))
@example(Kind.ASK, b'[1,"{}",[],["0x1p99999"],[]]')
@example(Kind.LOAD, b"\0" * 12)
def test_a_body_of_noise_is_read_or_refused(kind: Kind, body: bytes) -> None:
    try:
        READERS[kind](body)
    except ProtocolError:
        return


@given(st.data())
def test_a_damaged_template_is_read_or_refused(data: st.DataObject) -> None:
    encoded = bytearray(data.draw(templates()).encode())
    for _ in range(data.draw(st.integers(1, 3))):
        encoded[data.draw(st.integers(0, len(encoded) - 1))] = data.draw(st.integers(0, 255))
    try:
        template.decode(bytes(encoded))
    except ProtocolError:
        return


@given(st.lists(st.integers(0, records.MAX_ID - 1), max_size=20))
def test_freed_ids_are_read_as_they_were_written(ids: list[int]) -> None:
    record = records.free(ids)
    assert HEAD.unpack_from(record) == (Kind.FREE, 8 * len(ids))
    assert records.read_free(record[HEAD.size :]) == tuple(ids)

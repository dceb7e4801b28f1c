"""Built-in records, specs and templates: what was written is read, and what is no record is refused."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
import torch

from multiworld.errors import ProtocolError
from multiworld.remote.protocol import records, specs, template
from multiworld.remote.protocol.records import HEAD, Ask, Kind
from multiworld.remote.protocol.specs import Spec
from multiworld.remote.protocol.template import FLOAT, GENERATOR, TENSOR, Template

SPEC = Spec((2, 0, 3), (3, 3, 1), 4, torch.bfloat16, "cuda:1", True, False)
CALL = Template(
    operator="aten.add.Tensor",
    args=(TENSOR, [TENSOR, None], FLOAT),
    kwargs={"alpha": 2, "dtype": torch.float64, "generator": GENERATOR},
    outputs=(SPEC, None),
    writes=(1,),
    reshapes=((0, SPEC),),
)


def body_of(record: bytes, kind: Kind) -> bytes:
    found, size = HEAD.unpack_from(record)
    assert (found, size) == (kind, len(record) - HEAD.size)
    return record[HEAD.size :]


def test_each_record_is_read_as_it_was_written() -> None:
    question = Ask(request=3, template=CALL.encode(), ids=(1, 2), floats=(0.1,), outputs=(9,))
    assert records.read_define(body_of(records.define(64, b"{}"), Kind.DEFINE)) == (64, b"{}")
    assert records.read_forget(body_of(records.forget(70), Kind.FORGET)) == 70
    assert records.read_free(body_of(records.free([1, 2**63 - 1]), Kind.FREE)) == (1, 2**63 - 1)
    release = records.Release((1, 2), (records.Passed(3, 2**40), records.Passed(0, 1)))
    assert records.read_release(body_of(records.release(*release), Kind.RELEASE)) == release
    assert records.read_event(body_of(records.record_event(3), Kind.RECORD)) == 3
    assert records.read_event(body_of(records.wait_event(4), Kind.WAIT)) == 4
    assert body_of(records.end(), Kind.END) == b""
    assert records.read_load(body_of(records.load(5, SPEC, b"abc"), Kind.LOAD)) == (5, SPEC, b"abc")
    assert records.read_arrived(body_of(records.arrived(6), Kind.ARRIVED)) == 6
    assert records.read_fetch(body_of(records.fetch(7, 8), Kind.FETCH)) == (7, 8)
    assert records.read_seed(body_of(records.seed(-1), Kind.SEED)) == 2**64 - 1
    assert records.read_sync(body_of(records.sync(4), Kind.SYNC)) == 4
    assert records.read_ask(body_of(records.ask(question), Kind.ASK)) == question


@pytest.mark.parametrize(
    ("read", "body"),
    [
        (records.read_define, b"\x01\x00\x00\x00{}"),
        (records.read_define, b"\x40"),
        (records.read_forget, b""),
        (records.read_free, b"1234567"),
        (records.read_release, b"\x02\0\0\0" + b"\0" * 12),
        (records.read_release, b"\0\0\0\0" + b"\0" * 7),
        (records.read_event, b"\0" * 7),
        (records.read_load, b"12"),
        (records.read_load, b"\x01" + b"\0" * 7 + b"\x02\0\0\0{}"),
        (records.read_fetch, b"\0" * 15),
        (records.read_seed, b"\0" * 9),
        (records.read_ask, b"[1]"),
        (records.read_ask, b"[1, 2, 3, 4, 5]"),
        (records.read_ask, b'[1, "{}", [-1], [], []]'),
        (records.read_ask, b'[1, "{}", [true], [], []]'),
        (records.read_ask, b'[1, "{}", [], [1.5], []]'),
        (records.read_ask, b"[" * 100_000),
        (records.read_ask, b"\xff"),
    ],
)
def test_what_is_no_record_is_refused(read: Callable[[bytes], object], body: bytes) -> None:
    with pytest.raises(ProtocolError):
        read(body)


def test_a_spec_comes_back_and_is_kept_once() -> None:
    back = specs.from_json(json.loads(json.dumps(specs.to_json(SPEC))))
    assert back == SPEC
    assert specs.number_of(back) == specs.number_of(SPEC)
    assert specs.spec_of(specs.number_of(back)) == SPEC
    assert specs.number_of(SPEC._replace(conj=False)) != specs.number_of(SPEC)


@pytest.mark.parametrize(
    "shown",
    [
        None,
        [],
        [[1], [1], 0, ["dtype", "float32"], "cpu", False],
        [[-1], [1], 0, ["dtype", "float32"], "cpu", False, False],
        [[1.0], [1], 0, ["dtype", "float32"], "cpu", False, False],
        [[True], [1], 0, ["dtype", "float32"], "cpu", False, False],
        [[1], [1], 0, 3, "cpu", False, False],
    ],
)
def test_an_impossible_spec_is_refused(shown: object) -> None:
    with pytest.raises(ProtocolError, match="a bad description of a tensor"):
        specs.from_json(shown)


def test_a_template_comes_back_as_it_was() -> None:
    back = template.decode(CALL.encode())
    assert back == CALL
    assert (back.num_tensors, back.num_floats, back.num_outputs) == (2, 1, 1)
    assert back.numbers.size == 4 + 8 * 3 + 8


@pytest.mark.parametrize(
    "changes",
    [
        {"operator": 3},
        {"args": None},
        {"args": [["slot", "file"]]},
        {"args": [["slot", 3]]},
        {"kwargs": []},
        {"outputs": [[1]]},
        {"writes": [2]},
        {"writes": [-1]},
        {"writes": [True]},
        {"reshapes": [[2, specs.to_json(SPEC)]]},
        {"reshapes": [[0, []]]},
        {"reshapes": [0]},
        {"args": [["list", [["slot", "tensor"]] * (template.MAX_SLOTS + 1)]]},
    ],
)
def test_an_impossible_template_is_refused(changes: dict[str, object]) -> None:
    shown = {**json.loads(CALL.encode()), **changes}
    with pytest.raises(ProtocolError):
        template.decode(json.dumps(shown).encode())


def test_a_template_without_a_part_is_refused() -> None:
    shown = json.loads(CALL.encode())
    for name in ("operator", "args", "kwargs", "outputs", "writes", "reshapes"):
        with pytest.raises(ProtocolError):
            template.decode(json.dumps({key: part for key, part in shown.items() if key != name}).encode())

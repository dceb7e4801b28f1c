"""The native module executes the usual records of a batch. It leaves all others to Python, also bytes that are none."""

from __future__ import annotations

import random
import struct
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from multiworld import native
from multiworld.remote.node.plan import Plan
from multiworld.remote.node.table import Lost
from multiworld.remote.protocol.messages import Failed
from multiworld.remote.protocol.records import FIRST_PLAN
from multiworld.remote.protocol.specs import Spec
from multiworld.remote.protocol.template import FLOAT, TENSOR, Template

pytestmark = pytest.mark.skipif(native.for_remote is None, reason=native.why_not_for_remote)

TWO = Spec((2,), (1,), 0, torch.float32)
ADD = Template(operator="aten.add.Tensor", args=(TENSOR, TENSOR), kwargs={"alpha": FLOAT}, outputs=(TWO,))
ADD_IN_PLACE = Template(operator="aten.add_.Tensor", args=(TENSOR, TENSOR), kwargs={}, outputs=(None,), writes=(0,))
SPLIT = Template(
    operator="aten.split.Tensor",
    args=(TENSOR, 1),
    kwargs={},
    outputs=(Spec((1,), (1,), 0, torch.float32), Spec((1,), (1,), 1, torch.float32)),
)
CAT = Template(
    operator="aten.cat.default", args=([TENSOR, TENSOR], 0), kwargs={}, outputs=(Spec((4,), (1,), 0, torch.float32),)
)


def plans() -> dict[int, Plan]:
    """Return plans that have run once: a call returned what was foreseen."""
    made = {}
    for number, template in enumerate((ADD, ADD_IN_PLACE, SPLIT, CAT), FIRST_PLAN):
        plan = made[number] = Plan(template)
        assert plan.native is None
        plan.results(plan.call([torch.zeros(2)] * template.num_tensors, [1.0] * template.num_floats))
        assert plan.native is not None
    return made


def run(batch: bytes, table: dict[int, Any], **shared: Any) -> tuple[int, int, Exception | None]:
    assert native.for_remote is not None
    there = SimpleNamespace(is_dropping=False, sending=[])
    there.__dict__.update(shared)
    return native.for_remote.execute(memoryview(batch), 0, plans(), table, there, [])  # type: ignore[no-any-return]


def test_usual_records_are_executed() -> None:
    table: dict[int, Any] = {1: torch.tensor([1.0, 2.0]), 2: torch.tensor([10.0, 20.0])}
    records = [
        struct.pack("<IQQQd", FIRST_PLAN, 3, 1, 2, 0.5),
        struct.pack("<IQQ", FIRST_PLAN + 1, 1, 2),
        struct.pack("<IQQQ", FIRST_PLAN + 2, 4, 5, 3),
        struct.pack("<IQQQ", FIRST_PLAN + 3, 6, 1, 3),
    ]
    batch = b"".join(records)
    assert run(batch, table) == (len(batch), 4, None)
    assert {id_: tensor.tolist() for id_, tensor in table.items()} == {
        1: [11.0, 22.0],
        2: [10.0, 20.0],
        3: [6.0, 12.0],
        4: [6.0],
        5: [12.0],
        6: [11.0, 22.0, 6.0, 12.0],
    }


@pytest.mark.parametrize(
    ("record", "shared"),
    [
        (struct.pack("<II", 5, 0), {}),
        (struct.pack("<IQQQd", FIRST_PLAN + 9, 3, 1, 2, 0.5), {}),
        (struct.pack("<IQQQd", FIRST_PLAN, 3, 1, 7, 0.5), {}),
        (struct.pack("<IQQQd", FIRST_PLAN, 3, 1, 8, 0.5), {}),
        (struct.pack("<IQQQd", FIRST_PLAN, 3, 1, 2, 0.5)[:-1], {}),
        (struct.pack("<IQQ", FIRST_PLAN + 1, 1, 2), {"sending": [object()]}),
        (struct.pack("<IQQQd", FIRST_PLAN, 3, 1, 2, 0.5), {"is_dropping": True}),
        (b"\x40", {}),
    ],
    ids=["built in", "unknown plan", "not there", "lost", "cut", "being sent", "dropping", "less than a number"],
)
def test_what_is_not_usual_is_left_as_it_is(record: bytes, shared: dict[str, Any]) -> None:
    lost = Lost(Failed(stream=0, position=0, kind="E", text="gone"))
    table: dict[int, Any] = {1: torch.ones(2), 2: torch.ones(2), 8: lost}
    before = dict(table)
    assert run(record, table, **shared) == (0, 0, None)
    assert table == before
    assert table[1].tolist() == [1.0, 1.0]


def test_an_operator_that_raises_ends_it_at_its_record() -> None:
    table: dict[int, Any] = {1: torch.ones(2), 2: torch.ones(3)}
    good, bad = struct.pack("<IQQQd", FIRST_PLAN, 3, 1, 1, 0.5), struct.pack("<IQQQd", FIRST_PLAN, 4, 1, 2, 0.5)
    at, count, error = run(good + bad + good, table)
    assert (at, count) == (len(good), 1)
    assert isinstance(error, RuntimeError)
    assert "must match" in str(error)
    assert 4 not in table


def test_any_bytes_leave_the_rest_to_python() -> None:
    source = random.Random(7)
    for _ in range(3000):
        numbers = [source.choice((1, 2, 3, 8, 2**63, 2**64 - 1)) for _ in range(source.randrange(6))]
        plan = FIRST_PLAN + source.randrange(-2, 6)
        batch = struct.pack(f"<I{len(numbers)}Q", plan, *numbers) + source.randbytes(source.randrange(40))
        table: dict[int, Any] = {1: torch.ones(2), 2: torch.ones(2), 8: None}
        at, count, error = run(batch, table)
        assert 0 <= at <= len(batch)
        assert count <= len(batch) // 20
        assert error is None or isinstance(error, RuntimeError)

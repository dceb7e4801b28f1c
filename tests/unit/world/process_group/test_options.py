"""The options of a c10d call, in all forms."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from torch._C import _distributed_c10d
from torch.distributed import ReduceOp

from multiworld.world.process_group.options import CallOptions, read_options

c10d: Any = _distributed_c10d
LONG = timedelta(seconds=2)


def test_without_options_c10ds_own_hold() -> None:
    call = read_options(c10d.AllreduceOptions())
    assert (call.root, call.op.op, call.timeout_s) == (0, ReduceOp.SUM, None)
    assert read_options() == CallOptions()


def test_an_object_of_options_says_root_operation_and_deadline() -> None:
    options = c10d.ReduceOptions()
    options.rootRank, options.reduceOp, options.timeout = 3, ReduceOp(ReduceOp.MAX), LONG
    call = read_options(options)
    assert (call.root, call.op.op, call.timeout_s) == (3, ReduceOp.MAX, 2.0)


@pytest.mark.parametrize(
    ("by_position", "by_name"), [(3, {"root": 3}), (ReduceOp.MAX, {"op": ReduceOp.MAX}), (LONG, {"timeout": LONG})]
)
def test_values_are_taken_by_position_and_by_name(by_position: Any, by_name: dict[str, Any]) -> None:
    assert read_options(by_position) == read_options(**by_name) != CallOptions()


def test_what_means_nothing_is_refused() -> None:
    options = c10d.BroadcastOptions()
    options.rootTensor = 1
    with pytest.raises(ValueError, match="rootTensor=1"):
        read_options(options)
    with pytest.raises(TypeError, match=r"options of torch\.distributed, got 'sum'"):
        read_options("sum")
    with pytest.raises(TypeError, match="timedelta, got 5"):
        read_options(timeout=5)  # type: ignore[arg-type]

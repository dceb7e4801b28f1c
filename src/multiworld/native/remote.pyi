# What remote.c has: see there.

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import CodeType
from typing import Any

VERSION: int

def set_up_master(
    *,
    slow: Callable[..., Any],
    plans: Any,
    by_value: set[int],
    make: Callable[..., Any],
    forbid_writes: Callable[[Any], object],
    label: Any,
    dispatch_keys: Any,
    tensor_type: type[Any],
    generator_type: type[Any],
    is_users: dict[int, bool],
    look_up: Callable[[CodeType], bool],
    ids_to_come: Iterator[int],
    batch_size: int,
) -> None: ...
def dispatch(
    cls: type[Any], func: Any, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None, /
) -> Any: ...
def give_up(tensor: Any, /) -> None: ...
def set_up_node(*, tensor_type: type[Any], tensor_slot: object, float_slot: object) -> None: ...
def execute(
    batch: memoryview,
    at: int,
    plans: Mapping[int, Any],
    table: Mapping[int, Any],
    shared: Any,
    awaited: Sequence[int],
    /,
) -> tuple[int, int, Exception | None]: ...

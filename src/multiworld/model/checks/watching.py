"""Watches the operations of a model's calls: which tensors they write into, and whether they draw random numbers."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from .snapshots import tensors_of

FILLS = 0.0, 1.0


class WriteRefusedError(Exception):
    """A model was about to write into a tensor that outlives the call. The text names the tensor and the operation."""


def _uncompiled() -> AbstractContextManager[Any]:
    """Run compiled code as it was written: only that can be watched.

    To import the compiler takes seconds. If it is not loaded, nothing was compiled.
    """
    return torch.compiler.set_stance("force_eager") if "torch._dynamo" in sys.modules else nullcontext()


class Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Calls a model, and refuses operations that would write into its parameters, buffers or attributes.

    ``outliving``: the operation that wrote in two calls into one tensor that is not the model's own, such as a global.
    ``drawing``: the last operation that drew random numbers.
    """

    supports_higher_order_operators = True

    def __init__(self, module: nn.Module) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._module = module
        self._own: dict[int, str] = {}
        self._made: set[int] = set()
        self._foreign: dict[int, torch.Tensor] = {}
        """Neither the model's nor made in the call that wrote into them. Held, so that their memory is not reused."""
        self._foreign_now: dict[int, tuple[torch.Tensor, str]] = {}
        self._overwritten: list[tuple[torch.Tensor, torch.Tensor]] = []
        """The tensors of ``_foreign`` that were written into, in this order, each with its values before."""
        self._refused: WriteRefusedError | None = None
        self._fill: float | None = None
        self.outliving: str | None = None
        self.drawing: str | None = None

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Let torch compile what it can only run compiled, such as ``torch.cond``, and watch the compiled code.

        Otherwise torch marks it for good as not to be compiled. torch.export then fails at it, and torch's compiler
        stays hooked into the interpreter, which changes reference counts.
        """
        return True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Return False: to skip the compiler, torch would have to import it, which takes seconds."""
        return False

    def call(self, values: Mapping[str, torch.Tensor]) -> Any:
        """Return the answer to copies of these values. Raises WriteRefusedError; errors of the model pass through."""
        given = {name: value.clone() for name, value in values.items()}
        parameters = [(name, value, value.detach()) for name, value in self._module.named_parameters()]
        self._own = dict(_by_memory((value, name) for name, value in tensors_of(self._module)))
        self._made = {memory for memory, _ in _by_memory((value, "") for value in given.values())}
        try:
            with torch.no_grad(), _uncompiled(), self:
                answer = self._module(**given)
        finally:
            self._end_call(parameters)
        return answer

    def answers_to_extremes(self, values: Mapping[str, torch.Tensor]) -> Iterator[Any]:
        """Return the answers to copies of these values with all random numbers 0, and with all 1."""
        try:
            for self._fill in FILLS:
                yield self.call(values)
        finally:
            self._fill = None

    def undo(self) -> None:
        """Restore the values of tensors that are not the model's own and were written into."""
        while self._overwritten:
            tensor, before = self._overwritten.pop()
            tensor.copy_(before)

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if not isinstance(func, torch._ops.OpOverload):
            return func(*args, **kwargs)
        for place, name in _written_places(func):
            for tensor in _tensors(args[place] if place < len(args) else kwargs.get(name)):
                self._write(tensor, str(func.overloadpacket))
        is_random = torch.Tag.nondeterministic_seeded in func.tags
        before = random_states() if is_random else {}
        result = func(*args, **kwargs)
        if is_random and (kwargs.get("generator") is not None or random_states() != before):
            self.drawing = str(func.overloadpacket)
            if self._fill is not None:
                for tensor in _tensors(result):
                    tensor.fill_(self._fill)
        is_fresh = func is torch.ops.aten.lift_fresh.default  # of a tensor that was just made of Python's numbers
        taken = set() if is_fresh else {memory_of(tensor) for tensor in _tensors((args, kwargs))}
        self._made.update({memory_of(tensor) for tensor in _tensors(result)} - taken)
        return result

    def _write(self, tensor: torch.Tensor, operation: str) -> None:
        memory = memory_of(tensor)
        if memory == 0 or memory in self._made:
            return
        if memory in self._own:
            self._refused = WriteRefusedError(f"writes into its {self._own[memory]} ({operation})")
            raise self._refused
        self._foreign_now.setdefault(memory, (tensor, operation))
        self._overwritten.append((tensor, tensor.clone()))

    def _end_call(self, parameters: list[tuple[str, nn.Parameter, torch.Tensor]]) -> None:
        for name, parameter, before in parameters:
            if memory_of(parameter) != memory_of(before):
                parameter.data = before  # it is the caller's
                self._refused = WriteRefusedError(f"gives its parameter {name!r} other data")
        for memory, (tensor, operation) in self._foreign_now.items():
            if memory in self._foreign:
                self.outliving = operation
            self._foreign[memory] = tensor
        self._foreign_now.clear()
        if self._refused is not None:  # also if the model's own code caught it
            raise self._refused


def random_states() -> dict[str, Any]:
    """Return the states of the default random generators by name."""
    states = {"PyTorch": tuple(torch.get_rng_state().tolist()), "Python's random module": random.getstate()}
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        for index, generator in enumerate(torch.cuda.default_generators):
            states[f"PyTorch, on GPU {index}"] = tuple(generator.get_state().tolist())
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        kind, keys, *rest = numpy.random.get_state()
        states["NumPy"] = (kind, keys.tobytes(), *rest)
    return states


def memory_of(tensor: torch.Tensor) -> int:
    """Return a number that tensors share only if they share memory, while one lives; 0 for a tensor without memory."""
    try:
        return int(tensor.untyped_storage()._cdata)
    except (NotImplementedError, RuntimeError):  # sparse, for one
        return 0


def _by_memory(tensors: Iterator[tuple[torch.Tensor, str]]) -> Iterator[tuple[int, str]]:
    return ((memory, name) for tensor, name in tensors if (memory := memory_of(tensor)))


def _tensors(value: Any) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]


@lru_cache(maxsize=4096)
def _written_places(func: torch._ops.OpOverload[..., Any]) -> tuple[tuple[int, str], ...]:
    return tuple(
        (place, argument.name)
        for place, argument in enumerate(func._schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    )

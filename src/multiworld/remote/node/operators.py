"""Which operators a node executes: those of the namespaces that it allows, and of these none that touches files."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

import torch

from ...errors import MultiworldError
from ..protocol.own_operators import NAMESPACE

ALLOWED: Final = frozenset({"aten", "prims", "rngprims", NAMESPACE})
_FORBIDDEN_ARGUMENTS: Final = frozenset({"filename"})

Operator = Callable[..., Any]


class OperatorRefusedError(MultiworldError):
    """A node does not execute this operator (``reason``)."""

    def __init__(self, operator: str, reason: str) -> None:
        super().__init__(operator, reason)
        self.operator, self.reason = operator, reason

    def __str__(self) -> str:
        return f"{self.operator}: {self.reason}"


def find_operator(name: str, allowed: Iterable[str] = ALLOWED) -> Operator:
    """Return ``namespace.name.overload``. Raises OperatorRefusedError."""
    parts = name.split(".")
    if len(parts) != 3 or not all(part.isidentifier() for part in parts):
        raise OperatorRefusedError(name, "this is not the name of an operator")
    namespace, packet_name, overload = parts
    if namespace not in allowed:
        raise OperatorRefusedError(
            name,
            f"the node does not allow the namespace {namespace!r}. Start it with --allow {namespace} "
            "and with --import of the module that registers its operators",
        )
    try:
        operator = getattr(getattr(getattr(torch.ops, namespace), packet_name), overload)
    except (AttributeError, RuntimeError):
        raise OperatorRefusedError(
            name,
            f"the node has no such operator. If a module registers it, start the node with --import MODULE. "
            f"If it is of PyTorch, the node has another release: {torch.__version__}",
        ) from None
    if not isinstance(operator, torch._ops.OpOverload):
        raise OperatorRefusedError(name, "this is no operator")
    if any(argument.name in _FORBIDDEN_ARGUMENTS for argument in operator._schema.arguments):
        raise OperatorRefusedError(name, "operators that read or write files are not executed for a master")
    return operator

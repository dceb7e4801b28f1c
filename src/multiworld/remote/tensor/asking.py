"""Call an operator whose outcome depends on data: the master waits, and learns what came out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import torch
from torch import Tensor

from ..errors import UnsupportedOperationError
from ..protocol import specs
from ..protocol.outcomes import read
from ..protocol.template import FLOAT, GENERATOR, TENSOR, Keywords, Template
from ..session.session import Session
from .refused import check_generator
from .wrapping import make

MOST_OUTPUTS: Final = 64
"""Tensors that one such call can return, at least; a call with lists of tensors can return as many more."""


def ask(cls: type[Any], session: Session, func: Any, args: Sequence[Any], kwargs: Keywords) -> Any:
    """Return what the operator returned on the node. A sync point. Raises RemoteOperationError, NodeDeadError."""
    ids: list[int] = []
    floats: list[float] = []

    def shown(value: Any) -> Any:
        if type(value) is cls:
            ids.append(value._id)
            return TENSOR
        if type(value) is float:
            floats.append(value)
            return FLOAT
        if isinstance(value, (list, tuple)):
            return [shown(each) for each in value]
        if isinstance(value, torch.Generator):
            check_generator(func, value)
            return GENERATOR
        if isinstance(value, Tensor):
            raise UnsupportedOperationError(
                str(func), "one operand is on the master", f"Send it first: nodes[{session.number}].send(tensor)"
            )
        return value

    template = Template(
        operator=str(func),
        args=tuple(shown(value) for value in args),
        kwargs={name: shown(value) for name, value in kwargs.items()},
        outputs=(),
    )
    outcome, outputs = session.ask(
        template.encode(), tuple(ids), tuple(floats), MOST_OUTPUTS + len(ids), template.operator
    )
    made = [
        make(cls, session, specs.number_of(specs.from_json(spec)), id_)
        for spec, id_ in zip(outcome.specs, outputs, strict=False)
    ]
    return read(outcome.shown, made)

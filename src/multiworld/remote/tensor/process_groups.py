"""Collectives of ``torch.distributed`` read and write memory of this process, where a remote tensor has none."""

from __future__ import annotations

from typing import Any, Final, NoReturn

import torch

from ..errors import UnsupportedOperationError
from .wrapping import KEY_NAME

_NAMESPACE: Final = "c10d"


def refuse_process_groups(libraries: list[torch.library.Library]) -> None:
    """Let them raise UnsupportedOperationError. ``libraries`` keeps what lasts as long as the kernels."""
    library = torch.library.Library(_NAMESPACE, "IMPL")  # type: ignore[no-untyped-call]
    libraries.append(library)
    for name in torch._C._dispatch_get_all_op_names():
        if name.startswith(f"{_NAMESPACE}::"):
            library.impl(name.partition("::")[2], _refusal(name), KEY_NAME)  # type: ignore[no-untyped-call]


def _refusal(name: str) -> Any:
    def kernel(*args: object, **kwargs: object) -> NoReturn:
        raise UnsupportedOperationError(
            name.replace("::", "."),
            "collectives of torch.distributed work on memory of this process, and a remote tensor is on its node",
            "Use remote.all_reduce([t1, t2]) and its like between nodes, or fetch() first",
        )

    return kernel

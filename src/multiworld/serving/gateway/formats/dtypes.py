"""How a type of tensor elements is called, by us and in KServe's protocol."""

from __future__ import annotations

import torch

from ..error_body import HttpError

DTYPES: dict[str, torch.dtype] = {
    name: getattr(torch, name)
    for name in (
        *("bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"),
        *("float16", "bfloat16", "float32", "float64", "complex64", "complex128", "float8_e4m3fn", "float8_e5m2"),
    )
}
KSERVE: dict[str, torch.dtype] = {
    "BOOL": torch.bool,
    **{f"UINT{bits}": DTYPES[f"uint{bits}"] for bits in (8, 16, 32, 64)},
    **{f"INT{bits}": DTYPES[f"int{bits}"] for bits in (8, 16, 32, 64)},
    **{f"FP{bits}": DTYPES[f"float{bits}"] for bits in (16, 32, 64)},
    "BF16": torch.bfloat16,
}
NAMES = {dtype: name for name, dtype in DTYPES.items()}
KSERVE_NAMES = {dtype: name for name, dtype in KSERVE.items()}


def dtype_of(name: object) -> torch.dtype:
    """Return the type with that name (``"float32"``, or ``"torch.float32"``); an HttpError for others."""
    found = DTYPES.get(name.removeprefix("torch.")) if isinstance(name, str) else None
    if found is None:
        raise HttpError(400, f"unknown dtype {name!r:.80}; there are {', '.join(DTYPES)}")
    return found


def dtype_name(dtype: torch.dtype) -> str:
    """Return our name of it. Refused: a type that has none."""
    if dtype not in NAMES:
        raise HttpError(406, f"the answer has elements of type {dtype}, which this format has not")
    return NAMES[dtype]


def kserve_dtype(name: object) -> torch.dtype:
    """Return the type that KServe's protocol calls so; an HttpError for others."""
    if name == "BYTES":
        raise HttpError(400, "datatype BYTES is not served: a pipeline takes tensors of numbers")
    found = KSERVE.get(name) if isinstance(name, str) else None
    if found is None:
        raise HttpError(400, f"unknown datatype {name!r:.80}; there are {', '.join(KSERVE)}")
    return found


def kserve_name(dtype: torch.dtype) -> str:
    """Return KServe's name of it. Refused: a type that has none."""
    if dtype not in KSERVE_NAMES:
        raise HttpError(406, f"the answer has elements of type {dtype}, which KServe's protocol cannot name")
    return KSERVE_NAMES[dtype]

"""Decides whether a model's answer can be sent, and says why not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from ...channel.payload.tensors import CODES

EXPECTED = "expected a tensor, or a list or dict of tensors"


def problem_of(answer: Any) -> str | None:
    """Return why an answer cannot be sent; None if it can. A dict may have None for a tensor that is left out."""
    if isinstance(answer, torch.Tensor):
        return _problem_of_tensor("its answer", answer)
    if isinstance(answer, Mapping):
        for key in answer:
            if not isinstance(key, str) or not _is_text(key):
                return f"{EXPECTED} by names, but its answer has the key {key!r}"
        places = {f"[{key!r}]": value for key, value in answer.items() if value is not None}
    elif isinstance(answer, (list, tuple)):
        places = {f"[{place}]": value for place, value in enumerate(answer)}
    else:
        return f"{EXPECTED}, but its answer is {_described(answer)}"
    if not places:
        return f"{EXPECTED}, but its answer has no tensor"
    for place, value in places.items():
        if not isinstance(value, torch.Tensor):
            return f"{EXPECTED}, but answer{place} is {_described(value)}{_advice(place, value)}"
        problem = _problem_of_tensor(f"answer{place}", value)
        if problem:
            return problem
    return None


def _problem_of_tensor(name: str, tensor: torch.Tensor) -> str | None:
    if tensor.is_nested:
        return f"{name} is a nested tensor; pad it (to_padded_tensor)"
    if tensor.layout is not torch.strided:
        return f"{name} is a tensor of layout {tensor.layout}; make it dense (to_dense)"
    if tensor.dtype not in CODES:
        return f"{name} is a tensor of type {tensor.dtype}, which cannot be sent"
    return None


def _is_text(key: str) -> bool:
    """Return whether a key can be sent: half of a surrogate pair is no text."""
    try:
        key.encode()
    except UnicodeEncodeError:
        return False
    return True


def _described(value: Any) -> str:
    if value is None:
        return "None"
    name = type(value).__name__
    if isinstance(value, (Mapping, list, tuple)):
        kinds = sorted({type(item).__name__ for item in (value.values() if isinstance(value, Mapping) else value)})
        return f"a {name} of {', '.join(kinds) or 'nothing'} inside"
    return f"an {name}" if name[:1] in "aeiou" else f"a {name}"


def _advice(place: str, value: Any) -> str:
    if "Cache" in type(value).__name__ or "past_key_values" in place:
        return ": state between calls, which no cut keeps; turn it off (model.config.use_cache = False)"
    return ""

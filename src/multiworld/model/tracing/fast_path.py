"""Handles PyTorch's fast path for attention: how its modules are traced, and when answers are compared without it.

Outside of training, ``nn.TransformerEncoder``, its layers and ``nn.MultiheadAttention`` may compute with one fused
operation. torch.export traces the separate operations, whose results differ in the last digits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn


@contextmanager
def without_fast_path() -> Iterator[None]:
    """Compute attention as torch.export traces it. The setting concerns the whole process."""
    was = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(was)


def is_encoder(module: nn.Module) -> bool:
    """Return whether a module computes as ``nn.TransformerEncoder`` does."""
    return type(module).forward is nn.TransformerEncoder.forward


def layer_by_layer(encoder: nn.TransformerEncoder, src: torch.Tensor) -> torch.Tensor:
    """Return what the encoder returns without masks. torch.fx cannot trace how the encoder looks for masks."""
    for layer in encoder.layers:
        src = layer(src, src_mask=None, is_causal=False, src_key_padding_mask=None)
    return src if encoder.norm is None else encoder.norm(src)


class LayerByLayer(nn.TransformerEncoder):
    """An encoder that torch.fx can trace if there are no masks."""

    def forward(
        self,
        src: torch.Tensor,
        mask: torch.Tensor | None = None,
        src_key_padding_mask: torch.Tensor | None = None,
        is_causal: bool | None = None,
    ) -> torch.Tensor:
        if mask is None and src_key_padding_mask is None and not is_causal:
            return layer_by_layer(self, src)
        return super().forward(src, mask, src_key_padding_mask, is_causal)


@contextmanager
def packing_noted(module: nn.Module) -> Iterator[list[str]]:
    """Note the names of encoders that may pack rows by a padding mask. They give zeros for padding."""
    noted: list[str] = []

    def noting(name: str) -> Callable[..., None]:
        def note(encoder: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            mask = args[2] if len(args) > 2 else kwargs.get("src_key_padding_mask")
            if mask is not None and encoder.use_nested_tensor:
                noted.append(name)

        return note

    handles = [
        part.register_forward_pre_hook(noting(name), with_kwargs=True)
        for name, part in module.named_modules()
        if isinstance(part, nn.TransformerEncoder)
    ]
    try:
        yield noted
    finally:
        for handle in handles:
            handle.remove()

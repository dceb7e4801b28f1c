"""PyTorch's fast path for attention: how its modules are followed, and what their answers are compared with.

Outside of training, ``nn.TransformerEncoder``, its layers and ``nn.MultiheadAttention`` may compute with one fused
operation. torch.export follows the operations that it stands for, whose last digits are others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

__all__ = ["LayerByLayer", "is_encoder", "layer_by_layer", "packing_noted", "without_fast_path"]


@contextmanager
def without_fast_path() -> Iterator[None]:
    """Have attention computed as torch.export follows it. The setting is one for the whole process."""
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
    """Return what the encoder returns without masks; torch.fx cannot follow how it looks for them."""
    for layer in encoder.layers:
        src = layer(src, src_mask=None, is_causal=False, src_key_padding_mask=None)
    return src if encoder.norm is None else encoder.norm(src)


class LayerByLayer(nn.TransformerEncoder):
    """An encoder that torch.fx can follow if there are no masks."""

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
    """Note the names of the encoders that may pack their rows by a padding mask, and then give zeros for padding."""
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

"""The gradients of weights of one micro-batch that were put off, and what computes them later."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from .formulas import gradient_of_matrix


@dataclass(frozen=True)
class Product:
    """``rows @ matrix (+ bias)``, where ``matrix`` is ``weight`` or its transpose. ``rows``: ``[num_rows, num_in]``."""

    weight: nn.Parameter
    is_transposed: bool
    bias: nn.Parameter | None = None

    def gradients(self, rows: Tensor, gradient: Tensor) -> Iterator[tuple[nn.Parameter, Tensor]]:
        """Yield the gradients of bias and weight, as autograd computes them. ``gradient``: ``[num_rows, num_out]``."""
        if self.bias is not None and self.bias.requires_grad:
            yield self.bias, gradient.sum_to_size(self.bias.shape)
        weight = self.weight.t() if self.is_transposed else self.weight
        of_matrix = gradient_of_matrix(gradient, rows, weight.size(), weight.stride())
        yield self.weight, of_matrix.t() if self.is_transposed else of_matrix

    @property
    def parameters(self) -> tuple[nn.Parameter, ...]:
        has_bias = self.bias is not None and self.bias.requires_grad
        return (self.bias, self.weight) if has_bias and self.bias is not None else (self.weight,)


class PutOff:
    """Of one micro-batch. The backward of inputs fills it in autograd's order; ``compute`` empties it.

    Until then it holds the rows and the gradient of each product. ``is_exact``: put nothing off under
    autocast, which adds up a weight's gradients before it casts the sum; and ``compute`` raises ValueError where sums
    would have other bits than those of a whole backward.
    """

    def __init__(self, *, exact: bool = False) -> None:
        self.is_exact = exact
        self._waiting: deque[tuple[Product, Tensor, Tensor]] = deque()
        self._others: list[tuple[Tensor, Tensor]] = []

    def add(self, product: Product, rows: Tensor, gradient: Tensor) -> None:
        self._waiting.append((product, rows, gradient))

    @property
    def is_empty(self) -> bool:
        return not self._waiting

    def take_others(self, parameters: Iterable[Tensor]) -> None:
        """Keep the gradients that the backward of inputs has made itself: another micro-batch's backward comes next."""
        self._others = [(each, each.grad) for each in parameters if each.grad is not None]
        for parameter, _ in self._others:
            parameter.grad = None

    def compute(self) -> None:
        """Let autograd add everything to ``.grad``: what was put off, and what ``take_others`` has kept.

        As in a whole backward, a parameter's gradients of one micro-batch are added up first, in their order. Hooks of
        the parameter see that sum.
        """
        others, self._others = self._others, []
        for parameter, gradient in others:
            parameter.grad = gradient
        left = Counter(id(each) for product, _, _ in self._waiting for each in product.parameters)
        if self.is_exact and any(left[id(parameter)] > 1 for parameter, _ in others):
            raise ValueError(
                "exact=True: a layer uses a weight in several products and elsewhere, so that a split backward adds up "
                'its gradients in another order than a whole one. Train with job.pipeline(schedule="1f1b")'
            )
        sums: dict[int, Tensor] = {}
        with torch.no_grad():
            while self._waiting:  # each product's memory is free once it is done
                product, rows, of_result = self._waiting.popleft()
                for parameter, gradient in product.gradients(rows, of_result):
                    before = sums.pop(id(parameter), None)
                    whole = gradient if before is None else before + gradient
                    left[id(parameter)] -= 1
                    if left[id(parameter)]:
                        sums[id(parameter)] = whole
                    else:
                        _add(parameter, whole)

    @property
    def size_bytes(self) -> int:
        """Of what is held for products, each memory once."""
        tensors = [each for _, rows, gradient in self._waiting for each in (rows, gradient)]
        held = {each.untyped_storage().data_ptr(): each.untyped_storage().nbytes() for each in tensors}
        return sum(held.values())


def _add(parameter: nn.Parameter, gradient: Tensor) -> None:
    """Add it to ``.grad`` as autograd does; where nothing is there, without its copy."""
    has_hooks = any(getattr(parameter, name, True) for name in ("_backward_hooks", "_post_accumulate_grad_hooks"))
    if has_hooks or parameter.grad is not None:
        torch.autograd.backward(parameter, gradient)
    else:
        parameter.grad = gradient.to(parameter.dtype)

"""A split backward gives the gradients of a whole one, bit for bit; and what is not caught is as without it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.func import vmap
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from multiworld.training.split_backward.catching import Catching
from multiworld.training.split_backward.put_off import PutOff

IN, OUT = 24, 40
SHAPES = [(5, IN), (3, 7, IN), (2, 3, 7, IN), (1, IN), (1, 1, IN)]


def split(model: nn.Module, values: Tensor, *, exact: bool = True) -> tuple[Tensor, int]:
    """Go forward and backward in two parts; return the output and how many bytes were put off in between."""
    put_off = PutOff(exact=exact)
    with Catching(put_off):
        output: Tensor = model(values)
    torch.autograd.backward(output.float().square().mean())
    put_off.take_others(model.parameters())
    assert all(each.grad is None for each in model.parameters())
    size_bytes = put_off.size_bytes
    put_off.compute()
    assert put_off.is_empty
    return output, size_bytes


def check(make: Callable[[], nn.Module], values: Tensor, *, is_split: bool = True, exact: bool = True) -> None:
    """Assert that output and gradients have the bits of a whole backward, and that something was put off, or nothing"""
    torch.manual_seed(0)
    whole = make()
    apart = make()
    apart.load_state_dict(whole.state_dict())
    one, other = values.detach().clone(), values.detach().clone()
    if values.requires_grad:
        one.requires_grad_()
        other.requires_grad_()
    expected = whole(one)
    torch.autograd.backward(expected.float().square().mean())
    output, size_bytes = split(apart, other, exact=exact)
    assert (size_bytes > 0) == is_split
    assert output.dtype == expected.dtype
    pairs = [(output, expected), (other.grad, one.grad)]
    pairs += [(a.grad, b.grad) for a, b in zip(apart.parameters(), whole.parameters(), strict=True)]
    for ours, theirs in pairs:
        assert (ours is None) == (theirs is None)
        assert ours is None or theirs is None or torch.equal(ours, theirs)
    for a, b in zip(apart.parameters(), whole.parameters(), strict=True):
        assert a.grad is None or b.grad is None or (a.grad.dtype, a.grad.shape) == (b.grad.dtype, b.grad.shape)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("needs_gradient", [True, False])
@pytest.mark.parametrize("is_contiguous", [True, False])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", SHAPES)
def test_linear_layers(
    shape: tuple[int, ...], bias: bool, is_contiguous: bool, needs_gradient: bool, dtype: torch.dtype
) -> None:
    torch.manual_seed(1)
    values = torch.randn(shape, dtype=dtype)
    if not is_contiguous:
        values = values.transpose(-1, -2).contiguous().transpose(-1, -2)
    check(lambda: nn.Linear(IN, OUT, bias=bias, dtype=dtype), values.requires_grad_(needs_gradient))


class Conv1d(nn.Module):
    """As in Hugging Face's GPT-2."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(IN, OUT)), nn.Parameter(torch.randn(OUT))

    def forward(self, values: Tensor) -> Tensor:
        return torch.addmm(self.bias, values.view(-1, IN), self.weight).view(*values.shape[:-1], OUT)


class Tied(nn.Module):
    """One weight is used twice, and that of the embedding also in the last product."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.linear, self.norm = nn.Embedding(20, IN), nn.Linear(IN, IN), nn.LayerNorm(IN)

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.norm(self.linear(self.linear(self.embedding(tokens))))
        return functional.linear(hidden, self.embedding.weight)


class TiedTwice(Tied):
    def forward(self, tokens: Tensor) -> Tensor:
        hidden = functional.linear(super().forward(tokens), self.embedding.weight.t())
        return functional.linear(functional.linear(hidden, self.linear.weight), self.embedding.weight)


class Three(nn.Module):
    def __init__(self, around: Callable[[Callable[[Tensor], Tensor], Tensor], Tensor] | None = None) -> None:
        super().__init__()
        self.first, self.second, self.third = nn.Linear(IN, OUT), nn.Linear(OUT, IN, bias=False), nn.Linear(IN, IN)
        self.around = around

    def inner(self, values: Tensor) -> Tensor:
        output: Tensor = self.third(self.second(torch.relu(self.first(values))))
        return output

    def forward(self, values: Tensor) -> Tensor:
        return self.inner(values) if self.around is None else self.around(self.inner, values)


def frozen(*names: str) -> nn.Module:
    model = Three()
    for name in names:
        model.get_parameter(name).requires_grad_(False)
    return model


def some(*shape: int) -> Tensor:
    torch.manual_seed(1)
    return torch.randn(*shape).requires_grad_()


def test_the_products_of_hugging_faces_gpt2() -> None:
    check(Conv1d, some(3, 5, IN))


def test_weights_that_are_used_twice() -> None:
    check(Tied, torch.randint(20, (3, 5)))


def test_sums_that_would_have_another_order_are_refused_if_bits_count() -> None:
    tokens = torch.randint(20, (3, 5))
    with pytest.raises(ValueError, match='schedule="1f1b"'):
        split(TiedTwice(), tokens)
    split(TiedTwice(), tokens, exact=False)


@pytest.mark.parametrize(
    "names",
    [("first.weight",), ("third.bias",), ("second.weight", "first.bias"), ("first.weight", "first.bias")],
    ids=",".join,
)
def test_parameters_that_do_not_require_gradients(names: tuple[str, ...]) -> None:
    check(lambda: frozen(*names), some(3, 5, IN))


def test_nothing_is_put_off_where_all_is_frozen() -> None:
    check(lambda: Three().requires_grad_(False), some(3, 5, IN), is_split=False)


@pytest.mark.parametrize("exact", [True, False])
def test_autocast(exact: bool) -> None:
    def around(inner: Callable[[Tensor], Tensor], values: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return inner(values)

    check(lambda: Three(around), some(3, 5, IN), is_split=not exact, exact=exact)


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_what_is_computed_again_is_not_caught(use_reentrant: bool) -> None:
    def around(inner: Callable[[Tensor], Tensor], values: Tensor) -> Tensor:
        output: Tensor = checkpoint(inner, values, use_reentrant=use_reentrant)
        return output

    check(lambda: Three(around), some(3, 5, IN), is_split=False)
    check(lambda: nn.Sequential(nn.Linear(IN, IN), Three(around), nn.Linear(IN, 8)), some(3, 5, IN))


def test_what_torch_func_transforms_is_not_caught() -> None:
    check(lambda: Three(lambda inner, values: vmap(inner)(values)), some(3, 5, IN), is_split=False)


def test_a_weight_that_is_computed_is_not_caught() -> None:
    check(lambda: nn.utils.parametrizations.weight_norm(nn.Linear(IN, OUT)), some(5, IN), is_split=False)


def test_layers_without_products_are_not_caught() -> None:
    check(lambda: nn.Sequential(nn.LayerNorm(IN), nn.Conv1d(5, 2, 3)), some(3, 5, IN), is_split=False)


def test_layers_that_are_compiled_are_not_caught() -> None:
    model = Three()
    model.compile(backend="aot_eager")
    _, size_bytes = split(model, some(5, IN).detach())
    assert size_bytes == 0


def test_layers_are_compiled_once_for_all_micro_batches() -> None:
    compiled = []

    def backend(graph: torch.fx.GraphModule, _: object) -> Callable[..., object]:
        compiled.append(graph)
        return graph.forward

    model = torch.compile(Three(), backend=backend)
    for _ in range(4):
        with Catching(PutOff()):
            model(some(5, IN))
    assert len(compiled) == 1


def test_hooks_see_the_sum_of_a_micro_batch() -> None:
    seen: list[Tensor] = []

    def doubled(gradient: Tensor) -> Tensor:
        seen.append(gradient)
        return 2 * gradient

    def make() -> nn.Module:
        model = Three()
        model.third.weight.register_hook(doubled)  # type: ignore[no-untyped-call]
        return model

    check(make, some(3, 5, IN))
    assert len(seen) == 2  # of the whole backward, and of the split one


def test_two_micro_batches_between_both_parts_stay_apart() -> None:
    torch.manual_seed(0)
    model, put_off = Tied(), [PutOff(), PutOff()]
    batches = [torch.randint(20, (3, 5)), torch.randint(20, (3, 5))]
    for tokens, each in zip(batches, put_off, strict=True):
        with Catching(each):
            output = model(tokens)
        torch.autograd.backward(output.square().mean())
        each.take_others(model.parameters())
    for tokens, each in zip(batches, put_off, strict=True):
        model.zero_grad()
        each.compute()
        split_gradients = [parameter.grad for parameter in model.parameters()]
        model.zero_grad()
        torch.autograd.backward(model(tokens).square().mean())
        for ours, parameter in zip(split_gradients, model.parameters(), strict=True):
            assert ours is not None
            assert parameter.grad is not None
            assert torch.equal(ours, parameter.grad)

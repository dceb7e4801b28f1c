"""What wraps a model, and what has no values, is refused by name, with what to give in its place."""

import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, prune

from multiworld.model.cut import cut
from multiworld.serving import Pipeline


def plain(*wrapped: Callable[[nn.Module], nn.Module]) -> nn.Sequential:
    """Return three layers, the second of which is wrapped."""
    middle: nn.Module = nn.Linear(8, 8)
    for wrap in wrapped:
        middle = wrap(middle)
    return nn.Sequential(nn.Linear(8, 8), middle, nn.Linear(8, 8))


def hooked(layer: nn.Module) -> nn.Module:
    layer.register_forward_hook(record)
    return layer


def hooked_before(layer: nn.Module) -> nn.Module:
    layer.register_forward_pre_hook(lambda *_: None)
    return layer


def record(module: nn.Module, args: Any, output: Any) -> None:
    raise AssertionError("a hook was called")


def averaged(layer: nn.Module) -> nn.Module:
    return torch.optim.swa_utils.AveragedModel(layer)


def compiled(layer: nn.Module) -> nn.Module:
    made = torch.compile(layer, backend="eager")
    assert isinstance(made, nn.Module)
    return made


def traced(layer: nn.Module) -> nn.Module:
    trace: Callable[..., nn.Module] = torch.jit.trace
    return trace(layer, torch.ones(2, 8))


WRAPPED: dict[str, tuple[Callable[[nn.Module], nn.Module], str, str]] = {
    "compile": (compiled, "torch.compile wraps it", "_orig_mod"),
    "script": (torch.jit.script, "torch.jit compiled it", "the module that torch.jit.script or"),
    "trace": (
        traced,
        "torch.jit compiled it",
        "torch.jit.trace was called with",
    ),
    "DataParallel": (nn.DataParallel, "it wraps another module", ".module"),
    "averaged": (averaged, "it wraps another module", ".module"),
    "export": (
        lambda m: torch.export.export(m, (torch.ones(2, 8),)).module(),
        "torch.export made it",
        "that was exported",
    ),
    "lazy": (lambda _: nn.LazyLinear(8), "has no shape yet, for it is lazy", "call the model with an example first"),
    "meta": (lambda m: m.to("meta"), "is on the meta device and has no values", "model.to_empty(device='cpu')"),
    "hook": (hooked, "it has a forward hook, the function record", "remove()"),
    "hook before": (hooked_before, "it has a forward hook", "remove()"),
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:`torch.jit:FutureWarning")
@pytest.mark.parametrize("kind", WRAPPED)
def test_what_is_wrapped_is_refused_with_what_to_give_instead(kind: str) -> None:
    wrap, reason, advice = WRAPPED[kind]
    for model, place in ((wrap(nn.Linear(8, 8)), "model"), (plain(wrap), "model.1")):
        with pytest.raises(ValueError, match="cannot be cut: ") as refused:
            Pipeline.from_module(model, torch.ones(2, 8), 2)
        text = str(refused.value)
        assert reason in text
        assert advice in text
        assert place == "model" or "Sequential has a part, '1', that" in text
        if advice in ("_orig_mod", ".module"):
            assert f"{place}{'' if advice[0] == '.' else '.'}{advice}" in text


def test_sharded_parameters_are_refused() -> None:
    class FullyShardedDataParallel(nn.Linear):
        """Named as the one that needs a process group."""

    with pytest.raises(ValueError, match=r"its parameters are shards .* full_state_dict=True"):
        cut(plain(lambda _: FullyShardedDataParallel(8, 8)), torch.ones(2, 8), 2)


def test_distributed_data_parallel_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    model = object.__new__(nn.parallel.DistributedDataParallel)
    nn.Module.__init__(model)
    model.module = plain()
    with pytest.raises(ValueError, match=r"DistributedDataParallel cannot be cut: .* model\.module"):
        cut(model, torch.ones(2, 8), 2)


@pytest.mark.parametrize(
    ("what", "text"),
    [
        (torch.relu, r"got the builtin_function_or_method .*relu; .* write a module whose forward calls it"),
        (nn.Linear, "got the type Linear; make one of it"),
        (torch.func.vmap(torch.sin), "got the function .*: write a module whose forward calls it"),
        (torch.export.export(nn.Linear(8, 8), (torch.ones(2, 8),)), "got an ExportedProgram; give what its module()"),
        ({"weight": torch.ones(8)}, "got a dict"),
    ],
    ids=["function", "class", "transformed", "exported", "state"],
)
def test_what_is_no_module_is_refused(what: Any, text: str) -> None:
    with pytest.raises(TypeError, match=f"expected a torch.nn.Module, {text}"):
        cut(what, torch.ones(2, 8), 2)


def test_a_list_of_modules_is_refused_for_what_it_lacks() -> None:
    with pytest.raises(ValueError, match="ModuleList cannot be cut: it has no forward"):
        cut(nn.ModuleList([nn.Linear(8, 8)]), torch.ones(2, 8), 2)


def compiled_in_place(layer: nn.Module) -> nn.Module:
    layer.compile(backend="eager")
    return layer


def quantized(layer: nn.Module) -> nn.Module:
    made: nn.Module = torch.ao.quantization.quantize_dynamic(nn.Sequential(layer), {nn.Linear})  # type: ignore[no-untyped-call]
    return made


def pruned(layer: nn.Module) -> nn.Module:
    return prune.l1_unstructured(layer, "weight", amount=0.5)  # type: ignore[no-untyped-call, no-any-return]


FOLLOWED: dict[str, Callable[[nn.Module], nn.Module]] = {
    "compiled in place": compiled_in_place,
    "weight norm": lambda layer: parametrizations.weight_norm(layer),
    "spectral norm": lambda layer: parametrizations.spectral_norm(layer),
    "orthogonal": lambda layer: parametrizations.orthogonal(layer),
    "old weight norm": lambda layer: nn.utils.weight_norm(layer),
    "old spectral norm": lambda layer: nn.utils.spectral_norm(layer),
    "pruned": pruned,
    "quantized": quantized,
    "fx": lambda layer: torch.fx.symbolic_trace(layer),
}


@pytest.mark.filterwarnings("ignore")  # torch gives up its own quantization, and old names
@pytest.mark.parametrize("kind", FOLLOWED)
def test_what_computes_with_other_weights_than_it_keeps_is_cut(kind: str) -> None:
    model, x = plain(FOLLOWED[kind]).eval(), torch.randn(3, 8)
    with torch.no_grad():
        expected = model(x)
        parts = pickle.loads(pickle.dumps(cut(model, x, 3, repeats=1)))
        for part in parts:
            x = part(x)
    assert torch.equal(x, expected)
    assert set().union(*(part.state_dict() for part in parts)) == set(model.state_dict())


def test_a_normed_weight_is_computed_anew_of_new_weights() -> None:
    model = plain(lambda layer: parametrizations.weight_norm(layer))
    parts = cut(model, torch.randn(3, 8), 3, repeats=1)
    with torch.no_grad():
        dict(model.named_parameters())["1.parametrizations.weight.original0"].mul_(3)
        x = torch.randn(3, 8)
        expected = model(x)
        for part in parts:
            x = part(x)
    assert torch.equal(x, expected)

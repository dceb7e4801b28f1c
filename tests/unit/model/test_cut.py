"""A model that is cut into stages returns bitwise what it returned as a whole."""

import pickle
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from itertools import cycle
from multiprocessing import get_context
from typing import Any

import pytest
import torch
import torch.nn.functional as functional
from torch import nn

from multiworld.model.cut import cut, cut_parts, profile
from multiworld.model.errors import PayloadMismatchError
from multiworld.model.partition import LayerCost, partition
from multiworld.serving.cutting import stages_of
from multiworld.serving.graph import Batch, Graph


class Residual(nn.Module):
    def __init__(self, width: int, stride: int = 1) -> None:
        super().__init__()
        wide = width * stride
        self.first = nn.Conv2d(width, wide, 3, stride, 1, bias=False)
        self.norm = nn.BatchNorm2d(wide)
        self.second = nn.Conv2d(wide, wide, 3, 1, 1)
        self.skip = nn.Conv2d(width, wide, 1, stride) if stride > 1 else nn.Identity()
        self.act = nn.ReLU(inplace=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.act(self.second(self.act(self.norm(self.first(x)))) + self.skip(x))  # type: ignore[no-any-return]


class ResNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.blocks = nn.Sequential(Residual(8), Residual(8, 2), Residual(16), Residual(16, 2))
        self.head = nn.Linear(32, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        pooled = functional.adaptive_avg_pool2d(self.blocks(self.stem(images)), 1)
        return self.head(torch.flatten(pooled, 1))  # type: ignore[no-any-return]


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.heads = heads

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, length, width = x.shape
        split = self.qkv(self.norm(x)).split(width, 2)
        query, key, value = (y.view(rows, length, self.heads, width // self.heads).transpose(1, 2) for y in split)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(rows, length, width))
        return x + self.mlp(self.norm2(x))  # type: ignore[no-any-return]


class GPT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(50, 16), nn.Embedding(32, 16)
        self.blocks = nn.ModuleList(Block(16, 2) for _ in range(3))
        self.norm, self.head = nn.LayerNorm(16), nn.Linear(16, 50, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, ids: torch.Tensor, bias: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        x = self.tokens(ids) + self.positions(torch.arange(ids.size(1)))
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        return {"logits": logits if bias is None else logits + bias, "hidden": x}


class Branching(nn.Module):
    """Only torch.export can follow it: fx knows no number of dimensions. The mask depends on the length alone."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if x.dim() != 3:
            raise ValueError("expected [rows, length, 8]")
        mask = torch.arange(x.shape[1]).unsqueeze(0).unsqueeze(-1) > 1
        for layer in self.layers:
            x = torch.where(mask, torch.tanh(layer(x)), x)
        return x, x.sum(1)


class Stubborn(nn.Module):
    """Control flow on a value: traced by nobody, but it may be a layer of something else."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) if x.sum().item() > 0 else -self.layer(x)  # type: ignore[no-any-return]


def run(parts: list[nn.Module], payload: Any) -> Any:
    for part in parts:
        payload = part(payload)
        assert isinstance(payload, (torch.Tensor, dict, list))
    return payload


def ids(rows: int, length: int) -> torch.Tensor:
    return torch.randint(0, 50, (rows, length))


@pytest.mark.parametrize("num_stages", [1, 2, 3, 5])
def test_a_sequential_is_cut_anywhere(num_stages: int) -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Sequential(nn.Linear(8, 8), nn.Tanh()), nn.Linear(8, 2))
    parts = cut(model, torch.randn(3, 4), num_stages, repeats=1)
    assert len(parts) == num_stages
    for rows in (1, 7):
        payload = torch.randn(rows, 4)
        assert torch.equal(run(parts, payload), model(payload))


def test_skip_connections_go_along() -> None:
    model = ResNet().eval()
    for num_stages in (2, 5):
        parts = cut(model, torch.randn(2, 3, 16, 16), num_stages, repeats=1)
        images = torch.randn(5, 3, 24, 24)
        assert torch.equal(run(parts, images), model(images))


def test_a_gpt_runs_in_parts_at_any_length_and_returns_a_dict() -> None:
    model = GPT()
    parts = cut(model, ids(2, 9), 4, repeats=1)
    for rows, length in ((2, 9), (1, 3), (5, 32)):
        payload = ids(rows, length)
        result, whole = run(parts, payload), model(payload)
        assert set(result) == {"logits", "hidden"}
        assert all(torch.equal(result[name], whole[name]) for name in whole)


def test_what_goes_over_a_cut_has_the_requests_rows_in_front() -> None:
    parts = cut(GPT(), ids(3, 9), 6, repeats=1)
    payload: Any = ids(4, 9)
    for part in parts:
        payload = part(payload)
        tensors = payload.values() if isinstance(payload, dict) else [payload]
        assert all(len(tensor) == 4 for tensor in tensors)


@pytest.mark.parametrize(
    "payload", [{"ids": ids(2, 5), "bias": torch.randn(50)}, [ids(2, 5), torch.randn(50)]], ids=["dict", "list"]
)
def test_a_request_of_several_tensors_fills_the_parameters(payload: Any) -> None:
    model = GPT()
    parts = cut(model, payload, 2, repeats=1)
    whole = model(**payload) if isinstance(payload, dict) else model(*payload)
    assert torch.equal(run(parts, payload)["logits"], whole["logits"])


def test_weights_keep_their_names_and_are_shared_with_the_model() -> None:
    model = GPT()
    parts = cut(model, ids(2, 5), 3, repeats=1)
    assert set().union(*(part.state_dict() for part in parts)) == set(model.state_dict())
    with torch.no_grad():
        model.head.weight.add_(1.0)
    payload = ids(2, 5)
    assert torch.equal(run(parts, payload)["logits"], model(payload)["logits"])


def test_a_part_runs_on_the_device_of_its_payload() -> None:
    parts = cut(Branching(), torch.randn(2, 5, 8), 2, repeats=1)
    payload: Any = torch.randn(2, 5, 8, device="meta")
    for part in parts:
        payload = part.to("meta")(payload)
    assert [value.device.type for value in payload] == ["meta", "meta"]


@pytest.mark.parametrize("kind", ["gpt2", "llama", "resnet"])
def test_hugging_face_models_are_cut(kind: str) -> None:
    transformers = pytest.importorskip("transformers")
    sizes = {"num_hidden_layers": 3, "num_attention_heads": 2, "vocab_size": 50, "use_cache": False}
    tokens = {"bos_token_id": 1, "eos_token_id": 2}
    if kind == "resnet":
        config = transformers.ResNetConfig(embedding_size=8, hidden_sizes=[8, 8, 16, 16], depths=[1, 1, 1, 1])
        model = transformers.ResNetForImageClassification(config)
        example, other = ({"pixel_values": torch.randn(rows, 3, size, size)} for rows, size in ((2, 32), (3, 64)))
    else:
        config = transformers.AutoConfig.for_model(kind, hidden_size=16, intermediate_size=32, **sizes, **tokens)
        model = transformers.AutoModelForCausalLM.from_config(config)
        example, other = {"input_ids": ids(2, 9)}, {"input_ids": ids(4, 6)}
    model.eval()
    parts = pickle.loads(pickle.dumps(cut(model, example, 3, repeats=1)))
    with torch.no_grad():
        assert torch.equal(run(parts, other)["logits"], model(**other).logits)


class Angles(nn.Module):
    """Keeps a tensor that is no weight, as rotary embeddings do."""

    angles: torch.Tensor
    scale: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.register_buffer("angles", torch.arange(4.0), persistent=False)
        self.register_buffer("scale", torch.tensor(0.5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.dim() != 2:
            raise ValueError
        x = self.first(x) * torch.cos(self.angles) * self.scale
        return self.second(x) + torch.cos(self.angles) * self.scale  # type: ignore[no-any-return]


def test_what_is_no_weight_stays_none() -> None:
    model = Angles()
    parts = cut(model, torch.randn(2, 4), 2, repeats=1)
    payload = torch.randn(3, 4)
    for copy in (parts, pickle.loads(pickle.dumps(parts))):
        assert set().union(*(part.state_dict() for part in copy)) == set(model.state_dict())
        assert torch.equal(run(copy, payload), model(payload))
        assert not any(part.training for part in copy)


def test_parts_can_be_sent_to_other_processes() -> None:
    model = GPT()
    parts = pickle.loads(pickle.dumps(cut(model, ids(2, 5), 3, repeats=1)))
    payload = ids(4, 7)
    assert torch.equal(run(parts, payload)["logits"], model(payload)["logits"])


def test_a_model_that_fx_cannot_follow_is_exported_with_free_sizes() -> None:
    model = Branching()
    parts = cut(model, torch.randn(2, 5, 8), 3, repeats=1)
    for shape in ((2, 5, 8), (4, 9, 8)):
        payload = torch.randn(shape)
        result, whole = run(parts, payload), model(payload)
        assert isinstance(result, list)
        assert all(map(torch.equal, result, whole))


def test_a_layer_that_cannot_be_traced_stays_whole() -> None:
    model = nn.Sequential(nn.Linear(8, 8), Stubborn(), Stubborn(), nn.Linear(8, 8))
    parts = cut(model, torch.randn(2, 8), 4, repeats=1)
    payload = -torch.rand(3, 8)
    assert torch.equal(run(parts, payload), model(payload))


def test_the_model_is_in_evaluation_mode() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Linear(4, 4))
    parts = cut(model, torch.randn(2, 4), 2, repeats=1)
    payload = torch.randn(2, 4)
    assert torch.equal(run(parts, payload), run(parts, payload))


class Random(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(self.layer(x) + torch.rand(4))  # type: ignore[no-any-return]


def test_what_does_not_return_the_same_twice_is_refused() -> None:
    with pytest.raises(ValueError, match=r"Random cannot be cut: forward draws random numbers \(aten.rand\)"):
        cut(Random(), torch.randn(2, 4), 2, repeats=1)


def test_errors_say_what_cannot_be_cut_and_why() -> None:
    with pytest.raises(ValueError, match=r"Stubborn cannot be cut into 2 stages .*trace_by_fx"):
        cut(Stubborn(), torch.randn(2, 8), 2, repeats=1)
    with pytest.raises(ValueError, match=r"cannot be cut into 9 stages .*can be cut at 2 places"):
        cut(nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2)), torch.randn(2, 2), 9, repeats=1)
    with pytest.raises(TypeError, match=r"GPT.forward\(ids, bias\) cannot take an example of \{'bias': Tensor\}"):
        cut(GPT(), {"bias": torch.randn(50)}, 2)
    with pytest.raises(TypeError, match="not str"):
        cut(GPT(), "text", 2)


def test_the_profile_counts_weights_and_what_goes_on() -> None:
    costs = profile(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2, bias=False)), torch.randn(3, 4))
    assert [cost.name for cost in costs] == ["0", "1", "2"]
    assert [cost.param_bytes for cost in costs] == [4 * (32 + 8), 0, 4 * 16]
    assert [cost.out_bytes for cost in costs] == [3 * 8 * 4, 3 * 8 * 4, 0]
    assert all(cost.seconds > 0 for cost in costs)


class Clock:
    """Goes on only where a layer says so, so that no load on the machine counts."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 0.0
        monkeypatch.setattr("time.perf_counter", lambda: self.now_s)


class Timed(nn.Linear):
    """Lets time ``go_on`` with each call; it is left whole by fx."""

    def __init__(self, go_on: Callable[[], None]) -> None:
        super().__init__(8, 8)
        self._go_on = go_on

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        if rows.isnan().any():  # what a value decides, fx cannot follow
            raise ValueError("not a number")
        self._go_on()
        return super().forward(rows)


@pytest.mark.parametrize("stalls_s", [[0], [0, 1, 1, 1, 1]], ids=["idle machine", "busy machine"])
def test_a_cut_balances_what_was_measured(monkeypatch: pytest.MonkeyPatch, stalls_s: list[float]) -> None:
    clock = Clock(monkeypatch)

    def taking_20_ms(stalls_s: list[float]) -> Callable[[], None]:
        stalls = cycle(stalls_s)

        def go_on() -> None:
            clock.now_s += 0.02 + next(stalls)

        return go_on

    layers = [Timed(taking_20_ms([0])) for _ in range(3)] + [Timed(taking_20_ms(stalls_s))]
    parts = cut(nn.Sequential(nn.ReLU(), *layers, nn.ReLU()), torch.randn(4, 8), 2)
    assert [sum(name.endswith("weight") for name in part.state_dict()) for part in parts] == [2, 2]


def test_stages_of_a_model_are_a_pipeline() -> None:
    model = ResNet().eval()
    stages = stages_of(
        model, torch.randn(2, 3, 8, 8), 3, replicas=[1, 2, 1], name="cnn", batch=Batch(max_size=4), idempotent=True
    )
    graph = Graph(stages)
    assert graph.order == ("cnn0", "cnn1", "cnn2")
    assert [stage.replicas for stage in graph] == [1, 2, 1]
    payload = torch.randn(2, 3, 8, 8)
    assert torch.equal(run([stage.work for stage in graph], payload), model(payload))
    with pytest.raises(ValueError, match=r"replicas=\[1\] has 1 numbers for 2 stages"):
        stages_of(model, payload, 2, replicas=[1])


def costs(*seconds: float, out_bytes: int = 0) -> list[LayerCost]:
    return [LayerCost(f"layer{number}", cost, 10, out_bytes) for number, cost in enumerate(seconds)]


def test_the_slowest_stage_is_as_fast_as_can_be() -> None:
    plan = partition(costs(1, 1, 1, 3, 1, 1), 3)
    assert plan.starts == (0, 3, 4)
    assert plan.seconds == (3, 3, 2)
    assert plan.slowest_s == 3


def test_cuts_go_where_little_is_sent() -> None:
    chain = [LayerCost("a", 1, 0, 10), LayerCost("b", 1, 0, 1), LayerCost("c", 1, 0, 10), LayerCost("d", 1)]
    assert partition(chain, 2, seconds_per_byte=0.1).starts == (0, 2)
    heavy = [LayerCost("a", 1, 0, 100), LayerCost("b", 1, 0, 1), LayerCost("c", 2)]
    assert partition(heavy, 2, seconds_per_byte=1).starts == (0, 2)


def test_memory_bounds_what_a_stage_holds() -> None:
    chain = [LayerCost("a", 1, 50), LayerCost("b", 1, 50), LayerCost("c", 9, 10), LayerCost("d", 1, 10)]
    assert partition(chain, 2, max_param_bytes=70).starts == (0, 1)
    with pytest.raises(ValueError, match="have 120, the largest 50"):
        partition(chain, 2, max_param_bytes=60)


def test_memory_is_counted_once_for_what_layers_of_a_stage_share() -> None:
    shared = {7: 40}
    chain = [
        LayerCost("a", 1, 50, shared_bytes=shared),
        LayerCost("b", 1, 50, shared_bytes=shared),
        LayerCost("c", 1, 10),
        LayerCost("d", 1, 50, shared_bytes=shared),
    ]
    assert partition(chain, 2, max_param_bytes=70).starts == (0, 2)
    with pytest.raises(ValueError, match="have 80, the largest 50"):
        partition(chain, 2, max_param_bytes=50)


class Tied(nn.Module):
    """As torch.export gives it, all its weights come first."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8, bias=False) for _ in range(4))
        self.layers[3] = self.layers[0]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.dim() != 2:
            raise ValueError
        for layer in self.layers:
            x = layer(x)
        return x


def test_a_stage_holds_the_weights_that_it_uses() -> None:
    costs = profile(Tied(), torch.randn(2, 8), repeats=1)
    assert [cost.param_bytes for cost in costs] == [256] * 4
    assert [list(cost.shared_bytes.values()) for cost in costs] == [[256], [], [], [256]]
    parts = cut(Tied(), torch.randn(2, 8), 2, repeats=1, max_param_bytes=512)
    assert [len(set(map(id, part.parameters()))) for part in parts] == [2, 2]


@pytest.mark.parametrize("num_stages", [0, 4])
def test_more_stages_than_layers_are_refused(num_stages: int) -> None:
    with pytest.raises(ValueError, match=f"cannot cut 3 layers into {num_stages} stages"):
        partition(costs(1, 1, 1), num_stages)


class Turned(nn.Module):
    """Between its first and its last operation rows are the second dimension."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 8)
        self.layers = nn.Sequential(*(nn.TransformerEncoderLayer(8, 2, 16) for _ in range(2)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.layers(self.first(x).transpose(0, 1)).transpose(0, 1))  # type: ignore[no-any-return]


def test_where_requests_are_batched_a_cut_goes_along_rows_only() -> None:
    model, example = Turned(), torch.randn(2, 5, 8)
    assert len(cut(model, example, 4, repeats=1)) == 4
    with pytest.raises(ValueError, match=r"of \d+ where requests can be batched"):
        stages_of(model, example, 4, batch=Batch(max_size=8))
    with pytest.raises(ValueError, match=r"of \d+ where requests can be batched"):  # rows are as many as steps
        stages_of(model, torch.randn(5, 5, 8), 4, batch=Batch(max_size=8))


def test_parts_whose_requests_cannot_be_concatenated_never_get_batches() -> None:
    batches = [stage.batch for stage in stages_of(Turned(), torch.randn(2, 5, 8), 4)]
    assert batches[1:3] == [False, False], "wherever the first and the last cut are"
    assert [stage.batch for stage in stages_of(ResNet(), torch.randn(2, 3, 8, 8), 3)] == [None] * 3
    assert [stage.batch for stage in stages_of(ResNet(), torch.randn(2, 3, 8, 8), 3, batch=False)] == [False] * 3


class Lambda(nn.Module):
    def __init__(self, call: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.call = call

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.call(x)


MIXING: dict[str, Callable[[], nn.Module]] = {
    "attention over the first dimension": lambda: nn.TransformerEncoderLayer(8, 2, 16),
    "softmax": lambda: nn.Softmax(0),
    "sum of earlier rows": lambda: Lambda(lambda x: x.cumsum(0)),
    "sum of later rows": lambda: Lambda(lambda x: x.flip(0).cumsum(0).flip(0)),
    "mean": lambda: Lambda(lambda x: x - x.mean(0)),
    "largest": lambda: Lambda(lambda x: x / x.abs().max()),
    "order": lambda: Lambda(lambda x: x.flip(0)),
    "pairs": lambda: Lambda(lambda x: x.view(-1, 2, 2, 8).flip(1).flatten(0, 1)),
}


@pytest.mark.parametrize("kind", MIXING)
@pytest.mark.parametrize("example", [torch.randn(4, 2, 8), torch.zeros(4, 2, 8)], ids=["random", "zeros"])
def test_rows_that_depend_on_each_other_are_not_batched(kind: str, example: torch.Tensor) -> None:
    parts = cut_parts(nn.Sequential(nn.Linear(8, 8), MIXING[kind](), nn.Linear(8, 8)), example, 2, repeats=1)
    assert not all(part.by_rows for part in parts)


def test_rows_that_do_not_depend_on_each_other_are_batched() -> None:
    layers = [nn.TransformerEncoderLayer(8, 2, 16, batch_first=True) for _ in range(2)]
    for model, example in (
        (nn.Sequential(nn.Linear(8, 8), *layers), torch.zeros(3, 2, 8)),
        (nn.Sequential(nn.Linear(8, 8), nn.ReLU(inplace=True), nn.Linear(8, 8)).double(), torch.randn(1, 8).double()),
        (nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 8)).bfloat16(), torch.randn(2, 8).bfloat16()),
        (GPT(), torch.zeros(2, 9, dtype=torch.long)),
    ):
        assert all(part.by_rows for part in cut_parts(model, example, 2, repeats=1))


class Tables(nn.Module):
    """Its columns are indices of tables of several sizes, and may be floats."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(size, 8) for size in (3, 5, 7))
        self.last = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first, second, third = (table(x[:, place].long()) for place, table in enumerate(self.tables))
        return self.last(first * second + third)  # type: ignore[no-any-return]


@pytest.mark.parametrize("dtype", [torch.long, torch.float32])
def test_indices_of_tables_of_their_own_are_rows(dtype: torch.dtype) -> None:
    example = torch.tensor([[2, 4, 6], [1, 0, 5], [0, 3, 6]], dtype=dtype)
    assert all(part.by_rows for part in cut_parts(Tables(), example, 2, repeats=1))


class Rewritten(nn.Module):
    """What has rows at first is written into."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.first(x)
        copy = hidden.clone()
        copy.copy_(hidden.softmax(0))
        return self.last(hidden.relu()) + copy  # type: ignore[no-any-return]


def test_rows_into_which_others_are_written_are_not_batched() -> None:
    parts = cut_parts(Rewritten(), torch.randn(3, 8), 4, repeats=1)
    assert not any(part.by_rows for part in parts[1:])


class Shifted(nn.Module):
    """Writes into what was made of sizes, into a buffer and into what was made of one, through views."""

    start: torch.Tensor

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.first, self.second, self.last = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)
        self.register_buffer("start", torch.zeros(3, 5, 8), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.dim() != 3:
            raise ValueError
        hidden = self.first(x)
        if self.kind == "zeros":
            shifted = torch.zeros(x.shape[0], x.shape[1], 8)
            shifted[:, 1:] = hidden[:, 1:]
        elif self.kind == "part of zeros":
            shifted = torch.zeros(x.shape[0], x.shape[1], 8).transpose(0, 1)
            torch.neg(hidden[:, 1], out=shifted[1])
            shifted = shifted.transpose(0, 1)
        elif self.kind == "mask":
            shifted = torch.zeros(1, x.shape[1], 8)
            shifted[:, 0] = 1
        else:
            shifted = self.start.clone()
            shifted.view(-1).copy_(hidden.reshape(-1))
        return self.last(self.second(hidden) + shifted) + shifted.cos()  # type: ignore[no-any-return]


@pytest.mark.parametrize("kind", ["zeros", "part of zeros", "mask", "buffer"])
def test_what_is_written_into_goes_along(kind: str) -> None:
    model = Shifted(kind)
    num_places = len(profile(model, torch.randn(3, 5, 8), repeats=1))
    for num_stages in (4, num_places):
        parts = pickle.loads(pickle.dumps(cut(model, torch.randn(3, 5, 8), num_stages, repeats=1)))
        payload = torch.randn(3, 5, 8)
        with torch.no_grad():
            assert torch.equal(run(parts, payload), model(payload))


class Views(nn.Module):
    """Changes a tensor in place whose view is still to be used."""

    def __init__(self, inplace: nn.Module) -> None:
        super().__init__()
        self.first, self.last, self.inplace = nn.Linear(8, 8), nn.Linear(8, 8), inplace

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.first(x)
        view = hidden.view(-1, 2, 4)
        return self.last(self.inplace(hidden)) + view.flatten(1)  # type: ignore[no-any-return]


@pytest.mark.parametrize("inplace", [nn.ReLU(inplace=True), Lambda(lambda x: x.relu_())], ids=["module", "method"])
def test_tensors_that_share_what_is_written_into_stay_together(inplace: nn.Module) -> None:
    model, payload = Views(inplace), torch.randn(3, 8)
    parts = cut(model, payload, len(profile(model, payload, repeats=1)), repeats=1)
    assert torch.equal(run(parts, payload), model(payload))


class Accumulated(nn.Module):
    """Writes into a tensor that fx takes for a constant, which so keeps what was written."""

    start: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)
        self.register_buffer("start", torch.zeros(3, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden, sums = self.first(x), self.start.clone()
        sums.view(-1).add_(hidden.view(-1))
        return self.last(self.second(hidden) + sums) + sums.cos()  # type: ignore[no-any-return]


def test_a_model_that_fx_follows_wrongly_is_exported() -> None:
    model, payload = Accumulated(), torch.randn(3, 8)
    assert torch.equal(run(cut(model, torch.randn(3, 8), 4, repeats=1), payload), model(payload))


class Mixed(nn.Module):
    """Its second layer computes with other types than the rest."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.dim() != 2:
            raise ValueError
        x = self.layers[0](x)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            x = self.layers[1](x)
            with torch.autocast("cpu", enabled=False):
                x = torch.sin(x)
        return self.layers[2](x.float())  # type: ignore[no-any-return]


def test_a_model_is_cut_around_where_types_are_mixed() -> None:
    model = Mixed()
    parts = pickle.loads(pickle.dumps(cut(model, torch.randn(2, 8), 3, repeats=1)))
    assert set().union(*(part.state_dict() for part in parts)) == set(model.state_dict())
    payload = torch.randn(3, 8)
    with torch.no_grad():
        assert torch.equal(run(parts, payload), model(payload))


class Choosing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.dim() != 2:
            raise ValueError
        x = self.first(x)
        return self.last(torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,)))  # type: ignore[no-any-return]


def cut_that_chooses() -> None:
    with pytest.raises(ValueError, match=r"Choosing cannot be cut into 2 stages.*cond has operations of its own"):
        cut(Choosing(), torch.randn(2, 8), 2, repeats=1)


def references(value: object) -> int:
    return sys.getrefcount(value)


@pytest.fixture(scope="module")
def own_process() -> Iterator[ProcessPoolExecutor]:
    """A process for what uses PyTorch's compiler: a failure would spoil the tests after it."""
    with ProcessPoolExecutor(1, get_context("spawn")) as process:
        yield process


def test_a_model_whose_values_choose_among_graphs_is_not_cut(own_process: ProcessPoolExecutor) -> None:
    """PyTorch's compiler, with which such a graph is run, is not left hooked into the interpreter.

    It counts references otherwise then.
    """
    before = own_process.submit(references_of_one).result()
    own_process.submit(cut_that_chooses).result()
    assert own_process.submit(references_of_one).result() == before


def references_of_one() -> int:
    return references(torch.empty(1))


class Compiled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(doubled(x))  # type: ignore[no-any-return]


num_compiled = 0


def counting(graph: torch.fx.GraphModule, _: list[torch.Tensor]) -> Callable[..., Any]:
    global num_compiled
    num_compiled += 1
    return graph.forward


def doubled(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def times_compiled_after_a_cut() -> int:
    global doubled
    doubled = torch.compile(doubled, backend=counting)
    with suppress(ValueError):
        cut(Compiled(), torch.randn(2, 8), 2, repeats=1)
    with torch.no_grad():
        Compiled()(torch.randn(2, 8))
    return num_compiled


def test_what_the_caller_has_compiled_is_compiled_after_a_cut_as_before(own_process: ProcessPoolExecutor) -> None:
    """Run under observation, PyTorch would mark it as not to be compiled, for good."""
    assert own_process.submit(times_compiled_after_a_cut).result() > 0


class Summed(nn.Module):
    """Its answer has no rows."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.first(x)).sum(0)  # type: ignore[no-any-return]


def test_a_part_is_not_batched_whose_answer_has_no_rows() -> None:
    assert [stage.batch for stage in stages_of(Summed(), torch.randn(2, 8), 2)] == [None, False]


def test_where_requests_are_batched_an_answer_without_rows_is_refused() -> None:
    with pytest.raises(ValueError, match=r"Summed cannot be cut into 2 stages .*its answers have no rows in front"):
        stages_of(Summed(), torch.randn(2, 8), 2, batch=Batch(max_size=8))


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        return self.last(self.first(x).relu() * scale)  # type: ignore[no-any-return]


def test_a_part_is_not_batched_of_whose_payload_a_tensor_has_no_rows() -> None:
    batch, example = Batch(max_size=8), {"x": torch.randn(2, 8), "scale": torch.randn(8)}
    assert [stage.batch for stage in stages_of(Scaled(), example, 2, batch=batch)] == [False, batch]
    with pytest.raises(ValueError, match=r"Scaled cannot be cut into 1 stages .*its inputs have no rows in front"):
        stages_of(Scaled(), example, 1, batch=batch)


@pytest.mark.parametrize("scale", [torch.tensor(2.0), torch.randn(8)], ids=["no rows", "other rows"])
def test_later_parts_are_batched_whichever_tensor_of_a_request_has_rows(scale: torch.Tensor) -> None:
    example = {"scale": scale, "x": torch.randn(2, 8)}
    assert [part.by_rows for part in cut_parts(Scaled(), example, 2, repeats=1)] == [False, True]


def test_one_row_is_taken_whichever_tensor_of_a_request_has_rows() -> None:
    class Checked(Flattened):
        def forward(self, scale: torch.Tensor, x: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
            if x.dim() != 3:
                raise ValueError
            return super().forward(x * scale)

    model, scale = Checked(steps_first=False), torch.randn(8)
    for rows in (1, 2):
        parts = cut(model, {"scale": scale, "x": torch.randn(rows, 5, 8)}, 2, repeats=1)
        for payload in (torch.randn(1, 5, 8), torch.randn(3, 5, 8)):
            assert torch.equal(run(parts, {"scale": scale, "x": payload}), model(scale, payload))


def test_an_example_is_measured_by_its_names_whatever_their_order() -> None:
    model, example = Scaled(), {"scale": torch.randn(2, 1), "x": torch.randn(2, 8)}
    parts = cut(model, example, 2, repeats=1)
    assert torch.equal(run(parts, example), model(**example))


class Cropped(nn.Module):
    def __init__(self, crop: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.crop = crop
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.dim() != 3:  # which a symbolic trace cannot follow
            raise ValueError
        return self.last(self.first(self.crop(x)))  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("crop", "right", "wrong", "text"),
    [
        (lambda x: x[:, -16:] if x.shape[1] > 16 else x, 16, 17, r"shape\[1\] <= 16, got \[3, 17, 8\]"),
        (lambda x: x[:, :-1] if x.shape[1] % 2 else x, 10, 5, r"shape\[1\] % 2 == 0, got \[3, 5, 8\]"),
        (lambda x: x[:, :-1] if x.shape[1] == 16 else x, 15, 16, r"shape\[1\] != 16"),
        (lambda x: x[:, :-1] if x.shape[1] // 2 > 7 else x, 15, 16, r"shape\[1\] // 2 <= 7"),
    ],
    ids=["more", "odd", "equal", "half"],
)
def test_sizes_with_which_a_model_would_go_another_way_are_refused(
    crop: Callable[[torch.Tensor], torch.Tensor], right: int, wrong: int, text: str
) -> None:
    model = Cropped(crop)
    cropped = cut(model, torch.randn(2, 4, 8), 2, repeats=1)
    for parts in (cropped, pickle.loads(pickle.dumps(cropped))):
        for rows in (1, 3):
            payload = torch.randn(rows, right, 8)
            assert torch.equal(run(parts, payload), model(payload))
        with pytest.raises(PayloadMismatchError, match=text):
            run(parts, torch.randn(3, wrong, 8))


@pytest.mark.parametrize("number_of", [len, lambda x: x.shape[0]], ids=["fixed", "free"])
def test_a_model_that_depends_on_the_number_of_rows_is_not_batched(number_of: Callable[[torch.Tensor], int]) -> None:
    model = Cropped(lambda x: x * 2 if number_of(x) > 16 else x)
    assert not any(part.by_rows for part in cut_parts(model, torch.randn(2, 4, 8), 2, repeats=1))


def test_two_inputs_of_other_sizes_than_each_others_are_refused() -> None:
    class Pair(Cropped):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
            return super().forward(x + y)

    model = Pair(lambda x: x)
    parts = cut(model, [torch.randn(2, 4, 8), torch.randn(2, 4, 8)], 2, repeats=1)
    payload = [torch.randn(3, 7, 8), torch.randn(3, 7, 8)]
    assert torch.equal(run(parts, payload), model(*payload))
    with pytest.raises(PayloadMismatchError, match=r"x.shape\[1\] == y.shape\[1\], got \[3, 7, 8\], \[3, 1, 8\]"):
        run(parts, [payload[0], payload[1][:, :1]])


def test_what_the_example_did_not_have_is_refused() -> None:
    for payload, wrong, text in (
        ({"ids": ids(2, 5), "bias": torch.randn(50)}, {"ids": ids(2, 5)}, "expected the tensors ids, bias, got ids"),
        ([ids(2, 5), torch.randn(50)], [ids(2, 5)] * 3, "expected a list of 2 tensors, got 3"),
        (ids(2, 5), {"ids": ids(2, 5)}, "expected a tensor, got a dict"),
    ):
        part = pickle.loads(pickle.dumps(cut(GPT(), payload, 2, repeats=1)[0]))
        with pytest.raises(PayloadMismatchError, match=text):
            part(wrong)


class Stepping(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell, self.last = nn.GRUCell(8, 8), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        state = torch.zeros_like(x[:, 0])
        for step in range(x.shape[1]):
            state = self.cell(x[:, step], state)
        return self.last(state)  # type: ignore[no-any-return]


def test_sizes_that_a_model_was_followed_for_are_the_only_ones_it_takes() -> None:
    model = Stepping()
    parts = cut(model, torch.randn(2, 5, 8), 2, repeats=1)
    payload = torch.randn(3, 5, 8)
    assert torch.equal(run(parts, payload), model(payload))
    with pytest.raises(PayloadMismatchError, match=r"cut for shape \[any, 5, 8\], got \[3, 7, 8\]"):
        run(parts, torch.randn(3, 7, 8))


def test_a_model_that_was_followed_for_one_row_takes_more() -> None:
    model = Stepping()
    parts = cut(model, torch.randn(1, 5, 8), 2, repeats=1)
    payload = torch.randn(3, 5, 8)
    assert torch.equal(run(parts, payload), model(payload))


class Flattened(nn.Module):
    def __init__(self, steps_first: bool) -> None:
        super().__init__()
        self.steps_first = steps_first
        self.first, self.middle, self.last = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.steps_first:
            flat: torch.Tensor = self.last(self.middle(self.first(x.transpose(0, 1).flatten(0, 1))))
            return flat.view(5, -1, 8).transpose(0, 1)
        return self.last(self.middle(self.first(x.flatten(0, 1)))).view(-1, 5, 8)  # type: ignore[no-any-return]


@pytest.mark.parametrize("steps_first", [False, True])
def test_what_is_made_of_rows_and_steps_is_not_rows(steps_first: bool) -> None:
    model, example = Flattened(steps_first), torch.randn(2, 5, 8)
    assert len(cut(model, example, 2, repeats=1)) == 2
    with pytest.raises(ValueError, match=r"where requests can be batched"):
        stages_of(model, example, 2, batch=Batch(max_size=8))


def test_one_row_is_taken_by_a_model_that_was_followed_for_more() -> None:
    class Checked(Flattened):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if x.dim() != 3:
                raise ValueError
            return super().forward(x)

    for steps_first in (False, True):
        model = Checked(steps_first)
        parts = cut(model, torch.randn(2, 5, 8), 2, repeats=1)
        for rows in (1, 3):
            payload = torch.randn(rows, 5, 8)
            assert torch.equal(run(parts, payload), model(payload))
        with pytest.raises(PayloadMismatchError, match="the model was cut for inputs of which holds"):
            run(parts, torch.randn(3, 4, 8))


def test_an_example_of_more_tensors_than_a_model_takes_is_refused() -> None:
    with pytest.raises(TypeError, match="cannot take an example"):
        cut(Stepping(), [torch.randn(2, 5, 8), torch.randn(2)], 2, repeats=1)


class WithState(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> Any:
        hidden = self.first(x)
        return self.last(hidden), (hidden, hidden)


def test_a_model_whose_answers_cannot_be_served_is_not_cut() -> None:
    with pytest.raises(ValueError, match="WithState cannot be served as it is: expected a tensor, or a list or dict"):
        cut(WithState(), torch.randn(2, 8), 2, repeats=1)


class Between(nn.Module):
    """Its layers give each other what a function makes of a tensor and another one makes a tensor of again."""

    def __init__(self, there: Callable[[torch.Tensor], torch.Tensor], back: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.there, self.back = there, back
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.back(self.there(self.first(x)).clone()))  # type: ignore[no-any-return]


@pytest.mark.filterwarnings("ignore")  # torch will give up quantized types
@pytest.mark.parametrize(
    ("there", "back"),
    [
        (lambda x: torch.quantize_per_tensor(x, 0.1, 10, torch.quint8), lambda x: x.dequantize()),
        (lambda x: x.relu().to_sparse(), lambda x: x.to_dense()),
    ],
    ids=["quantized", "sparse"],
)
def test_a_cut_goes_where_tensors_can_be_sent(there: Callable[..., torch.Tensor], back: Any) -> None:
    model, payload = Between(there, back), torch.randn(2, 8)
    with pytest.raises(ValueError, match=r"trace_by_fx: can be cut at [23] places"):
        cut(model, payload, 7, repeats=1)
    for part in cut_parts(model, payload, 3, repeats=1):
        assert part.by_rows
        payload = part.module(payload)
        assert payload.layout == torch.strided
        assert payload.dtype == torch.float32


def test_a_forward_that_names_no_parameters_is_refused_as_such() -> None:
    class Wrapping(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(8, 8)

        def forward(self, *args: torch.Tensor, **named: torch.Tensor) -> torch.Tensor:
            return self.inner(*args, **named)  # type: ignore[no-any-return]

    with pytest.raises(
        TypeError, match=r"Wrapping.forward\(\*args: .* names no parameters .* the module that it wraps"
    ):
        cut(Wrapping(), torch.randn(2, 8), 1)


def encoder(num_layers: int = 2, *, batch_first: bool = True, **options: Any) -> nn.TransformerEncoder:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=batch_first, **options)
    return nn.TransformerEncoder(layer, num_layers, norm=nn.LayerNorm(8)).eval()


class Encoding(nn.Module):
    def __init__(self, encoder: nn.Module, *, is_followed: bool) -> None:
        super().__init__()
        self.tokens, self.encoder, self.head = nn.Embedding(50, 8), encoder, nn.Linear(8, 4)
        self.is_followed = is_followed

    def forward(self, ids: torch.Tensor, padding: torch.Tensor | None = None) -> torch.Tensor:
        if not self.is_followed and ids.dim() != 2:
            raise ValueError
        hidden = self.tokens(ids)
        hidden = self.encoder(hidden) if padding is None else self.encoder(hidden, src_key_padding_mask=padding)
        return self.head(hidden)  # type: ignore[no-any-return]


@pytest.fixture(params=[True, False], ids=["fast path", "no fast path"])
def fast_path(request: pytest.FixtureRequest) -> Iterator[bool]:
    was = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(request.param)
    yield request.param
    assert torch.backends.mha.get_fastpath_enabled() == request.param
    torch.backends.mha.set_fastpath_enabled(was)


@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
@pytest.mark.parametrize("batch_first", [True, False])
def test_an_encoder_is_cut_between_its_layers(fast_path: bool, batch_first: bool) -> None:
    models: list[tuple[nn.Module, Callable[[int], torch.Tensor]]] = [
        (encoder(3, batch_first=batch_first), lambda rows: torch.randn(rows, 5, 8)),
        (Encoding(encoder(3, batch_first=batch_first), is_followed=True).eval(), lambda rows: ids(rows, 5)),
    ]
    for model, make in models:
        with torch.no_grad():
            parts = pickle.loads(pickle.dumps(cut(model, make(2), 4, repeats=1)))
            for rows in (1, 3):
                payload = make(rows)
                assert torch.equal(run(parts, payload), model(payload))


def test_attention_that_is_followed_by_export_answers_to_within_rounding(fast_path: bool) -> None:
    layer = encoder().layers[0]
    model = Encoding(encoder(), is_followed=False).eval()
    for whole, example in ((layer, torch.randn(2, 5, 8)), (model, ids(2, 5))):
        assert isinstance(whole, nn.Module)
        parts = cut(whole, example, 3, repeats=1)
        with torch.no_grad():
            for rows in (1, 4):
                payload = torch.cat([example[:1]] * rows)
                expected, found = whole(payload), run(parts, payload)
                assert torch.allclose(found, expected, rtol=3.5e-4, atol=3.5e-4 * float(expected.abs().max()))
                assert fast_path or torch.equal(found, expected)


def test_attention_is_a_model_too(fast_path: bool) -> None:
    model, example = nn.MultiheadAttention(8, 2, batch_first=True).eval(), torch.randn(2, 5, 8)
    parts = cut(model, [example, example, example], 2, repeats=1)
    payload = [torch.randn(2, 5, 8) for _ in range(3)]
    with torch.no_grad():
        for found, expected in zip(run(parts, payload), model(*payload), strict=True):
            assert torch.allclose(found, expected, rtol=3.5e-4, atol=3.5e-4)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_an_encoder_that_packs_rows_by_their_padding_is_cut_around_or_told_how_not_to() -> None:
    example = {"ids": ids(2, 5), "padding": torch.tensor([[False] * 5, [False] * 3 + [True] * 2])}
    followed = Encoding(encoder(), is_followed=True).eval()
    with torch.no_grad():
        found = run(cut(followed, example, 2, repeats=1), example)
        assert torch.equal(found, followed(**example))
    packing = Encoding(encoder(), is_followed=False).eval()
    with pytest.raises(ValueError, match=r"encoder packs its rows by their padding mask.*use_nested_tensor = False"):
        cut(packing, example, 2, repeats=1)
    assert isinstance(packing.encoder, nn.TransformerEncoder)
    packing.encoder.use_nested_tensor = False
    parts = cut(packing, example, 2, repeats=1)
    with torch.no_grad():
        assert torch.allclose(run(parts, example), packing(**example), rtol=3.5e-4, atol=3.5e-4)


class Weighted(nn.Module):
    """What it computes of a buffer changes with the buffer."""

    scale: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 8)
        self.register_buffer("scale", torch.ones(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.first(x) * self.scale.exp())  # type: ignore[no-any-return]


@pytest.mark.parametrize("is_sent", [False, True])
def test_what_is_computed_of_buffers_follows_new_weights(is_sent: bool) -> None:
    model, changed, payload = Weighted(), Weighted(), torch.randn(3, 8)
    changed.scale.mul_(3)
    parts = cut(model, payload, 3, repeats=1)
    if is_sent:  # to the process that runs it
        parts = pickle.loads(pickle.dumps(parts))
    load(parts, changed)
    with torch.no_grad():
        assert torch.equal(run(parts, payload), changed(payload))


def load(parts: list[nn.Module], model: nn.Module) -> None:
    for part in parts:
        part.load_state_dict({name: model.state_dict()[name] for name in part.state_dict()})


class Steered(Weighted):
    """Constant buffers choose what it computes of others."""

    on: torch.Tensor
    times: torch.Tensor
    wide: torch.Tensor

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.register_buffer("on", torch.tensor(True))
        self.register_buffer("times", torch.tensor([1, 2]))
        self.register_buffer("wide", torch.ones(2, 8), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        if self.kind == "if" and self.on:
            x = x * self.scale.exp()
        if self.kind == "compared" and self.times.max().item() + self.wide.shape[0] > 3:
            x = x * self.scale.exp()
        if self.kind == "loop":
            for _ in range(int(self.times[1])):
                x = x * self.scale.exp()
        if self.kind == "written":
            chosen = torch.zeros_like(self.times)
            chosen.add_(self.times)
            x = x * self.scale.exp() if chosen[1] else x
        return self.last(x)  # type: ignore[no-any-return]


@pytest.mark.parametrize("kind", ["if", "compared", "loop", "written"])
def test_a_model_that_branches_on_a_constant_buffer_is_cut_for_its_value(kind: str) -> None:
    """The rest follows new weights; those that would choose another way are refused."""
    model, payload = Steered(kind), torch.randn(3, 8)
    parts = pickle.loads(pickle.dumps(cut(model, payload, 2, repeats=1)))
    with torch.no_grad():
        assert torch.equal(run(parts, payload), model(payload))
        model.scale.mul_(3)
        model.wide.mul_(3)
        load(parts, model)
        assert torch.equal(run(parts, payload), model(payload))
        chooser = model.on if kind == "if" else model.times
        chooser.zero_()
        load(parts, model)
        for _ in range(2):
            with pytest.raises(RuntimeError, match=r"(on|times) chose what the model computes when it was cut"):
                run(parts, payload)
        chooser.copy_(torch.tensor(True) if kind == "if" else torch.tensor([1, 2]))
        load(parts, model)
        assert torch.equal(run(parts, payload), model(payload))


class Inner(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.chosen = Steered("if")
        self.last = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.chosen(x))  # type: ignore[no-any-return]


def test_a_module_that_branches_on_a_buffer_stays_whole_where_that_is_enough() -> None:
    """Then nothing is pinned: it branches anew with each request."""
    model, payload = Inner(), torch.randn(3, 8)
    parts = cut(model, payload, 2, repeats=1)
    model.chosen.on.fill_(False)
    load(parts, model)
    with torch.no_grad():
        assert torch.equal(run(parts, payload), model(payload))
    assert len(cut(model, payload, 3, repeats=1)) == 3


class Deciding(Weighted):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if (x * self.scale).sum() > 0:
            x = -x
        return self.last(self.first(x))  # type: ignore[no-any-return]


def test_a_model_that_branches_on_a_request_is_refused() -> None:
    with pytest.raises(
        ValueError, match=r"trace_by_fx: TraceError.*trace_by_fx_and_pin: TraceError: what depends on a"
    ):
        cut(Deciding(), torch.randn(3, 8), 2, repeats=1)

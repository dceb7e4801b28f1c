"""Whether models that nobody cut by hand compute in stages what they compute as a whole, forward and backward.

The models are those of ``transformers``, made from their configurations, in fp32, with dropout on.
"""

from __future__ import annotations

import importlib.util
import multiprocessing
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from multiworld.bench.report import Bound, Line
from multiworld.model.layers import LayeredModel, layers_of

__all__ = ["families"]

AT_MOST = 1e-6
"""Relative to the largest value of a gradient: for float32, some eight units in its last place."""
NUM_STAGES = 4
WORDS, WIDTH, ROWS, LENGTH = 300, 64, 4, 24
FAMILIES = ("GPT-2", "Llama", "BERT", "T5", "ResNet", "Mixtral (experts)")


@dataclass(frozen=True)
class Found:
    """``output``, ``gradient``: the largest relative differences from the whole model's. ``num_layers``: of the cut."""

    digest: str
    num_layers: int
    cut_s: float
    output: float
    gradient: float


def families() -> list[Line]:
    """Cut each family in two processes, which have to agree on the layers, and compare in both."""
    if importlib.util.find_spec("transformers") is None:
        return [Line.not_measured("models in stages", "transformers is not installed")]
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(2, mp_context=context) as pool:
        asked = [(name, [pool.submit(_compared, name) for _ in range(2)]) for name in FAMILIES]
        return [line for name, both in asked for line in _lines(name, [each.result() for each in both])]


def _lines(name: str, both: Sequence[Found]) -> list[Line]:
    first = both[0]
    details = {"layers": first.num_layers, "cut_s": round(max(each.cut_s for each in both), 2)}
    differing = float(len({each.digest for each in both}) - 1)
    return [
        Line(
            name=f"{name}: output in {NUM_STAGES} stages against the whole's",
            unit="relative",
            value=max(each.output for each in both),
            bound=Bound.at_most(AT_MOST),
            details=details,
        ),
        Line(
            name=f"{name}: every gradient against the whole's",
            unit="relative",
            value=max(each.gradient for each in both),
            bound=Bound.at_most(AT_MOST),
        ),
        Line(name=f"{name}: processes that cut otherwise", unit="", value=differing, bound=Bound.at_most(0)),
    ]


def _compared(name: str) -> Found:
    torch.set_num_threads(1)
    torch.manual_seed(3)
    model, batch = _made(name)
    model.train()
    started = time.perf_counter()
    layered = layers_of(model, batch(ROWS))
    cut_s = time.perf_counter() - started
    output = gradient = 0.0
    for rows in (ROWS, ROWS + 3):
        runs: list[tuple[torch.Tensor, Mapping[str, torch.Tensor | None]]] = []
        for run in (_run_whole, _run_in_stages):
            state = {key: value.clone() for key, value in model.state_dict().items()}
            model.zero_grad()
            torch.manual_seed(11)
            runs.append(
                (run(model, layered, batch(rows)), {key: value.grad for key, value in model.named_parameters()})
            )
            model.load_state_dict(state)  # batch norm changed its statistics
        (one, ones), (other, others) = runs
        output = max(output, _difference(one, other))
        gradient = max([gradient, *(_difference(ones[key], others[key]) for key in ones)])
    return Found(layered.digest, len(layered.layers), cut_s, output, gradient)


def _run_whole(model: nn.Module, layered: LayeredModel, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
    given = {key: value for key, value in batch.items() if key != "labels"}
    logits: torch.Tensor = model(**given).logits
    _loss(logits, batch).backward()  # type: ignore[no-untyped-call]
    return logits.detach()


def _run_in_stages(model: nn.Module, layered: LayeredModel, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Run each stage with copies of what the one before it returned, as a process of its own would."""
    layers, values = layered.layers, layered.inputs_of(batch)
    ends = [len(layers) * stage // NUM_STAGES for stage in range(1, NUM_STAGES + 1)]
    chain: list[tuple[tuple[torch.Tensor, ...], Any]] = []
    for start, end in zip([0, *ends], ends, strict=False):
        if start:
            crossings = layers[start - 1].outputs or ()
            values = tuple(
                value.detach().clone().requires_grad_(crossing.needs_grad)
                for value, crossing in zip(values, crossings, strict=True)
            )
        given = values
        for layer in layers[start:end]:
            values = layer.module(*values)
        chain.append((given, values))
    logits: torch.Tensor = chain[-1][1].logits
    _loss(logits, batch).backward()  # type: ignore[no-untyped-call]
    for (given, _), (_, returned) in zip(chain[:0:-1], chain[-2::-1], strict=True):
        back = [(out, got.grad) for out, got in zip(returned, given, strict=True) if got.grad is not None]
        torch.autograd.backward([out for out, _ in back], [grad for _, grad in back])
    return logits.detach()


def _loss(logits: torch.Tensor, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
    return functional.cross_entropy(logits.flatten(0, -2), batch["labels"].flatten())


def _difference(one: torch.Tensor | None, other: torch.Tensor | None) -> float:
    if one is None or other is None:
        return 0.0 if one is other else float("inf")
    return float((one - other).abs().max() / one.abs().max().clamp(min=torch.finfo(one.dtype).tiny))


def _made(name: str) -> tuple[nn.Module, Callable[[int], Mapping[str, torch.Tensor]]]:
    """Return a model with a function that makes batches of so many rows."""
    import transformers as hub

    common = {"vocab_size": WORDS, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    decoder = {**common, "hidden_size": WIDTH, "intermediate_size": 2 * WIDTH, "num_hidden_layers": 4}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    if name == "GPT-2":
        return hub.GPT2LMHeadModel(hub.GPT2Config(**common, n_embd=WIDTH, n_layer=4, n_head=4)), _words
    if name == "Llama":
        return hub.LlamaForCausalLM(hub.LlamaConfig(**decoder, **heads, attention_dropout=0.1)), _words
    if name == "BERT":
        return hub.BertForMaskedLM(hub.BertConfig(**decoder, num_attention_heads=4)), _words
    if name == "T5":
        config = hub.T5Config(**common, d_model=WIDTH, d_ff=2 * WIDTH, d_kv=16, num_layers=3, num_heads=4)
        return hub.T5ForConditionalGeneration(config), _pairs
    if name == "ResNet":
        config = hub.ResNetConfig(embedding_size=16, hidden_sizes=[16, 32, 64], depths=[2, 2, 2], num_labels=WORDS)
        return hub.ResNetForImageClassification(config), _images
    return hub.MixtralForCausalLM(hub.MixtralConfig(**decoder, **heads, num_local_experts=4)), _words


def _words(rows: int) -> Mapping[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(rows)
    ids = torch.randint(3, WORDS, (rows, LENGTH), generator=generator)
    seen = (torch.arange(LENGTH)[None] < LENGTH - 5 * (torch.arange(rows)[:, None] % 2)).long()
    return {"input_ids": ids, "attention_mask": seen, "labels": ids.roll(-1, 1)}


def _pairs(rows: int) -> Mapping[str, torch.Tensor]:
    target = _words(rows + 1)["input_ids"][:rows, : LENGTH - 7]
    return {**_words(rows), "decoder_input_ids": target, "labels": target.roll(-1, 1)}


def _images(rows: int) -> Mapping[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(rows)
    return {
        "pixel_values": torch.randn(rows, 3, 48, 48, generator=generator),
        "labels": torch.randint(0, WORDS, (rows,), generator=generator),
    }

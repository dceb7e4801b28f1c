"""Hugging Face's GPT-2 and BERT, from configuration, on a node: forward, backward, and generation, against local."""

from __future__ import annotations

import argparse
from typing import Any

import torch

from multiworld import remote
from multiworld.bench.report import Bound, Line

__all__ = ["line"]

NUM_TOKENS = 20


def line(options: argparse.Namespace) -> list[Line]:
    try:
        import transformers
    except ImportError:
        return [Line.not_measured("GPT-2 and BERT", "transformers is not installed: pip install '.[integrations]'")]
    torch.set_num_threads(1)
    with remote.local(1, num_threads=1) as nodes:
        remote.use_device_name()
        del nodes
        sizes: dict[str, Any] = {"vocab_size": 97, "pad_token_id": 0}
        gpt_config = transformers.GPT2Config(
            n_layer=2, n_head=2, n_embd=32, n_positions=64, bos_token_id=1, eos_token_id=2, **sizes
        )
        bert_config = transformers.BertConfig(
            num_hidden_layers=2, num_attention_heads=2, hidden_size=32, intermediate_size=64, **sizes
        )
        pairs = {
            "GPT-2": _trained(lambda: transformers.GPT2LMHeadModel(gpt_config)),
            "BERT": _trained(lambda: transformers.BertForMaskedLM(bert_config)),
        }
        lines = [
            Line(name=f"{name}: largest difference of loss and gradients", unit="", value=value, bound=Bound.at_most(0))
            for name, value in pairs.items()
        ]
        different = _generated(lambda: transformers.GPT2LMHeadModel(gpt_config))
    name = f"GPT-2: tokens that differ of {NUM_TOKENS} that were generated"
    return [*lines, Line(name=name, unit="", value=different, bound=Bound.at_most(0))]


def _trained(make: Any) -> float:
    """Return the largest difference between here and there, of the loss and of all gradients."""
    results = []
    for device in ("cpu", "remote:1"):
        torch.manual_seed(0)
        model = make().to(device)
        tokens = torch.randint(3, 97, (4, 16)).to(device)
        torch.manual_seed(1)
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        results.append([loss.detach().cpu(), *(each.grad.cpu() for each in model.parameters())])
    return max(float((one - other).abs().max()) for one, other in zip(*results, strict=True))


def _generated(make: Any) -> float:
    """Return how many tokens differ."""
    results = []
    for device in ("cpu", "remote:1"):
        torch.manual_seed(0)
        model = make().to(device).eval()
        prompt = torch.randint(3, 97, (1, 8)).to(device)
        tokens = model.generate(
            prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=NUM_TOKENS, do_sample=False
        )
        results.append(tokens.cpu())
    one, other = results
    return float("inf") if one.shape != other.shape else float((one != other).sum())

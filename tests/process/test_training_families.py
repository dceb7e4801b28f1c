"""Models of transformers, made from their configurations, compute in layers what they compute as a whole."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest
import torch

from multiworld.model.layers import layers_of
from multiworld.model.layers.batches import arguments_of
from multiworld.testing.deadlines import scaled

pytestmark = [pytest.mark.process, pytest.mark.timeout(scaled(120))]  # transformers is large

WORDS = {"vocab_size": 50, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
KINDS: dict[str, tuple[str, str, dict[str, int]]] = {
    "gpt2": ("GPT2LMHeadModel", "GPT2Config", {"n_embd": 16, "n_layer": 2, "n_head": 2}),
    "t5": (
        "T5ForConditionalGeneration",
        "T5Config",
        {"d_model": 16, "d_ff": 32, "d_kv": 8, "num_layers": 2, "num_heads": 2},
    ),
}


@pytest.mark.parametrize("name", sorted(KINDS))
def test_layers_compute_what_the_whole_computes(name: str) -> None:
    if importlib.util.find_spec("transformers") is None:
        pytest.skip("needs transformers: pip install -e '.[integrations]'")
    import transformers

    kind, config, sizes = KINDS[name]
    torch.manual_seed(0)
    model: Any = getattr(transformers, kind)(getattr(transformers, config)(**WORDS, **sizes))
    ids = torch.randint(3, 50, (3, 8))
    batch = {"input_ids": ids, "attention_mask": (ids > 5).long(), "labels": ids}
    if name == "t5":
        batch["decoder_input_ids"] = ids[:, :5]
    layered = layers_of(model, batch)
    found: list[dict[str, torch.Tensor | None]] = []
    given = arguments_of(model, batch)
    for whole in (True, False):
        model.zero_grad()
        torch.manual_seed(4)
        values: Any = layered.inputs_of(batch)
        for layer in () if whole else layered.layers:
            values = layer.module(*values)
        output = given.call(model, given.tensors) if whole else values
        assert type(output) is type(model(input_ids=ids, decoder_input_ids=ids) if name == "t5" else model(ids))
        (output.logits**2).sum().backward()
        found.append({"logits": output.logits, **{key: value.grad for key, value in model.named_parameters()}})
    for key, value in found[0].items():
        other = found[1][key]
        assert value is not None
        assert other is not None
        torch.testing.assert_close(other, value, msg=key)
    assert layered.parameters().keys() == dict(model.named_parameters()).keys()

"""How a model is cut into fragments."""

import pytest

from multiworld.training.sync.fragments import block_of, split_into_fragments


def test_blocks_stay_together_and_fragments_are_of_about_the_same_size() -> None:
    sizes = {"embed.weight": 60}
    for layer in range(4):
        sizes |= {f"layers.{layer}.attention.weight": 20, f"layers.{layer}.mlp.0.weight": 10}
    first, second = split_into_fragments(sizes, 2)
    assert first == (
        "embed.weight",
        "layers.2.attention.weight",
        "layers.2.mlp.0.weight",
    )
    assert [sum(sizes[name] for name in names) for names in (first, second)] == [90, 90]


def test_a_model_of_few_blocks_is_cut_between_its_parameters() -> None:
    assert split_into_fragments({"0.weight": 8, "0.bias": 2, "1.weight": 4}, 3) == (
        ("0.weight",),
        ("1.weight",),
        ("0.bias",),
    )


def test_more_fragments_than_parameters_are_refused() -> None:
    with pytest.raises(ValueError, match="fragments=3, but the model has 2 parameters"):
        split_into_fragments({"weight": 8, "bias": 2}, 3)


@pytest.mark.parametrize(
    ("name", "block"),
    [
        ("layers.3.attention.weight", "layers.3"),
        ("stages.0.blocks.2.weight", "stages.0"),
        ("head.weight", "head"),
        ("weight", "weight"),
    ],
)
def test_a_block_is_named_up_to_its_first_index(name: str, block: str) -> None:
    assert block_of(name) == block

"""Prints how a model of 24 equal blocks would be divided over 4 to 8 nodes, and what a step would take: no processes.

    python examples/train_pipeline_templates.py

A pipeline of n nodes follows the template of n nodes. Pipelines of a few sizes make up every number of nodes, so a loss
needs no new division of the model. ``multiworld train plan`` prints and draws the same of a measured model.
"""

from __future__ import annotations

from multiworld.training.planning.instantiation import instantiate
from multiworld.training.planning.nodes import Node
from multiworld.training.planning.profile import LayerCost, Profile
from multiworld.training.planning.templates import make_templates

GIB = 1024**3
NUM_MICRO_BATCHES = 32
LAYERS = [
    LayerCost(name="embedding", forward_s=0.002, backward_s=0.003, state_bytes=GIB, activation_bytes=GIB // 64),
    *(
        LayerCost(
            name=f"block {number}", forward_s=0.010, backward_s=0.020, state_bytes=GIB, activation_bytes=GIB // 16
        )
        for number in range(24)
    ),
    LayerCost(name="head", forward_s=0.012, backward_s=0.020, state_bytes=GIB, activation_bytes=GIB // 16),
]


def main() -> None:
    profile = Profile(model="24 blocks", micro_batch=4, layers=tuple(LAYERS))
    templates = make_templates(profile, Node(memory_bytes=16 * GIB), num_nodes=8, tolerate=1)
    print(f"{templates.smallest} nodes hold the model; templates:")
    for template in templates:
        stages = ", ".join(f"{each.first} to {each.end - 1}" for each in template.stages)
        print(
            f"  {template.num_nodes} nodes: layers {stages}; "
            f"{1000 * template.iteration_s:.0f} ms for {template.num_micro_batches} micro-batches"
        )
    print(f"pipelines for a step of {NUM_MICRO_BATCHES} micro-batches; the training survives the loss of any node:")
    for num_nodes in range(4, 9):
        made = instantiate(templates, num_nodes, tolerate=1, num_micro_batches=NUM_MICRO_BATCHES)
        print(f"  {num_nodes} nodes: {made}")


if __name__ == "__main__":
    main()

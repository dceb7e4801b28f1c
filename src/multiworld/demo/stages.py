"""The pipeline of the main job: the model in its three stages, whose answers say which processes they went through."""

from __future__ import annotations

import logging
import os

import torch
from torch import Tensor, nn

from ..serving import Admission, Pipeline, Stage
from .model import STAGES, stage_of
from .options import Options

NUM_REPLICAS = {"a": 1, "b": 2, "c": 1}
PRELOAD = ("multiworld.demo.stages",)  # so that a replica that is needed has it when it is forked


class Traced(nn.Module):
    """A stage that signs what it passes on: ``values``, and ``route``, the ids of its processes, int64 ``[stages]``."""

    def __init__(self, stage: nn.Module) -> None:
        super().__init__()
        self.stage = stage

    def setup(self) -> None:
        """Called in the replica: what breaks there is told by the main job, and need not be logged as well."""
        logging.getLogger("multiworld").setLevel(logging.ERROR)

    def forward(self, message: dict[str, Tensor]) -> dict[str, Tensor]:
        here = torch.tensor([os.getpid()])
        return {"values": self.stage(message["values"]), "route": torch.cat([message["route"], here])}


def question(images: Tensor) -> dict[str, Tensor]:
    """Return a micro-batch ``[batch, 1, 8, 8]`` as a request; ``values`` of its answer are logits ``[batch, 10]``."""
    return {"values": images, "route": torch.empty(0, dtype=torch.int64)}


def make_pipeline(model: nn.Sequential, options: Options) -> Pipeline:
    """Return the rhombus gateway → a → {b, b} → c → gateway of a trained model.

    What waits for a replica is never refused: no more than ``options.window`` requests are open anyway.
    """
    return Pipeline(
        [Stage(name, Traced(stage_of(model, name)), replicas=NUM_REPLICAS[name]) for name in STAGES],
        name="demo",
        lease_s=options.lease_s,
        timeout_s=options.request_limit_s,
        admission=Admission(max_open=options.window, max_wait_s=options.request_limit_s),
        preload=PRELOAD,
        backend=options.backend,
    )

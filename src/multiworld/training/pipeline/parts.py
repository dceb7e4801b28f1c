"""What a program has handed over to be trained in pipelines: see ``TrainedParts`` for replicas."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ..errors import StepError
from .contents import Contents
from .holdings import Holdings
from .missed import OptimizerFactory

if TYPE_CHECKING:
    from ...model.layers import LayeredModel


class PipelinedParts:
    """Parameters and optimizers change with the layers that this process holds, so nothing is counted here."""

    def __init__(
        self,
        model: LayeredModel,
        changing: frozenset[str],
        *,
        exact: bool,
        schedule: str = "auto",
        device: torch.device | None = None,
    ) -> None:
        """``changing``: names of the buffers that a forward changes. ``schedule``, ``device``: see ``Job.pipeline``."""
        self.device = device or model.home
        self.model, self.holdings = model, Holdings(Contents(model.layers, changing, exact=exact), device=self.device)
        self._changing, self.schedule = changing, schedule

    @property
    def optimizers(self) -> list[Optimizer]:
        return list(self.holdings.optimizers)

    @property
    def parameters(self) -> dict[str, nn.Parameter]:
        """None that all members have in common."""
        return {}

    @property
    def buffers(self) -> dict[str, Tensor]:
        return {}

    def add_optimizer(self, factory: OptimizerFactory) -> Optimizer:
        return self.holdings.add_optimizer(factory)

    def check_complete(self) -> None:
        """Raises StepError if there is nothing to train."""
        if not self.optimizers:
            raise StepError(
                "the job has no optimizer before job.steps(): call "
                "pipe.optimizer(lambda parameters: torch.optim.AdamW(parameters))"
            )

    def begin(self) -> None:
        pass

    def check_unchanged(self) -> None:
        pass

    def described(self) -> dict[str, object]:
        """Return what must be equal on all ranks, by part."""
        return {
            "the model": (self.model.digest, sorted(self._changing)),
            "the schedule": self.schedule,
            "clipping": self.holdings.max_grad_norm,
            "the optimizers": [
                (type(each).__name__, sorted(each.defaults.items(), key=str)) for each in self.optimizers
            ],
        }

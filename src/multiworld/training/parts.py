"""What a program has handed over to be trained: modules with their parameters and buffers, and optimizers."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from torch import Tensor, nn
from torch.optim import Optimizer

from .errors import StepError


class TrainedParts:
    """Parameters have names as in ``state_dict``, and those of a second module begin with ``1.``, and so on."""

    def __init__(self) -> None:
        self.modules: list[nn.Module] = []
        self.optimizers: list[Optimizer] = []
        self._parameters: dict[int, tuple[str, nn.Parameter]] = {}
        self._frozen: dict[int, tuple[str, nn.Parameter]] = {}
        """Parameters that did not require gradients when they were handed over."""
        self._buffers: dict[int, tuple[str, Tensor]] = {}
        self._num_optimized = 0

    def add_module(self, module: nn.Module) -> None:
        number = len(self.modules)
        self.modules.append(module)
        prefix = f"{number}." if number else ""
        for name, parameter in module.named_parameters():
            if not parameter.requires_grad:
                self._frozen[id(parameter)] = (name, parameter)
            else:
                self._parameters.setdefault(id(parameter), (prefix + name, parameter))
        persistent = {id(each) for each in module.state_dict(keep_vars=True).values()}
        for name, buffer in module.named_buffers():
            if id(buffer) in persistent:
                self._buffers.setdefault(id(buffer), (prefix + name, buffer))

    def add_optimizer(self, optimizer: Optimizer) -> None:
        """Raises ValueError if it has a parameter of no module that was added before."""
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if id(parameter) not in self._parameters and id(parameter) not in self._frozen:
                    raise ValueError(
                        f"the optimizer has a parameter of shape {tuple(parameter.shape)} that is of no replicated "
                        "module: hand the module to job.replicate() first, and make the optimizer of its parameters"
                    )
        self.optimizers.append(optimizer)

    def check_complete(self) -> None:
        """Raises StepError if there is nothing to train."""
        if not self.modules or not self.optimizers:
            missing = "module: call job.replicate(model)" if not self.modules else "optimizer: call job.optimizer(...)"
            raise StepError(f"the job has no {missing} before job.steps()")

    def begin(self) -> None:
        """The training begins: from now on there must be no others."""
        self._num_optimized = self._num_in_optimizers

    @property
    def parameters(self) -> dict[str, nn.Parameter]:
        """Those that are trained, in the order of the modules."""
        return dict(self._parameters.values())

    @property
    def buffers(self) -> dict[str, Tensor]:
        """Those that a state_dict has."""
        return dict(self._buffers.values())

    def check_unchanged(self) -> None:
        """Raises StepError if there are parameters to train that nobody reduces."""
        known = self._num_in_optimizers
        if known != self._num_optimized:
            raise StepError(
                f"the optimizers have {known} parameters, and had {self._num_optimized}: parameters that are added "
                "after job.optimizer() are not reduced. Build the whole model first"
            )
        for name, parameter in self._frozen.values():
            if parameter.requires_grad:
                raise StepError(
                    f"the parameter {name!r} requires gradients, and did not when the model was handed over, so they "
                    "are not reduced. Let it require gradients before job.replicate(), and freeze it afterwards"
                )

    def described(self) -> dict[str, object]:
        """Return what must be equal on all ranks, by part."""
        return {
            "the model": [(name, tuple(each.shape), str(each.dtype)) for name, each in self._parameters.values()],
            "the optimizers": [
                (type(each).__name__, sorted(each.defaults.items(), key=str)) for each in self.optimizers
            ],
        }

    @property
    def _num_in_optimizers(self) -> int:
        return sum(len(group["params"]) for each in self.optimizers for group in each.param_groups)


def digest_of(parts: Mapping[str, object]) -> str:
    """Return a digest of what all ranks must have in common, part by part, so that it tells which part differs."""
    return ";".join(f"{name}={hashlib.sha256(str(value).encode()).hexdigest()[:12]}" for name, value in parts.items())

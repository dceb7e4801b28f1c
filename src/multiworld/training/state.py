"""All that a training is made of between two steps, taken and restored as one: for newcomers and for checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, TypeAlias

import torch

StateDict: TypeAlias = dict[str, Any]
"""What ``state_dict()`` of torch's objects and of the program's returns: values of theirs, not of ours."""


class Stateful(Protocol):
    """What ``job.track`` takes: schedulers, EMAs, scalers, metrics."""

    def state_dict(self) -> StateDict: ...

    def load_state_dict(self, state: StateDict) -> Any: ...


APART = "apart"
"""The part of a saved state that each writer has for itself."""


class Apart(Protocol):
    """What each process has a part of its own of: the layers of a model that is trained in pipelines."""

    def capture_own(self) -> StateDict:
        """Return what this process saves, as references: containers of tensors and values, with names that no other
        writer has.
        """

    def restore_all(self, leaves: StateDict) -> None:
        """Take what all writers have saved, by the names of ``capture_own`` joined by dots. Raises ValueError."""


class TrainingState:
    """The parts of a training by name: ``model.NAME``, ``optimizer.NAME``, ``tracked.NAME``, ``loader``, and its step.

    The training thread takes and restores it, between two steps only.
    """

    def __init__(self) -> None:
        self._parts: dict[str, Stateful] = {}
        self.apart: Apart | None = None
        self.step = 0
        """The index of the next step: so many have been committed."""

    def add(self, name: str, part: Stateful) -> None:
        """Raises ValueError if the name is taken."""
        if name in self._parts:
            raise ValueError(f"{name!r} is tracked already; give each part a name of its own")
        for method in ("state_dict", "load_state_dict"):
            if not callable(getattr(part, method, None)):
                raise TypeError(f"{name}: {type(part).__name__} has no {method}(), so its state cannot be kept")
        self._parts[name] = part

    @property
    def parts(self) -> Mapping[str, Stateful]:
        return self._parts

    def capture(self) -> StateDict:
        """Return references, not copies: ``{"step": int, "rng": ..., "parts": {name: state_dict}}``."""
        return {
            "step": self.step,
            "rng": capture_rng(),
            "parts": {name: part.state_dict() for name, part in self._parts.items()},
        }

    def capture_to_save(self) -> StateDict:
        """Return what ``capture`` does and, in the part ``APART``, what this process has for itself."""
        state = self.capture()
        if self.apart is not None:
            state["parts"][APART] = self.apart.capture_own()
        return state

    def restore(self, state: StateDict) -> None:
        """Load every part. Raises ValueError that names parts which are missing or unknown, before anything changes."""
        given, wanted = set(state["parts"]), set(self._parts)
        if given != wanted:
            missing, unknown = sorted(wanted - given), sorted(given - wanted)
            raise ValueError(
                f"the state is of another program: it lacks {missing or 'nothing'} and has {unknown or 'nothing'} more"
            )
        for name, part in self._parts.items():
            part.load_state_dict(state["parts"][name])
        restore_rng(state["rng"])
        self.step = int(state["step"])


def capture_rng() -> dict[str, torch.Tensor]:
    """Return the states of torch's generators; those of ``random`` and NumPy belong to the program's own data code."""
    states = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        states["cuda"] = torch.cuda.get_rng_state()
    return states


def restore_rng(states: Mapping[str, torch.Tensor]) -> None:
    torch.set_rng_state(states["cpu"])
    if "cuda" in states and torch.cuda.is_available():
        torch.cuda.set_rng_state(states["cuda"])

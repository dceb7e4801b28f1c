"""A program that takes checkpoints again and again, in the directory that it is given. It says a line for each.

All values of its state are the step; ``pid PID`` is its writer's, ``whole STEP`` and ``failed STEP WHY`` how it went.
"""

from __future__ import annotations

import sys
from typing import Any

import torch

from multiworld.training.checkpoint.config import Checkpoint
from multiworld.training.checkpoint.saver import CheckpointOutcome, CheckpointSaver
from multiworld.training.state import TrainingState

NUM_TENSORS, NUM_VALUES = 8, 1 << 19


class Filled:
    """A part whose every value is one number."""

    def __init__(self) -> None:
        self.tensors = {f"t{index}": torch.zeros(NUM_VALUES) for index in range(NUM_TENSORS)}

    def fill(self, number: int) -> None:
        for tensor in self.tensors.values():
            tensor.fill_(number)

    def values(self) -> set[float]:
        return {value for tensor in self.tensors.values() for value in (tensor.min().item(), tensor.max().item())}

    def state_dict(self) -> dict[str, Any]:
        return dict(self.tensors)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.tensors = state


def filled_state() -> tuple[Filled, TrainingState]:
    part, state = Filled(), TrainingState()
    state.add("tracked.filled", part)
    return part, state


def tell(outcome: CheckpointOutcome) -> None:
    print(f"failed {outcome.step} {outcome.error}" if outcome.error else f"whole {outcome.step}", flush=True)


def main() -> None:
    part, state = filled_state()
    saver = CheckpointSaver(Checkpoint(sys.argv[1]), job="job", member="m", on_outcome=tell)
    saver.prepare(["m"])
    print("pid", saver.writer_pid, flush=True)
    while True:
        state.step += 1
        part.fill(state.step)
        saver.save(state.capture, step=state.step, generation=1, members=["m"], wait=True)


if __name__ == "__main__":
    main()

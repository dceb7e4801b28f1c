"""The sides of a comparison: what starts the replicas, which program they run, and what counts as a committed step."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

__all__ = [
    "OURS",
    "OURS_PIPELINES",
    "PLAIN",
    "PLAIN_PIPELINES",
    "TORCHFT",
    "TORCHRUN",
    "TORCHRUN_PIPELINES",
    "Side",
]

TORCH_LAUNCHER = ("torch.distributed.run", "--standalone", "--nproc-per-node")
PRELOAD = ("--preload", "torch._dynamo,multiworld.training,sklearn.datasets")
"""An optimizer of torch imports the first: 2 s of a processor, in each process that has it not."""
OUR_LAUNCHER = ("multiworld.run", "--max-restarts", "10000", "--restart", "worker", *PRELOAD, "--nproc-per-node")


@dataclass(frozen=True, kw_only=True)
class Side:
    """``launcher``: a module and its arguments before the number of replicas."""

    name: str
    launcher: Sequence[str]
    program: Sequence[str]
    program_options: Sequence[str] = ()
    saves: bool = False
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_ours(self) -> bool:
        return "multiworld.run" in self.launcher

    def command(self, num_replicas: int, options: Sequence[str]) -> list[str]:
        return [sys.executable, "-m", *self.launcher, str(num_replicas), *self.program, *self.program_options, *options]

    def having(self, name: str, *program_options: str, launcher: Sequence[str] = ()) -> Side:
        """Return the side with more options of the program, and of the launcher."""
        module, *before = self.launcher
        return replace(
            self,
            name=name,
            launcher=(module, *launcher, *before),
            program_options=(*self.program_options, *program_options),
        )


OURS = Side(name="ours", launcher=OUR_LAUNCHER, program=("-m", "benchmarks.training.program"))
PLAIN = Side(name="plain DDP", launcher=TORCH_LAUNCHER, program=("-m", "benchmarks.training.plain_program"))
TORCHRUN = Side(
    name="torchrun + checkpoint",
    launcher=("torch.distributed.run", "--max-restarts", "1000", *TORCH_LAUNCHER[1:]),
    program=("-m", "benchmarks.training.plain_program"),
    saves=True,
    # else it reads the keys of the dead generation, and does not recover at all
    environment={"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"},
)
OURS_PIPELINES = replace(OURS, program=("-m", "benchmarks.training.pipeline_program"))
PLAIN_PIPELINES = Side(
    name="torch.distributed.pipelining + DDP",
    launcher=TORCH_LAUNCHER,
    program=("-m", "benchmarks.training.plain_pipeline_program"),
)
TORCHRUN_PIPELINES = replace(TORCHRUN, program=PLAIN_PIPELINES.program)
TORCHFT = Side(name="torchft", launcher=("benchmarks.training.torchft_replicas",), program=())

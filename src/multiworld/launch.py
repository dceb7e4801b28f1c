"""``python -m multiworld.launch``: ``multiworld run`` for command lines of ``torch.distributed.launch``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial

if __name__ == "__main__":  # the rest takes a second to import, in which a signal may come
    from .process.interruption import end_on_signals

    end_on_signals("python -m multiworld.launch")

from torch.distributed.elastic.multiprocessing.errors import record

from .elastic.launch.arguments import options_from
from .elastic.launch.functions import LaunchConfig, elastic_launch
from .elastic.launch.parser import launch_parser

__all__ = ["LaunchConfig", "elastic_launch", "main"]


@record
def main(args: Sequence[str] | None = None, *, in_place: bool = False) -> None:
    """Run a job as ``torch.distributed.launch.main`` does; see ``multiworld.run.main``."""
    options = options_from(launch_parser().parse_args(args))
    from .elastic.launch.launcher import launch  # what makes no sense is told without it

    launch(options, in_place=in_place)


if __name__ == "__main__":
    from .cli.job_end import told
    from .cli.own_process import run_in_own_process
    from .elastic.launch.parser import LAUNCH

    command = partial(told, LAUNCH, partial(main, in_place=True), None)
    sys.exit(run_in_own_process("python -m multiworld.launch", command))

"""``python -m multiworld.launch``: ``multiworld run`` for command lines of ``torch.distributed.launch``."""

from __future__ import annotations

import gc
import sys
from collections.abc import Sequence

from torch.distributed.elastic.multiprocessing.errors import record

from .elastic.arguments import options_from
from .elastic.parser import launch_parser

__all__ = ["main"]


@record
def main(args: Sequence[str] | None = None, *, in_place: bool = False) -> None:
    """Run a job as ``torch.distributed.launch.main`` does; see ``multiworld.run.main``."""
    options = options_from(launch_parser().parse_args(args))
    from .elastic.launcher import launch  # what makes no sense is told without it

    launch(options, in_place=in_place)


if __name__ == "__main__":
    from .cli.run import launch as command

    status = command()
    gc.freeze()  # as in run
    sys.exit(status)

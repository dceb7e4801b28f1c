"""``python -m multiworld.run``, the same as ``multiworld run``; and ``main`` for programs that launch from within."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

if __name__ == "__main__":  # the rest takes a second to import, in which a signal may come
    from .process.interruption import end_on_signals

    end_on_signals("multiworld run")

from torch.distributed.elastic.multiprocessing.errors import record

from .elastic.launch.arguments import options_from
from .elastic.launch.parser import RUN, run_parser

__all__ = ["launcher_of", "main"]


def main(args: Sequence[str] | None = None, *, in_place: bool = False) -> None:
    """Run a job as ``torch.distributed.run.main`` does, and return when it has ended.

    ``args``: the command line (default: this process's). ``in_place``: see ``elastic.launch.launcher.launch``. Raises
    ``ValueError`` for what makes no sense (and SystemExit, as argparse does), ``ChildFailedError`` if a worker failed,
    whose error file is then this process's too, and ``MultiworldError`` for what else went wrong.
    """
    launcher_of(is_announced=in_place)(args, in_place=in_place)


def launcher_of(prog: str = RUN, *, may_run_apart: bool = True, **changes: Any) -> Callable[..., None]:
    """Return what runs a job as ``main`` does, with these of its ``JobOptions`` instead of what the line says.

    ``prog``: the command that refuses a line; ``may_run_apart``: see ``options_from``.
    """

    @record
    def run(args: Sequence[str] | None = None, *, in_place: bool = False) -> None:
        asked = options_from(run_parser(prog).parse_args(args), may_run_apart=may_run_apart)
        options = replace(asked, **changes)
        if in_place:  # what this process imports stays: a collection that looks at all of it takes 70 ms
            gc.disable()
        from .elastic.launch.launcher import launch  # what makes no sense is told without it

        if in_place:
            gc.freeze()
            gc.enable()
        launch(options, in_place=in_place)

    return run


if __name__ == "__main__":
    from .cli.job_end import told
    from .cli.own_process import run_in_own_process

    sys.exit(run_in_own_process("multiworld run", partial(told, RUN, partial(main, in_place=True), None)))

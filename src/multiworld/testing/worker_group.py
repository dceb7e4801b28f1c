"""The worker processes of one test: started from callables or scripts, and always ended together."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from .deadlines import Deadline
from .processes import DEFAULT_TIMEOUT_S, Report, Worker, wait_for_news
from .worker_process import ChildProcess, Ends, WorkerProcess


class WorkerGroup:
    """The workers of one test. Leaving the ``with`` block kills and reaps every one of them, stopped ones too.

    When the block fails, what each worker did and wrote is printed to standard error.
    """

    def __init__(self) -> None:
        self.workers: list[Worker] = []
        self._at_close = ExitStack()

    def __enter__(self) -> WorkerGroup:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not None:
            sys.stderr.write(self.describe() + "\n")
        self.close()

    def start(
        self,
        target: str | Path | Callable[..., Any],
        *args: Any,
        name: str | None = None,
        netns: str | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        process: Callable[[Ends], WorkerProcess] | None = None,
        **kwargs: Any,
    ) -> Worker:
        """Start a worker and return at once.

        ``target`` is ``"module:function"``, a module-level function, or a path to a script. Functions may be coroutine
        functions; ``args`` and ``kwargs`` must fit JSON (for a script: strings, its command line). The worker reports
        ``returned`` (``value=``, of a script its global ``RESULT``) or ``raised`` by itself. ``netns`` is the network
        namespace to run in, such as ``Host.netns``. ``process`` makes a worker of a process that another has started.
        """
        target_name, is_script = _name_target(target)
        job = {"target": target_name, "script": is_script, "args": list(args), "kwargs": kwargs, "path": _import_path()}
        name = name or f"worker{len(self.workers)}"
        if process is None:
            process = partial(ChildProcess, name=name, target=target_name, netns=netns, env=env or {}, cwd=cwd)
        worker = Worker(name, job, process)
        self.workers.append(worker)
        return worker

    def await_all(
        self, event: str, timeout_s: float = DEFAULT_TIMEOUT_S, *, among: Sequence[Worker] | None = None, **fields: Any
    ) -> list[Report]:
        """Wait until every worker (or each ``among`` them) has reported ``event``, with one deadline for all."""
        at = time.monotonic() + timeout_s
        workers = self.workers if among is None else among
        return [worker.await_event(event, max(0.0, at - time.monotonic()), **fields) for worker in workers]

    def await_first(
        self,
        event: str | tuple[str, ...],
        timeout_s: float = DEFAULT_TIMEOUT_S,
        *,
        among: Sequence[Worker],
        **fields: Any,
    ) -> tuple[Worker, Report]:
        """Wait until one of the workers reports ``event`` (or one of these), and return it with the report.

        Raises ``WorkerFailedError`` as ``Worker.await_event`` does.
        """
        deadline = Deadline(timeout_s)
        while True:
            for worker in among:
                report = worker.take_event(event, **fields)
                if report is not None:
                    return worker, report
            if deadline.expired:
                reason = f"did not report {event!r} within {deadline.timeout_s:g} s"
                raise among[0].failure(reason + "".join(f", nor did {worker.name!r}" for worker in among[1:]))
            wait_for_news(among, deadline.remaining_s())

    def describe(self) -> str:
        return "\n".join(worker.describe() for worker in self.workers)

    def close(self) -> None:
        """Kill and reap all workers. Idempotent."""
        for worker in self.workers:
            worker.close()
        self._at_close.close()

    def call_at_close(self, close: Callable[[], object]) -> None:
        """Call it once all workers are gone: it ends what has started them."""
        self._at_close.callback(close)


def _name_target(target: str | Path | Callable[..., Any]) -> tuple[str, bool]:
    if isinstance(target, Path):
        return str(target), True
    if isinstance(target, str):
        return target, ":" not in target
    module, qualified_name = target.__module__, target.__qualname__
    if module == "__main__" or "<" in qualified_name:
        raise ValueError(f"a worker cannot import {module}:{qualified_name}; give a module-level function of a module")
    return f"{module}:{qualified_name}", False


def _import_path() -> list[str]:
    return [os.path.abspath(entry) for entry in sys.path]

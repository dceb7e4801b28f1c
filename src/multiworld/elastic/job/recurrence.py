"""Decide after a failure whether a start helps: not where the same error would come again. Pure: values and ``now``."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from .failure import FailureCause, WorkerFailure
from .final_errors import Finality, finality
from .layout import Slot
from .slots import Post, PostState
from .tracebacks import exception_line

EARLY_S = 60.0
"""Who fails sooner after its start has probably done nothing yet; imports may take a while."""
MISTAKES = frozenset(
    {
        "AttributeError",
        "ImportError",
        "IndentationError",
        "ModuleNotFoundError",
        "NameError",
        "SyntaxError",
        "TabError",
        "TypeError",
        "UnboundLocalError",
    }
)
"""Errors of a program's text, which a second try meets again. Others may be the network's, so there is one more try."""
AFTER_JOIN = 3
"""Tries of a program that has joined. A step that fails so often says which samples it has, see PoisonedStepError."""
FRAME = re.compile(r'^  File "(.+)", line (\d+)', re.MULTILINE)


@dataclass(frozen=True)
class _Error:
    """How the last workers of a slot have ended, ``times`` in a row. ``limit``: then a start is in vain."""

    place: str
    limit: int = 1
    times: int = 1

    @property
    def comes_again(self) -> bool:
        return self.times >= self.limit


REFUSED = _Error("refused")  # see ``final_errors``


class Recurrence:
    """Remembers in which errors the workers of a job have ended, as far as they might meet them again.

    ``more_restarts``: how the user has more of them; None: the user has said how many there are.
    """

    def __init__(self, more_restarts: str | None) -> None:
        self._more_restarts = more_restarts
        self._errors: dict[Slot, _Error] = {}

    def why_hopeless(
        self,
        slot: Slot,
        failure: WorkerFailure | None,
        posts: Iterable[tuple[Slot, Post]],
        now: float,
        *,
        may_start: bool = True,
    ) -> str:
        """Return why no start helps after this failure: the error would come again, for the job or for each worker.

        ``posts``: all of the job, the failed one's as it was. ``may_start``: restarts are left.
        """
        listed = dict(posts)
        error = None if failure is None else self._error_of(slot, listed[slot], failure, now, may_start=may_start)
        if error is None or failure is None:
            self._errors.pop(slot, None)
            return ""
        self._errors[slot] = error
        refusal = f"nothing is started again, as the same error would come again: {failure.text}"
        if error is REFUSED and finality(failure.traceback or "") is Finality.JOB:
            return refusal
        of_all = [self._errors.get(each) for each, post in listed.items() if _may_fail_again(post, now)]
        alike = {each.place for each in of_all if each is not None and each.comes_again}
        if len(of_all) < len(listed) or len(alike) != 1 or not all(each and each.comes_again for each in of_all):
            return ""
        if error is REFUSED:
            return refusal
        return f"nothing is started again, as all workers fail alike soon after the start ({self._more_restarts})"

    def _error_of(
        self, slot: Slot, post: Post, failure: WorkerFailure, now: float, *, may_start: bool
    ) -> _Error | None:
        traceback = failure.traceback or ""
        if finality(traceback) is not Finality.NONE:
            return REFUSED
        if self._more_restarts is None or not may_start or now - post.started_at >= EARLY_S:
            return None
        if failure.cause not in (FailureCause.EXCEPTION, FailureCause.EXIT) or failure.caused_by_rank is not None:
            return None
        frames, raised = FRAME.findall(traceback), (exception_line(traceback) or "").partition(":")[0]
        is_mistake = bool(frames) and raised in MISTAKES
        if post.uses_multiworld and not is_mistake:
            return None
        limit = AFTER_JOIN if post.uses_multiworld else 1 if is_mistake else 2
        place = f"{raised or failure.returncode} {frames[-1:]}"
        before = self._errors.get(slot)
        return _Error(place, limit, 1 + before.times if before is not None and before.place == place else 1)


def _may_fail_again(post: Post, now: float) -> bool:
    """Whether nothing speaks against it: the worker that was started again has not run for long, or ended well."""
    return post.state is not PostState.SUCCEEDED and (not post.is_alive or now - post.started_at < EARLY_S)

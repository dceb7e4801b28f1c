"""How checkpoints and what is left of unfinished ones are called, and which of them stay. Pure.

::

    DIR/step-00000040/             whole: it got this name when everything was in it
        manifest.json              step, sequence, and the size and hash of every file
        .metadata  __0_0.distcp    as ``torch.distributed.checkpoint`` has it
    DIR/.unfinished-00000060-…/    being written, or left by a death; never read
    DIR/.deleted-…/                on its way out
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Protocol

MANIFEST, METADATA = "manifest.json", ".metadata"
PREFIX, UNFINISHED, DELETED = "step-", ".unfinished-", ".deleted-"
_WHOLE = re.compile(r"step-\d{8,}(-\d+)?")


class Saved(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def job(self) -> str: ...
    @property
    def sequence(self) -> int: ...


def whole_name(step: int, taken: Iterable[str]) -> str:
    """Return a name that is free: a step that was rolled back and done again may have a checkpoint already."""
    taken = set(taken)
    name = f"{PREFIX}{step:08}"
    again = 2
    while name in taken:
        name = f"{PREFIX}{step:08}-{again}"
        again += 1
    return name


def unfinished_name(step: int, attempt: str) -> str:
    return f"{UNFINISHED}{step:08}-{attempt}"


def deleted_name(name: str, attempt: str) -> str:
    return f"{DELETED}{name.lstrip('.')}-{attempt}"


def is_whole(name: str) -> bool:
    return _WHOLE.fullmatch(name) is not None


def leftovers(names: Sequence[str], current: str) -> list[str]:
    """Return what no one writes any more: the attempts up to the step of ``current``, and what was being deleted.

    Another writer may be ahead, and write its part of a later step already.
    """
    old = [name for name in names if name.startswith(UNFINISHED) and name != current and _step(name) <= _step(current)]
    return sorted([*old, *(name for name in names if name.startswith(DELETED))])


def _step(unfinished: str) -> int:
    digits = unfinished.removeprefix(UNFINISHED).partition("-")[0]
    return int(digits) if digits.isdecimal() else 0


def surplus(saved: Sequence[Saved], job: str, keep: int) -> list[str]:
    """Return the names of those to delete: of this job, all but the ``keep`` newest. Those of others stay."""
    ours = sorted((each for each in saved if each.job == job), key=lambda each: each.sequence)
    return [each.name for each in ours[:-keep]]

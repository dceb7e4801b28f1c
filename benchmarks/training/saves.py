"""Kills at a random point of a save, each followed by a load: of the checkpoint before, or of the new one if whole."""

from __future__ import annotations

import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from multiworld.bench.report import Bound, Line
from multiworld.training.checkpoint.finding import newest
from multiworld.training.checkpoint.loading import read
from multiworld.training.checkpoint.names import UNFINISHED
from multiworld.training.errors import CheckpointDamagedError

from ..elastic.job import TrialFailed
from ..elastic.journal import Entry
from .run import Run
from .sides import OURS
from .worker import digest_of

__all__ = ["killed_saves"]

WHAT = ("the writer", "the training process", "both")
STEPS = ("--steps", "1000000", "--exact", "--digests", "--global-batch", "4", "--micro-batch", "4")
OPTIONS = (*STEPS, "--save-every", "10")
SAVE_S, RESTART_S = 60.0, 120.0


def killed_saves(num_kills: int, seed: int) -> list[Line]:
    """A third of the kills is of the process that writes, of the one that trains, and of both."""
    random_ = random.Random(seed)
    plan = [WHAT[number % len(WHAT)] for number in range(num_kills)]
    loads: Counter[str] = Counter()
    failed = 0
    while plan:
        with (
            tempfile.TemporaryDirectory(prefix="multiworld-training-") as folder,
            Run(OURS, 1, [*OPTIONS, "--checkpoint", folder]) as run,
        ):
            saves = Saves(run, Path(folder), random_)
            what = plan.pop(0)
            try:
                saves.start()
                loads[saves.kill(what)] += 1
                while plan:
                    what = plan.pop(0)
                    loads[saves.kill(what)] += 1
            except TrialFailed as error:
                failed += 1
                print(f"  killed-save, {what}: {error}", file=sys.stderr, flush=True)
                run.show()
    return [
        Line(
            name=f"{num_kills} kills in a save: loads of other bits, or of an older checkpoint, or none",
            unit="",
            value=failed,
            bound=Bound.at_most(0),
            details={name: float(count) for name, count in sorted(loads.items())},
        )
    ]


class Saves:
    """A training on one replica that saves again and again, and what it has told of its states."""

    def __init__(self, run: Run, folder: Path, random_: random.Random) -> None:
        self._run, self._folder, self._random = run, folder, random_

    def start(self) -> None:
        self._run.start()
        self._await_saves(2, 0.0)

    def kill(self, what: str) -> str:
        """Kill, load, and return what was loaded. Raises TrialFailed if that is not what it should be."""
        before, trainer, writer = self._in_a_save()
        for pid in {"the writer": [writer], "the training process": [trainer], "both": [writer, trainer]}[what]:
            os.kill(pid, signal.SIGKILL)
        at = time.monotonic()
        if what == "the writer":
            step, digest = self._load()
        else:
            step, digest = self._restarted(trainer, at)
        self._check(before, step, digest)
        print(f"  killed {what}: checkpoint {before} stood, {step} was loaded", flush=True)
        self._await_saves(2, at)
        return "the one before" if step == before else "the new one"

    def _in_a_save(self) -> tuple[int, int, int]:
        """Return in the middle of a save: the step of the newest checkpoint, the training process, and its writer."""
        took_s = min(entry["took_s"] for entry in self._entries("saved"))  # the first ones load code
        trainer, writer = self._processes()
        while True:
            self._run.wait(lambda: bool(self._unfinished()), SAVE_S, "a save")
            (name, *_) = self._unfinished()
            time.sleep(self._random.uniform(0.0, took_s))
            found = newest(self._folder, hashes=False)
            if found is not None and name in self._unfinished():
                return found.step, trainer, writer
            self._run.wait(lambda name=name: name not in self._unfinished(), SAVE_S, "that save's end")  # type: ignore[misc]

    def _unfinished(self) -> list[str]:
        return [path.name for path in self._folder.glob(f"{UNFINISHED}*")]

    def _processes(self) -> tuple[int, int]:
        self._run.journal.read()
        trainer = next(entry.pid for entry in reversed(self._run.journal.entries) if entry.event == "commit")
        for path in Path("/proc").glob("[0-9]*/stat"):
            try:
                parent = int(path.read_text().rpartition(")")[2].split()[1])
                if parent == trainer and b"writer_program" in (path.parent / "cmdline").read_bytes():
                    return trainer, int(path.parent.name)
            except OSError:
                continue  # it ended meanwhile
        raise TrialFailed(f"the training process {trainer} has no writer")

    def _load(self) -> tuple[int, str]:
        """Load as another program does, while the training goes on."""
        while True:
            found = newest(self._folder)
            if found is None:
                raise TrialFailed("there is no checkpoint")
            try:
                parts = read(found)["parts"]
            except CheckpointDamagedError:
                if Path(found.path).exists():
                    raise
                continue  # the training has removed it, as a surplus one
            return found.step, digest_of([parts["model.0"], parts["optimizer.0"]])

    def _restarted(self, trainer: int, at: float) -> tuple[int, str]:
        """Return with which state the next training process begins."""

        def first() -> list[Entry]:
            return [entry for entry in self._entries("state") if entry.at > at and entry.pid != trainer]

        self._run.wait(lambda: bool(first()), RESTART_S, "the training's restart")
        (loaded, *_) = [entry for entry in self._entries("loaded") if entry.at > at]
        begun = first()[0]
        if begun["step"] != loaded["step"]:
            raise TrialFailed(f"it loaded step {loaded['step']}, and began with {begun['step']}")
        return int(begun["step"]), str(begun["digest"])

    def _check(self, before: int, step: int, digest: str) -> None:
        saved = {entry["digest"] for entry in self._entries("state") if entry["step"] == step}
        if saved != {digest}:
            raise TrialFailed(f"step {step} was loaded with the bits {digest}; it had {saved}")
        if step < before:
            raise TrialFailed(f"step {step} was loaded, though {before} was whole")

    def _await_saves(self, number: int, after: float) -> None:
        self._run.wait(
            lambda: sum(entry.at > after for entry in self._entries("saved")) >= number, RESTART_S, f"{number} saves"
        )

    def _entries(self, event: str) -> list[Entry]:
        return [entry for entry in self._run.journal.entries if entry.event == event]

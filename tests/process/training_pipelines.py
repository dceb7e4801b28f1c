"""Train ``training_pipeline_program`` under the launcher, and read what its processes wrote down."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tests import warm_programs

from .training_pipeline_program import Options

PROGRAM = Path(__file__).with_name("training_pipeline_program.py")
TOTAL = 12
CHAIN = Options()
GPT = Options(model="gpt", layers_of_a_process=14)  # two pipelines of two processes


@dataclass(frozen=True)
class Committed:
    """What one process saw of one step."""

    rank: int
    loss: float
    layers: tuple[int, ...]
    lr: float
    num_reroutes: int
    policy: str
    forwards: tuple[int, ...] = ()
    """The micro-batches of its forwards, in all tries of the step."""
    num_put_off: int = 0
    """Split backwards that it has ended until then."""


def train(folder: Path, options: Options, *, num_processes: int = 4) -> dict[int, list[Committed]]:
    """Return for each step what the processes saw that committed it."""
    folder.mkdir()
    run = [sys.executable, "-m", "multiworld.run", f"--nproc-per-node={num_processes}", "--max-restarts=5"]
    command = [*run, "--restart=worker", str(PROGRAM), str(folder), json.dumps(asdict(options))]
    ended = warm_programs.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return read(folder)


def read(folder: Path) -> dict[int, list[Committed]]:
    seen: dict[int, list[Committed]] = {}
    for path in sorted(folder.iterdir()):
        for line in path.read_text().splitlines():
            said: dict[str, Any] = json.loads(line)
            if "end" in said:
                continue
            rank = int(path.name.partition("-")[0])
            lr, reroutes, forwards = said["lr"][0], said["reroutes"], tuple(said["forwards"])
            one = Committed(
                rank, said["loss"], tuple(said["layers"]), lr, reroutes, said["policy"], forwards, said["put_off"]
            )
            seen.setdefault(said["step"], []).append(one)
    return dict(sorted(seen.items()))


def losses(seen: dict[int, list[Committed]], steps: Sequence[int] = range(TOTAL)) -> list[float]:
    """Return the loss of each of these steps. Asserts that all saw the same, in every step."""
    for step, each in seen.items():
        assert len({(one.loss, one.lr) for one in each}) == 1, f"step {step}: {each}"
    assert list(seen) == list(steps)
    return [each[0].loss for each in seen.values()]


@cache
def undisturbed(options: Options = CHAIN) -> Sequence[float]:
    """Return the losses of a training with these options that loses nobody. Each is done once."""
    assert not options.kills
    with tempfile.TemporaryDirectory() as folder:
        return losses(train(Path(folder) / "run", options))

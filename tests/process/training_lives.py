"""Run ``training_sync_program`` under the launcher, and read what its processes wrote down."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from tests import warm_programs

PROGRAM = Path(__file__).with_name("training_sync_program.py")


@dataclass
class Life:
    """What one process wrote down: its share of each step that it did, and what it ended with."""

    rank: int
    shares: dict[int, list[int]] = field(default_factory=dict)
    losses: dict[int, float] = field(default_factory=dict)
    final: list[float] | None = None
    scheduler: int = 0


def read(folder: Path) -> list[Life]:
    lives = []
    for path in sorted(folder.iterdir(), key=lambda path: path.stat().st_ctime_ns):
        life = Life(int(path.name.partition("-")[0]))
        for line in path.read_text().splitlines():
            said = json.loads(line)
            if "final" in said:
                life.final, life.scheduler = said["final"], said["scheduler"]
            else:
                assert said["step"] not in life.shares, f"rank {life.rank} did step {said['step']} twice"
                life.shares[said["step"]] = said["share"]
                life.losses[said["step"]] = said["values"]["loss"]
        lives.append(life)
    return lives


def train(
    folder: Path,
    kind: str,
    *,
    num_processes: int,
    total: int,
    killed_rank: int,
    kill_at: int,
    moment: Literal["inner", "outer"] = "inner",
) -> list[Life]:
    """Train while one rank kills itself in a step, or in the outer step after it; return all lives, in order."""
    run = [sys.executable, "-m", "multiworld.run", f"--nproc-per-node={num_processes}", "--max-restarts=3"]
    options = map(str, (folder, kind, total, killed_rank, kill_at, moment))
    command = [*run, str(PROGRAM), *options]
    ended = warm_programs.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return read(folder)

"""A replica of two processes that loses one of them, or both: it goes on from memory, with the same bits."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest

from multiworld.testing import scaled
from tests import warm_programs

from .training_copies_program import EVERY, SHARED_MEMORY

MODULE = "tests.process.training_copies_program"
PRELOADED = "torch.distributed.checkpoint.default_planner"
LOST_AT, END = 35, 42
NEWEST = LOST_AT // EVERY * EVERY

pytestmark = [pytest.mark.process, pytest.mark.timeout(scaled(240))]


@dataclass
class Life:
    """What one process wrote down."""

    rank: int
    losses: dict[int, float] = field(default_factory=dict)
    loaded: list[tuple[int, str]] = field(default_factory=list)
    """Step and source of what it took from memory."""
    final: list[float] | None = None
    others: list[str] = field(default_factory=list)


def command(folder: Path, *, lost_ranks: str = "", what: str = "plain") -> list[str]:
    options = ["--nproc-per-node=2", "--max-restarts=4", f"--preload={PRELOADED}", "--module", MODULE]
    program = [str(folder), str(END), str(LOST_AT), lost_ranks, what]
    return [sys.executable, "-m", "multiworld.run", *options, *program]


def read(folder: Path) -> list[Life]:
    lives = []
    for path in sorted(folder.glob("[01]-[0-9]*"), key=lambda path: path.stat().st_ctime_ns):
        life = Life(int(path.name.partition("-")[0]))
        for line in path.read_text().splitlines():
            said = json.loads(line)
            if "did" in said:
                life.losses[said["did"]] = said["loss"]
            elif said.get("event") == "CopyLoaded":
                life.loaded.append((said["step"], said["source"]))
            elif "final" in said:
                life.final = said["final"]
            else:
                life.others.append(said["event"])
        lives.append(life)
    return lives


def train(folder: Path, *, lost_ranks: str = "", what: str = "plain") -> list[Life]:
    """Train to the end, and return the lives of all processes, in order. Nothing is left in memory then."""
    before = in_memory()
    run = command(folder, lost_ranks=lost_ranks, what=what)
    ended = warm_programs.run(run, capture_output=True, text=True, timeout=scaled(110), check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert in_memory() - before == set()
    return read(folder)


def in_memory() -> set[str]:
    return {path.name for path in SHARED_MEMORY.glob("multiworld-copy.*")}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> list[Life]:
    return train(tmp_path_factory.mktemp("undisturbed"))


def check_same_bits(lives: list[Life], undisturbed: list[Life]) -> None:
    expected = undisturbed[0].losses
    assert sorted(expected) == list(range(END))
    for life in lives:
        assert {step: expected[step] for step in life.losses} == life.losses
    final = {life.rank: life.final for life in undisturbed}
    assert {life.rank: life.final for life in lives if life.final is not None} == final


@pytest.mark.parametrize("lost_ranks", ["1", "0,1"])
def test_a_lost_process_or_all_of_them_cost_the_steps_since_the_newest_snapshot(
    tmp_path: Path, undisturbed: list[Life], lost_ranks: str
) -> None:
    lives = train(tmp_path, lost_ranks=lost_ranks)
    check_same_bits(lives, undisturbed)
    assert [len([life for life in lives if life.rank == rank]) for rank in (0, 1)] == [2, 2]
    for life in lives[2:]:
        assert life.loaded == [(NEWEST, "own")]
        assert sorted(life.losses) == list(range(NEWEST, END))
        assert "CheckpointLoaded" not in life.others


def test_a_damaged_snapshot_is_not_used_but_its_copy_is(tmp_path: Path, undisturbed: list[Life]) -> None:
    lives = train(tmp_path, lost_ranks="0,1", what="damaged")
    check_same_bits(lives, undisturbed)
    assert [life.loaded for life in lives[2:]] == [[(NEWEST, "copy")]] * 2


def test_all_take_an_older_step_if_one_shard_is_damaged_everywhere(tmp_path: Path, undisturbed: list[Life]) -> None:
    lives = train(tmp_path, lost_ranks="0,1", what="spoilt")
    check_same_bits(lives, undisturbed)
    assert [life.loaded for life in lives[2:]] == [[(NEWEST - EVERY, "own")]] * 2


def test_the_next_start_removes_what_a_killed_launcher_left_and_does_not_use_it(
    tmp_path: Path, undisturbed: list[Life]
) -> None:
    before = in_memory()
    with subprocess.Popen(command(tmp_path, what="waits"), stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as run:
        wait_until(lambda: (tmp_path / "at-0").exists() and (tmp_path / "at-1").exists())
        os.kill(run.pid, signal.SIGKILL)
    for path in tmp_path.glob("[01]-[0-9]*"):
        pid = int(path.name.partition("-")[2])
        wait_until(partial(is_gone, pid))
        path.unlink()
    left = in_memory() - before
    assert left
    lives = train(tmp_path)
    assert in_memory() & left == set()
    check_same_bits(lives, undisturbed)
    assert [sorted(life.losses) for life in lives] == [list(range(END))] * 2


def is_gone(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + scaled(60)
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)

"""Every example runs by itself, ends with status 0, says what it found, and leaves no process behind."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from multiworld.testing import WorkerGroup
from multiworld.testing.deadlines import scaled, wait_until
from tests import warm_programs

FOLDER = Path(__file__).parents[2] / "examples"
EXPECTED = {
    "collectives.py": "all ranks agree",
    "ddp_on_a_world.py": "as in one process that was never disturbed",
    "die_and_rejoin.py": "PeerDiedError",
    "multi_host.py": "rank 2 of 3",
    "plain_torch_vs_worlds.py": "worlds: rank 2 was killed",
    "process_group_mode.py": "all ranks agree after the loss",
    "remote_module.py": "the same bits as here: True",
    "remote_recovery.py": "the weights are the same",
    "rhombus.py": "each answered once, all equal",
    "serve_resnet.py": "bitwise equal to the whole model: True",
    "serve_rhombus.py": "all equal to the single process",
    "serve_scaling.py": "0 errors; three replicas gave",
    "serve_update.py": "after it: 0 errors, only answers of version 2: True",
    "remote_data_parallel.py": "both replicas are equal, bit for bit: True\nas trained in one process: True",
    "remote_teacher_student.py": "the student learned: True\nbytes of features through the master: 0",
    "train_pipeline_grows.py": "6 processes in ",  # two pipelines of 3 or three of 2, as the layers were measured
    "train_pipeline_templates.py": "5 nodes: pipelines: 1 of 3 nodes",
    "remote_streams.py": "as computed here: True",
    "several_worlds.py": "green and blue go on: [20.0, 20.0]",
}
LAUNCHED = "elastic_worlds.py"
LAUNCHED_TRAININGS = {
    "train_ddp.py",
    "train_ddp_worlds.py",
    "train_diloco.py",
    "train_from_torchft.py",
    "train_from_torchrun.py",
    "train_pipeline.py",
    "train_resume.py",
}  # run by tests/process/test_launched_training.py
# run by tests/process/test_training_example_programs.py
SHARDED_REPLICAS = {"train_fsdp_replicas.py", "train_fsdp2.py", "train_from_fsdp2.py"}
REPLICAS = "train_replicas.py"  # run by tests/process/test_training_example.py
FORERUNNERS = {"multiworld_asyncio.py", "single_world.py"}  # they go on until they are killed
REMOTE = "remote_rfc.py"  # run by tests/process/test_remote_launched.py
GENERATION = "serve_gpt.py"  # run by tests/process/test_serving_generation.py

DONE_S = scaled(100)  # one that starts six processes takes 35 s on two idle cores

pytestmark = [pytest.mark.process, pytest.mark.timeout(scaled(130))]


def test_every_example_is_run_here() -> None:
    assert {path.name for path in FOLDER.glob("*.py")} == {
        *EXPECTED,
        *FORERUNNERS,
        LAUNCHED,
        *LAUNCHED_TRAININGS,
        GENERATION,
        REMOTE,
        REPLICAS,
        *SHARDED_REPLICAS,
    }


def test_the_first_program_of_the_forerunner_goes_on_with_the_world_that_is_left(tmp_path: Path) -> None:
    program = tmp_path / "multiworld_asyncio.py"
    ports = [str(port) for port in _free_ports(2)]
    text = (FOLDER / program.name).read_text()
    program.write_text(text.replace("29500", ports[0]).replace("30500", ports[1]))
    with WorkerGroup() as workers:
        options = ["--batch", "2", "--pause", "0.05", "--rank"]
        leader, first, second = (workers.start(program, *options, str(rank), name=str(rank)) for rank in range(3))
        assert wait_until(lambda: "world1: received [1.0, 1.0]" in leader.stdout, 40), leader.describe()
        assert wait_until(lambda: "world2: received [2.0, 2.0]" in leader.stdout, 10), leader.describe()
        second.kill()
        assert wait_until(lambda: "world2 is broken: " in leader.stdout, 10), leader.describe()
        received = leader.stdout.count("world1: received")
        assert wait_until(lambda: leader.stdout.count("world1: received") > received + 3, 10), leader.describe()
        first.kill()
        assert leader.wait(20) == 0, leader.describe()
        assert "which died" in leader.stdout


def test_the_second_program_of_the_forerunner_loses_all_with_one(tmp_path: Path) -> None:
    with WorkerGroup() as workers:
        options = ["--worldsize", "3", "--pause", "0.05", "--port", str(_free_ports(1)[0]), "--multihost", "--rank"]
        ranks = [workers.start(FOLDER / "single_world.py", *options, str(rank), name=str(rank)) for rank in range(3)]
        assert wait_until(lambda: "received 2.0 from rank 2" in ranks[0].stdout, 40), ranks[0].describe()
        ranks[2].kill()
        assert wait_until(lambda: "rank 0: nothing from rank 2" in ranks[0].stdout, 10), ranks[0].describe()
        for rank in ranks:
            rank.kill()


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports: list[int] = [sock.getsockname()[1] for sock in sockets]
    for sock in sockets:
        sock.close()
    return ports


def test_the_example_for_the_launcher_loses_no_step_when_a_worker_is_killed() -> None:
    command = [sys.executable, "-m", "multiworld.run", "--nproc-per-node=3", str(FOLDER / LAUNCHED), "30", "0.05"]
    process = warm_programs.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert process.stdout is not None
    lines: list[str] = []
    try:
        for line in process.stdout:
            lines.append(line)
            if line.endswith("] step 10\n"):
                (victim,) = re.findall(r"rank 1 of 3, pid (\d+)", "".join(lines))
                os.kill(int(victim), signal.SIGKILL)
        assert process.wait(20) == 0, "".join(lines)
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
    output = "".join(lines)
    pids = {match[1]: match[2] for match in re.finditer(r"rank (\d) of 3, pid (\d+): from step 0\n", output)}
    again = {match[1]: match[2] for match in re.finditer(r"rank (\d) of 3, pid (\d+): from step [1-9]", output)}
    assert len(pids) == 3, output
    assert {rank: again.get(rank) == pid for rank, pid in pids.items()} == {"0": True, "1": False, "2": True}, output
    assert output.count("weight [180.0, 180.0, 180.0, 180.0] after 30 steps") == 3, output


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_example_runs_and_checks_its_result(name: str) -> None:
    _run(name)


@pytest.mark.sources
def test_training_goes_on_after_a_loss_where_nothing_is_compiled() -> None:
    """DDP wraps the same model again, which it can only if nothing keeps the former wrapper."""
    _run("ddp_on_a_world.py")


def _run(name: str) -> None:
    process = warm_programs.Popen(
        [sys.executable, FOLDER / name],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=DONE_S)
    except subprocess.TimeoutExpired as error:
        os.killpg(process.pid, signal.SIGKILL)  # else it, and the pipe, would trouble the tests that follow
        output, _ = process.communicate()
        raise AssertionError(f"not done after {DONE_S:g} s:\n{output}") from error
    assert process.returncode == 0, output
    assert EXPECTED[name] in output
    # Its session is its process group too. multiprocessing's resource tracker ends a moment after the last process.
    assert wait_until(lambda: not _group_exists(process.pid), 5)


def _group_exists(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True

"""The programs in the documentation run as they stand; only their port is another."""

from __future__ import annotations

import ast
import re
import socket
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from multiworld.testing import Worker, WorkerGroup, wait_until
from tests import warm_programs

pytestmark = pytest.mark.usefixtures("no_leaks")

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])
FORM_S = 20.0


def code_blocks(page: Path) -> Iterator[tuple[str, str]]:
    """Yield (title, code) of each Python block."""
    for match in re.finditer(r"^```python *(.*?)\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL):
        title = re.search(r'title="(.*?)"', match[1])
        yield (title[1] if title else "", match[2])


@dataclass(frozen=True)
class Block:
    """A block of code of any language: ``fence`` is what stands after the back-ticks."""

    page: str
    line: int
    fence: str
    code: str

    @property
    def first_line(self) -> str:
        return self.code.partition("\n")[0]

    def has(self, text: str) -> bool:
        return text in f"{self.fence}\n{self.code}"


def all_blocks() -> list[Block]:
    """Return each block of code of all pages; of a page its path in the repository."""
    return [
        Block(str(page.relative_to(ROOT)), text[: match.start()].count("\n") + 1, match[1], match[2])
        for page in PAGES
        for text in [page.read_text()]
        for match in re.finditer(r"^ *```([^\n]*)\n(.*?)^ *```$", text, re.MULTILINE | re.DOTALL)
    ]


def code_block(page: str, text: str) -> str:
    """Return the one block of that page that has the text, in its code or in its fence."""
    (block,) = (block for block in all_blocks() if block.page == page and block.has(text))
    return block.code


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def program(tmp_path: Path, page: str, title: str, *replacements: tuple[str, str]) -> Path:
    """Write one titled program to a file, on a port that is free now."""
    (code,) = (code for name, code in code_blocks(ROOT / page) if name == title)
    for old, new in (("29500", str(free_port())), *replacements):
        assert old in code
        code = code.replace(old, new)
    path = tmp_path / (title or "program.py")
    path.write_text(code)
    return path


def start(workers: WorkerGroup, path: Path, *args: str) -> Worker:
    return workers.start(path, *args, name=" ".join(args), env={"PYTHONUNBUFFERED": "1"})


def await_line(worker: Worker, text: str) -> None:
    wait_until(lambda: text in worker.stdout or worker.returncode is not None, FORM_S)
    assert text in worker.stdout, worker.describe()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_python_block_is_python(page: Path) -> None:
    for _, code in code_blocks(page):
        ast.parse("async def block():\n" + textwrap.indent(code, "    "), str(page))


def test_a_function_is_launched_as_the_page_on_torchrun_says(tmp_path: Path) -> None:
    (code,) = (code for name, code in code_blocks(ROOT / "docs/migrating-from-torchrun.md") if name == "functions.py")
    path = tmp_path / "functions.py"
    path.write_text(code)
    ran = warm_programs.run([sys.executable, str(path)], stdout=subprocess.PIPE, text=True, timeout=60, check=True)
    (shown,) = re.findall(r"print\(.*#(.*)$", code, re.MULTILINE)
    assert ran.stdout.strip() == shown.strip()


def test_the_twenty_lines_of_the_readme_go_on_with_a_replacement(tmp_path: Path) -> None:
    path = program(tmp_path, "README.md", "")
    with WorkerGroup() as workers:
        first, second = start(workers, path, "0"), start(workers, path, "1")
        await_line(first, "generation 1: [3.0, 3.0, 3.0, 3.0]")
        second.kill()
        await_line(first, "world 'pair' (generation 1) lost rank 1, which died: ")
        again = start(workers, path, "1")
        for each in (first, again):
            await_line(each, "generation 2: [3.0, 3.0, 3.0, 3.0]")


def test_the_first_program_of_the_tutorial(tmp_path: Path) -> None:
    path = program(tmp_path, "docs/tutorial.md", "pair.py")
    with WorkerGroup() as workers:
        first, second = start(workers, path, "0"), start(workers, path, "1")
        assert (first.wait(), second.wait()) == (0, 0)
        assert second.stdout == "tensor([0., 1., 2., 3.])\n"


def test_the_leader_of_the_tutorial_ends_when_a_worker_is_killed(tmp_path: Path) -> None:
    path = program(tmp_path, "docs/tutorial.md", "leader.py", ("sleep(0.5)", "sleep(0.05)"))
    with WorkerGroup() as workers:
        leader, left, right = (start(workers, path, role) for role in ("lead", "left", "right"))
        await_line(leader, "right: 3 -> 9.0")
        await_line(leader, "left: 0 -> 0.0")  # killed before, its place would stay open until the join runs out of time
        left.kill()
        assert leader.wait() == 1
        shown = code_block("docs/tutorial.md", "multiworld.errors.PeerDiedError").replace("\n", " ")
        begin, end = shown.strip().split("...")
        assert re.search(f"{re.escape(begin)}.*{re.escape(end)}", leader.stderr), leader.stderr
        assert right.wait() == 0
        assert right.stdout.endswith("the leader has left\n")


def test_the_leader_of_the_tutorial_goes_on_in_the_next_generation(tmp_path: Path) -> None:
    page = ROOT / "docs/tutorial.md"
    (living,) = (code for _, code in code_blocks(page) if code.startswith("async def consult") and "rejoin" in code)
    (mortal,) = (code for name, code in code_blocks(page) if name == "leader.py")
    mortal = mortal[mortal.index("async def consult") : mortal.index("async def work")]
    path = program(tmp_path, "docs/tutorial.md", "leader.py", (mortal, living + "\n\n"), ("sleep(0.5)", "sleep(0.02)"))
    with WorkerGroup() as workers:
        leader, left, right = (start(workers, path, role) for role in ("lead", "left", "right"))
        await_line(leader, "left generation 1: 3 -> 9.0")
        left.kill()
        again = start(workers, path, "left")
        await_line(leader, "left generation 2: 50 -> 2500.0")
        assert (leader.wait(), right.wait(), again.wait()) == (0, 0, 0)
        answers = [line.split(": ")[1] for line in leader.stdout.splitlines() if line.startswith("left generation")]
        assert answers == [f"{number} -> {float(number**2)}" for number in range(100)]


def test_the_ring_of_process_group_mode(tmp_path: Path) -> None:
    path = program(tmp_path, "docs/process-group-mode.md", "ring.py")
    with WorkerGroup() as workers:
        first, second = start(workers, path, "0"), start(workers, path, "1")
        assert (first.wait(), second.wait()) == (0, 0)
        assert first.stdout == "rank 0 got [1.0, 1.0, 1.0, 1.0] from rank 1\n"


def test_the_program_for_multiworld_0_2_in_the_migration_guide(tmp_path: Path) -> None:
    page = "docs/migrating.md"
    (code,) = (code for _, code in code_blocks(ROOT / page) if "initialize_world" in code)
    path = program(tmp_path, page, "", ('backend="gloo"', 'backend="tcp"'))
    assert code.startswith("import asyncio")
    path.write_text(path.read_text().replace("    manager.cleanup()\n", "    manager.cleanup()\n    print(tensor)\n"))
    with WorkerGroup() as workers:
        first, second = start(workers, path, "0"), start(workers, path, "1")
        assert (first.wait(), second.wait()) == (0, 0)
        assert second.stdout == "tensor([1., 1., 1., 1.])\n"

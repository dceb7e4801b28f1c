"""What runs once more after the tests with processes have failed in CI."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from tests.stages import Stage, run_stages

STAGES = (
    Stage(name="beside", arguments=("-m", "not alone"), environment={}),
    Stage(name="sources", arguments=("-m", "sources"), environment={"MULTIWORLD_NATIVE": "core"}),
)


class FakePytest:
    """Fails the given tests in the first stage, and those that fail twice again."""

    def __init__(self, *failing: str, failing_twice: Sequence[str] = (), status: int | None = None) -> None:
        self.failing, self.failing_twice, self.status = failing, failing_twice, status
        self.second_runs: list[tuple[str, Mapping[str, str]]] = []

    def __call__(self, arguments: Sequence[str], environment: Mapping[str, str]) -> int:
        if "-m" not in arguments:
            self.second_runs.append((arguments[0], environment))
            return 1 if arguments[0] in self.failing_twice else 0
        if "sources" not in arguments:
            return 0
        cache = next(word.partition("=")[2] for word in arguments if word.startswith("cache_dir="))
        folder = Path(cache, "v/cache")
        folder.mkdir(parents=True)
        folder.joinpath("lastfailed").write_text(json.dumps(dict.fromkeys(self.failing, True)))
        return self.status if self.status is not None else (1 if self.failing else 0)


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_nothing_runs_again_when_all_passed() -> None:
    fake = FakePytest()
    assert run_stages(STAGES, [], fake, in_ci=True) == 0
    assert fake.second_runs == []


def test_a_test_that_passes_in_its_second_run_is_named_flaky(capsys: pytest.CaptureFixture[str]) -> None:
    fake = FakePytest("tests/process/test_a.py::test_b[x y]")
    assert run_stages(STAGES, [], fake, in_ci=True) == 0
    assert fake.second_runs == [("tests/process/test_a.py::test_b[x y]", {"MULTIWORLD_NATIVE": "core"})]
    assert capsys.readouterr().out == "flaky: tests/process/test_a.py::test_b[x y]\n"


def test_one_that_fails_twice_fails_all(capsys: pytest.CaptureFixture[str]) -> None:
    fake = FakePytest("a.py::one", "a.py::two", failing_twice=["a.py::two"])
    assert run_stages(STAGES, [], fake, in_ci=True) == 1
    assert capsys.readouterr().out == "flaky: a.py::one\nfailed twice: a.py::two\n"


def test_a_fourth_failure_gives_none_of_them_a_second_run() -> None:
    fake = FakePytest("a.py::1", "a.py::2", "a.py::3", "a.py::4")
    assert run_stages(STAGES, [], fake, in_ci=True) == 1
    assert fake.second_runs == []


def test_outside_ci_a_failure_is_a_failure() -> None:
    fake = FakePytest("a.py::one")
    assert run_stages(STAGES, [], fake, in_ci=False) == 1
    assert fake.second_runs == []


@pytest.mark.parametrize("status", [2, 3, 4, 5])
def test_a_stage_that_was_interrupted_or_is_empty_fails_at_once(status: int) -> None:
    fake = FakePytest("a.py::one", status=status)
    assert run_stages(STAGES, [], fake, in_ci=True) == status
    assert fake.second_runs == []


def test_a_stage_of_which_nothing_was_chosen_passes() -> None:
    assert run_stages(STAGES, ["-k", "other"], FakePytest(status=5), in_ci=True) == 0


def test_a_failure_without_a_test_or_of_a_whole_file_gets_no_second_run() -> None:
    for failing in ((), ("tests/process/test_cannot_be_imported.py",)):
        fake = FakePytest(*failing, status=1)
        assert run_stages(STAGES, [], fake, in_ci=True) == 1
        assert fake.second_runs == []
        Path(".pytest_cache/stages/sources/v/cache/lastfailed").unlink()
        Path(".pytest_cache/stages/sources/v/cache").rmdir()


def test_a_stage_of_marked_tests_looks_at_the_files_that_name_the_mark(tmp_path: Path) -> None:
    for name, text in (("test_a", "@pytest.mark.alone"), ("test_b", "alone"), ("deeper/test_c", "[pytest.mark.alone]")):
        path = tmp_path / f"tests/process/{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    asked: list[Sequence[str]] = []

    def call(arguments: Sequence[str], _: Mapping[str, str]) -> int:
        asked.append(arguments[: arguments.index("--override-ini")])
        return 0

    alone = Stage(name="alone", arguments=("-m", "alone"), environment={}, mark="alone")
    assert run_stages([alone], [], call, in_ci=True) == 0
    assert asked == [["-m", "alone", "tests/process/deeper/test_c.py", "tests/process/test_a.py", "tests/gpu"]]

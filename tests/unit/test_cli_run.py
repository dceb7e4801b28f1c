"""What ``multiworld run`` says and returns when a job ends, and that a bad line starts nothing."""

from __future__ import annotations

import faulthandler
import gc
import json
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from types import ModuleType

import pytest
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure

from multiworld import launch as old_launcher
from multiworld import run as launcher
from multiworld.cli.job_end import told
from multiworld.cli.main import main
from multiworld.elastic.job.options import JobOptions
from multiworld.elastic.launch.arguments import options_from
from multiworld.elastic.launch.launcher import _pump
from multiworld.elastic.launch.parser import LAUNCH, run_parser
from multiworld.errors import StoreError

LINE = ["--nproc-per-node=2", __file__, "--epochs", "3"]


class _Launcher(ModuleType):
    """Stands for ``multiworld.elastic.launch.launcher``: notes what it should launch, and ends as it is told to."""

    def __init__(self, end: BaseException | None) -> None:
        super().__init__("multiworld.elastic.launch.launcher")
        self.launched: list[JobOptions] = []
        self.is_collected: list[tuple[bool, bool]] = []
        """At each launch: whether there are collections, and whether they look at what was imported."""
        self.end = end

    def launch(self, options: JobOptions, *, in_place: bool) -> None:
        self.launched.append(options)
        self.is_collected.append((gc.isenabled(), gc.get_freeze_count() == 0))
        if self.end is not None:
            raise self.end


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[BaseException | None], _Launcher]]:
    """Return a function that decides how the job ends."""
    monkeypatch.setattr(faulthandler, "enable", lambda **_: None)  # record turns it on, and pytest has it on already
    monkeypatch.delenv("TORCHELASTIC_ERROR_FILE", raising=False)

    def decide(end: BaseException | None) -> _Launcher:
        fake = _Launcher(end)
        monkeypatch.setitem(sys.modules, fake.__name__, fake)
        return fake

    yield decide
    gc.unfreeze()


def launch(arguments: Sequence[str]) -> int:
    """Do what ``python -m multiworld.launch`` does."""
    return told(LAUNCH, partial(old_launcher.main, in_place=True), arguments)


def failed(exitcode: int, error_file: str = "<N/A>") -> ChildFailedError:
    return ChildFailedError(
        "prog.py", {5: ProcessFailure(local_rank=1, pid=77, exitcode=exitcode, error_file=error_file)}
    )


def recorded(folder: Path, message: object) -> str:
    path = folder / "error.json"
    path.write_text(json.dumps({"message": message}))
    return str(path)


def test_a_job_that_ends_well_ends_with_0_and_says_nothing(
    ends: Callable[[BaseException | None], _Launcher], capsys: pytest.CaptureFixture[str]
) -> None:
    fake = ends(None)
    assert main(["run", *LINE]) == 0
    assert [(each.num_workers, each.entrypoint.arguments) for each in fake.launched] == [(2, ("--epochs", "3"))]
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("end", "status", "told"),
    [
        (failed(3), 3, "rank 5 (local rank 1, pid 77) failed with exit status 3"),
        (failed(-signal.SIGKILL), 137, "rank 5 (local rank 1, pid 77) was ended by SIGKILL"),
        (failed(-60), 188, "rank 5 (local rank 1, pid 77) was ended by signal 60"),
        (failed(0), 1, "rank 5 (local rank 1, pid 77) failed with exit status 0"),
        (SignalException("got it", signal.SIGTERM), 143, "ended by SIGTERM"),
        (KeyboardInterrupt(), 130, "interrupted"),
        (StoreError("tcp://h:1", "nobody listens there"), 1, "store tcp://h:1: nobody listens there"),
        (ValueError("--rdzv-backend 'x' is unknown"), 2, "--rdzv-backend 'x' is unknown"),
    ],
)
def test_the_status_and_one_line_say_how_the_job_ended(
    end: BaseException,
    status: int,
    told: str,
    ends: Callable[[BaseException | None], _Launcher],
    capsys: pytest.CaptureFixture[str],
) -> None:
    ends(end)
    assert main(["run", *LINE]) == status
    assert capsys.readouterr() == ("", f"multiworld run: {told}\n")


def test_what_the_worker_recorded_is_told_and_handed_up(
    ends: Callable[[BaseException | None], _Launcher],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    above = tmp_path / "above.json"
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(above))
    extra = {"py_callstack": "Traceback ...", "timestamp": "1700000000"}
    ends(failed(1, recorded(tmp_path, {"message": "RuntimeError: no\nmore", "extraInfo": extra})))
    assert main(["run", *LINE]) == 1
    assert capsys.readouterr().err.endswith("failed with exit status 1: RuntimeError: no\n")
    assert json.loads(above.read_text())["message"]["errorCode"] == 1


def test_an_error_of_which_nothing_is_known_keeps_its_traceback(
    ends: Callable[[BaseException | None], _Launcher],
) -> None:
    ends(ZeroDivisionError("a mistake of ours"))
    with pytest.raises(ZeroDivisionError):
        main(["run", *LINE])


@pytest.mark.parametrize("line", [["absent.py"], ["--nnodes=2:1", __file__]])
def test_a_line_that_makes_no_sense_ends_with_2_before_anything_starts(
    line: list[str], ends: Callable[[BaseException | None], _Launcher], capsys: pytest.CaptureFixture[str]
) -> None:
    fake = ends(None)
    assert main(["run", *line]) == 2
    assert fake.launched == []
    assert capsys.readouterr().err.count("\n") == 1


def test_help_ends_with_0(
    ends: Callable[[BaseException | None], _Launcher], capsys: pytest.CaptureFixture[str]
) -> None:
    fake = ends(None)
    assert main(["run", "--help"]) == 0
    assert fake.launched == []
    assert "multiworld run [OPTIONS] SCRIPT" in capsys.readouterr().out


@pytest.mark.parametrize("program", [launcher.main, old_launcher.main])
@pytest.mark.parametrize("end", [failed(3), ValueError("refused"), StoreError("tcp://h:1", "gone")])
def test_called_from_a_program_the_error_itself_comes_out(
    program: Callable[[Sequence[str]], None], end: BaseException, ends: Callable[[BaseException | None], _Launcher]
) -> None:
    ends(end)
    with pytest.raises(type(end)) as raised:
        program(LINE)
    assert raised.value is end


def test_collections_leave_out_what_a_command_has_imported_and_nothing_of_a_program_that_launches(
    ends: Callable[[BaseException | None], _Launcher],
) -> None:
    fake = ends(None)
    gc.unfreeze()
    launcher.main(LINE)
    launcher.main(LINE, in_place=True)
    assert fake.is_collected == [(True, True), (True, False)]


def test_the_old_launcher_passes_the_local_rank_unless_told_not_to(
    ends: Callable[[BaseException | None], _Launcher], capsys: pytest.CaptureFixture[str]
) -> None:
    fake = ends(None)
    assert launch(LINE) == 0
    assert launch(["--use-env", *LINE]) == 0
    assert main(["run", *LINE]) == 0
    assert ["--local-rank=${local_rank}" in each.entrypoint.arguments for each in fake.launched] == [True, False, False]
    assert launch(["absent.py"]) == 2
    assert capsys.readouterr().err == "python -m multiworld.launch: no such script: absent.py\n"


def test_a_folder_for_logs_that_cannot_be_made_is_told_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    job = options_from(run_parser().parse_args([f"--log-dir={tmp_path / 'file'}", *LINE]), {})
    with pytest.raises(ValueError, match=f"--log-dir {tmp_path / 'file'}: no logs can be kept there"):
        _pump(job)

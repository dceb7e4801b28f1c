"""A member's record: what was taken is in the file, in order, also where a kill had torn the last line."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from multiworld.training.events import MemberLost, StepCommitted
from multiworld.training.view.folder import NoRecordError, read_record
from multiworld.training.view.lines import line_of
from multiworld.training.view.recorder import Recorder
from multiworld.training.view.report import reports_of

from .test_lines import step


def test_all_events_are_in_the_file_in_their_order(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "record", rank=3, member="m1")
    for number in range(0, 1000, 10):
        recorder.take([step(step=number + each) for each in range(10)])
    recorder.close()

    record = read_record(tmp_path / "record")
    assert recorder.path.name == "00003-m1.jsonl"
    assert [event.step for event in record.events if isinstance(event, StepCommitted)] == list(range(1000))
    assert (record.num_files, record.num_cut, record.num_damaged) == (1, 0, 0)


def test_a_torn_last_line_of_a_file_does_not_spoil_the_next(tmp_path: Path) -> None:
    (tmp_path / "00000-m1.jsonl").write_bytes(line_of(step())[:-20])
    recorder = Recorder(tmp_path, rank=0, member="m1")
    recorder.take([step(step=4)])
    recorder.close()

    record = read_record(tmp_path)
    assert record.events == (step(step=4),)
    assert record.num_damaged == 1


def test_a_long_record_stays_small_and_has_all_failures(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, rank=0, member="m1", max_bytes=50_000)
    lost = MemberLost(
        job="gpt", member="m1", rank=0, generation=1, at=700.5, lost_rank=2, step=700, cause="PeerDiedError", detail=""
    )
    for number in range(0, 5000, 10):
        recorder.take([step(step=number + each, at=float(number + each)) for each in range(10)])
        if number == 700:
            recorder.take([lost])
    recorder.close()

    assert recorder.path.stat().st_size < 60_000
    assert [path.name for path in tmp_path.iterdir()] == ["00000-m1.jsonl"]
    record = read_record(tmp_path)
    assert lost in record.events
    (report,) = reports_of(record.events)
    assert (report.account.num_steps, report.account.num_samples) == (5000, 5000 * 64)
    assert 0 < report.num_thinned < 5000
    recorded = [each.step for each in record.events if isinstance(each, StepCommitted)]
    assert set(range(706, 714)) <= set(recorded)  # those beside the failure
    assert recorded[-20:] == list(range(4980, 5000))


def test_a_record_of_nothing_but_failures_grows_on(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, rank=0, member="m1", max_bytes=2000)
    for number in range(100):
        recorder.take(
            [
                MemberLost(
                    job="gpt", member="m1", rank=0, generation=1, at=1.0, lost_rank=2, step=number, cause="", detail=""
                )
            ]
        )
    recorder.close()
    assert [each.step for each in read_record(tmp_path).events if isinstance(each, MemberLost)] == list(range(100))


def test_a_record_that_cannot_be_thinned_goes_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    recorder = Recorder(tmp_path, rank=0, member="m1", max_bytes=2000)
    (tmp_path / "00000-m1.thinned").mkdir()
    for number in range(40):
        recorder.take([step(step=number)])
    recorder.close()
    assert "cannot be thinned out, and grows on" in caplog.text
    assert len(read_record(tmp_path).events) == 40


def test_a_full_disk_loses_events_and_nothing_else(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    recorder = Recorder(tmp_path, rank=0, member="m1")
    full = os.open("/dev/full", os.O_WRONLY)
    os.dup2(full, recorder._descriptor)
    os.close(full)
    recorder.take([step()])
    recorder.close()

    assert recorder.num_lost == 1
    assert "No space left on device" in caplog.text
    assert "The training goes on" in caplog.text


def test_an_event_that_no_line_can_hold_is_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    recorder = Recorder(tmp_path, rank=0, member="m1")
    recorder.take([step(step="three")])
    recorder.take([step()])
    recorder.close()

    assert recorder.num_lost == 1
    assert read_record(tmp_path).events == (step(),)
    assert "an event is missing" in caplog.text


def test_closing_twice_leaves_no_descriptor(tmp_path: Path) -> None:
    before = set(os.listdir("/proc/self/fd"))
    recorder = Recorder(tmp_path, rank=0, member="m1")
    recorder.close()
    recorder.close()

    assert set(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("member", ["", "../m1", ".m1"])
def test_a_member_that_is_no_name_of_a_file_is_refused(tmp_path: Path, member: str) -> None:
    with pytest.raises(ValueError, match="file's name"):
        Recorder(tmp_path, rank=0, member=member)


def test_the_newest_run_below_a_log_folder_is_read(tmp_path: Path) -> None:
    for age, name in ((100, "old"), (0, "new")):
        folder = tmp_path / f"none_{name}" / "training"
        recorder = Recorder(folder, rank=0, member=name)
        recorder.take([step(member=name)])
        recorder.close()
        os.utime(folder, (folder.stat().st_atime, folder.stat().st_mtime - age))

    assert [event.member for event in read_record(tmp_path).events] == ["new"]


def test_a_folder_without_a_record_says_what_to_give(tmp_path: Path) -> None:
    with pytest.raises(NoRecordError, match="there is no file"):
        read_record(tmp_path)
    with pytest.raises(NoRecordError, match=r"no such folder.*record=FOLDER"):
        read_record(tmp_path / "none")
    (tmp_path / "00000-m1.jsonl").write_text("{}\n")
    with pytest.raises(NoRecordError, match="no event that this release knows"):
        read_record(tmp_path)

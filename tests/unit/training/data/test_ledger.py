"""The files of a ledger."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from multiworld.training.data.ledger import Ledger, check_ledger, read_ledger
from multiworld.training.data.ledger_check import Committed, Data, Rewound

DATA = Data(global_batch=2, micro_batch=1, num_samples=6)
DONE = {"a": [0], "b": [1]}


def commit(ledger: Ledger, step: int) -> None:
    ledger.commit(step, 1, DONE, [[str(2 * step)], [str(2 * step + 1)]])


def test_what_was_committed_is_read_back(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "new", "a", DATA, is_durable=True)
    commit(ledger, 0)
    ledger.rewind(0, 4)
    ledger.close()
    ledger.close()
    data, records, torn = read_ledger(tmp_path / "new")
    assert data == {"a": DATA}
    assert records == [
        Committed(member="a", step=0, generation=1, done=DONE, samples=[["0"], ["1"]]),
        Rewound(member="a", step=0, generation=4),
    ]
    assert torn == []


def test_a_member_that_dies_within_a_line_loses_that_line_only(tmp_path: Path) -> None:
    dying, living = Ledger(tmp_path, "a", DATA), Ledger(tmp_path, "b", DATA)
    for step in range(2):
        commit(dying, step)
        commit(living, step)
    commit(living, 2)
    with dying.path.open("r+b") as file:
        file.truncate(dying.path.stat().st_size - 9)
    report = check_ledger(tmp_path)
    assert (report.steps, report.problems, report.torn) == (3, (), ("a.ledger.jsonl:3",))


def test_any_cut_of_the_last_line_is_seen(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path, "a", DATA)
    commit(ledger, 0)
    whole = ledger.path.read_bytes()
    begin = whole[:-1].rindex(b"\n") + 1
    for end in range(begin + 1, len(whole) - 1):
        ledger.path.write_bytes(whole[:end])
        assert [read_ledger(tmp_path)[which] for which in (1, 2)] == [[], ["a.ledger.jsonl:2"]]


def test_who_goes_on_in_a_file_with_a_cut_begins_a_new_line(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path, "a", DATA)
    commit(ledger, 0)
    ledger.path.write_bytes(ledger.path.read_bytes()[:-5])
    again = Ledger(tmp_path, "a", DATA)
    commit(again, 0)
    commit(again, 1)
    report = check_ledger(tmp_path)
    assert (report.steps, report.problems, report.torn) == (2, (), ("a.ledger.jsonl:2",))


def test_a_full_disk_ends_no_training_and_leaves_no_other_line_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    ledger = Ledger(tmp_path, "a", DATA)
    write = os.write

    def no_space(file: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as full:
        full.setattr(os, "write", lambda file, data: write(file, data[:10]))
        commit(ledger, 0)
        full.setattr(os, "write", no_space)
        commit(ledger, 0)
        commit(ledger, 0)
    assert isinstance(ledger.failed, OSError)
    assert len(caplog.records) == 1
    commit(ledger, 0)
    report = check_ledger(tmp_path)
    assert (report.steps, report.problems, report.torn) == (1, (), ("a.ledger.jsonl:2",))


def test_a_folder_without_a_ledger_is_no_clean_run(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"has no ledger: no file \*\.ledger\.jsonl"):
        check_ledger(tmp_path)


def test_a_closed_ledger_takes_nothing(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path, "a", DATA)
    ledger.close()
    with pytest.raises(ValueError, match="is closed"):
        commit(ledger, 0)

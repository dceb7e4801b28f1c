"""Log files: real ones, in a temporary folder."""

from __future__ import annotations

from pathlib import Path

from multiworld.process.logs.log_file import LogFile


def test_log_file_keeps_its_bound(tmp_path: Path) -> None:
    file = LogFile(tmp_path / "logs" / "m.log", largest=100)
    for number in range(10):
        file.write(b"%d%s\n" % (number, b"x" * 38))
    file.close()
    file.close()
    file.write(b"late")
    assert (tmp_path / "logs" / "m.log").read_bytes()[:1] == b"8"
    assert (tmp_path / "logs" / "m.log.1").read_bytes()[:1] == b"6"
    assert len(list((tmp_path / "logs").iterdir())) == 2


def test_private_log_file_is_read_by_its_owner_alone(tmp_path: Path) -> None:
    LogFile(tmp_path / "logs" / "m.log", is_private=True).close()
    assert (tmp_path / "logs").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "logs" / "m.log").stat().st_mode & 0o777 == 0o600

"""The job token wherever it enters: an empty one is refused, a short one is warned of."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import pytest

import multiworld as mw
from multiworld.cli.main import main
from multiworld.elastic.job.options import JobOptions
from multiworld.process.spawn.entrypoint import Entrypoint, EntrypointKind
from multiworld.serving.control.client.client import ask
from multiworld.serving.control.client.deployment_file import DeploymentFile, find_deployment
from multiworld.serving.control.client.questions import Done, StatusOf, StatusTold
from multiworld.serving.control.reception import Reception
from multiworld.serving.hosts.options import HostOptions
from multiworld.serving.pipeline import Cluster
from multiworld.wire.endpoints import token as token_module
from multiworld.wire.endpoints.token import (
    check_token,
    warn_of_no_token,
    warn_of_weakness,
    weakness_is_told,
    weakness_of,
)

LONG = "0123456789abcdef"
AT = ("127.0.0.1", 1)
ENTRY = Entrypoint(kind=EntrypointKind.COMMAND, target="true")


@pytest.fixture(autouse=True)
def nothing_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_module, "_told", set())
    monkeypatch.delenv("MULTIWORLD_TOKEN", raising=False)


async def _answer(question: object) -> Done:
    return Done()


EMPTY: dict[str, Callable[[], object]] = {
    "manager": lambda: mw.WorldManager(token=""),
    "cluster": lambda: Cluster(token=""),
    "job": lambda: JobOptions(entrypoint=ENTRY, token=""),
    "host": lambda: HostOptions(address=AT, token="", name="here"),
    "controller": lambda: Reception("", on_host=lambda _: None, on_request=_answer),
    "command": lambda: ask(AT, "", StatusOf(), StatusTold),
}


@pytest.mark.parametrize("use", EMPTY.values(), ids=EMPTY.keys())
def test_an_empty_token_is_refused(use: Callable[[], object], no_leaks: None) -> None:
    with pytest.raises(ValueError, match="it must be the secret that all of a job share; to draw one: openssl"):
        use()


@pytest.mark.parametrize("environment", [None, ""])
def test_serve_join_without_a_token_ends_at_once(
    environment: str | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It would obey whoever listens at that address."""
    if environment is not None:
        monkeypatch.setenv("MULTIWORLD_TOKEN", environment)
    with pytest.raises(SystemExit) as ended:
        main(["serve", "join", "127.0.0.1:1"])
    assert ended.value.code == 2
    assert "multiworld serve join: MULTIWORLD_TOKEN is not set: it must be the sec" in capsys.readouterr().err


def test_a_deployment_that_names_no_token_is_none_of_ours(tmp_path: Path) -> None:
    folder = tmp_path / "multiworld" / "serve"
    folder.parent.mkdir(mode=0o700)
    with DeploymentFile.claim("app", AT, LONG, folder=folder) as file:
        assert find_deployment("app", folder=folder).token == LONG
        file.path.write_text(file.path.read_text().replace(LONG, ""))
        with pytest.raises(Exception, match="no deployment"):
            find_deployment("app", folder=folder)
        file.path.unlink()


def test_a_short_token_is_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        warn_of_weakness(LONG[1:])
        warn_of_weakness("1", "Cluster(token=)")
        warn_of_weakness("1", "WorldManager(token=)")
        warn_of_weakness(LONG, "another")
        warn_of_weakness("", "another")
    expected = "only 15 characters: whoever records a connection can try short secrets until one fits. Draw a long one"
    assert [record.message.partition(" has ")[0] for record in caplog.records] == [
        "MULTIWORLD_TOKEN",
        "Cluster(token=)",
    ]
    assert expected in caplog.text
    weakness_is_told("2")
    warn_of_weakness("2")
    assert len(caplog.records) == 2


def test_managers_warn_of_a_short_token(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, no_leaks: None
) -> None:
    with mw.WorldManager(token="short"):
        assert "WorldManager(token=) has only 5 characters" in caplog.text
    monkeypatch.setenv("MULTIWORLD_TOKEN", "little")
    with mw.WorldManager():
        assert "MULTIWORLD_TOKEN has only 6 characters" in caplog.text


def test_commands_warn_of_a_short_token(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], no_leaks: None
) -> None:
    monkeypatch.setenv("MULTIWORLD_TOKEN", "little")
    assert main(["status", "--endpoint", "127.0.0.1:1"]) == 1
    assert "MULTIWORLD_TOKEN has only 6 characters" in capsys.readouterr().err


def test_only_addresses_that_others_reach_are_warned_of_without_a_token(caplog: pytest.LogCaptureFixture) -> None:
    for host in ("127.0.0.1", "::1", "127.0.0.2"):
        warn_of_no_token(host)
    assert not caplog.records
    for _ in range(2):
        warn_of_no_token("10.0.0.1")
    (record,) = caplog.records
    assert (record.levelno, "whoever reaches 10.0.0.1 can join" in record.message) == (logging.WARNING, True)


def test_a_token_is_text() -> None:
    assert check_token(LONG) == LONG
    assert weakness_of(LONG) == weakness_of("") == ""
    with pytest.raises(TypeError, match="token=: a token is text, got bytes"):
        check_token(b"secret", "token=")  # type: ignore[arg-type]

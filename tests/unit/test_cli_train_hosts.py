"""``multiworld train --hostfile``: what its line means, and what is refused at once, in one line."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from multiworld.cli import train, train_hosts
from multiworld.elastic.hosts.hostfile_job import HostfileJob
from multiworld.elastic.launch.parser import run_parser

ENVIRON = {"MULTIWORLD_TOKEN": "a secret that is long enough", "HERE": "1"}


@pytest.fixture(autouse=True)
def hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "hosts"
    path.write_text("far1.invalid slots=2 devices=0,1 port=2201\nfar2.invalid slots=4\n")
    return path


def job(*line: str, environ: dict[str, str] = ENVIRON) -> HostfileJob:
    asked, launch = train.launch_line(line)
    return train_hosts.job_of(asked, launch, environ)


def launched(job: HostfileJob, index: int) -> list[str]:
    return list(job.order(index).arguments[1:])


def test_the_program_and_the_launchers_options_go_to_each_host(tmp_path: Path) -> None:
    asked = job("--hostfile", "hosts", "--log-dir=logs", "--tag", "gpt2", "--spares", "1", "train.py", "--tag", "x")
    assert asked.tag == "gpt2"
    assert (asked.directory, asked.ssh, asked.here) == (str(tmp_path), ("ssh",), frozenset())
    for index, slots in enumerate(("2", "4")):
        parsed = run_parser().parse_args(launched(asked, index))
        assert (parsed.log_dir, parsed.spares, parsed.nproc_per_node) == ("logs", 1, slots)
        assert (parsed.training_script, parsed.training_script_args) == ("train.py", ["--tag", "x"])
        assert (parsed.restart.value, parsed.nnodes) == ("worker", "1:2")


def test_a_module_or_a_program_behind_two_hyphens_is_one_too() -> None:
    parsed = run_parser().parse_args(launched(job("--hostfile=hosts", "-m", "package.train", "a"), 0))
    assert (parsed.module, parsed.training_script, parsed.training_script_args) == (True, "package.train", ["a"])
    parsed = run_parser().parse_args(launched(job("--hostfile=hosts", "--", "train.py", "--a"), 1))
    assert (parsed.training_script, parsed.training_script_args) == ("train.py", ["--a"])


def test_a_configuration_file_is_read_here(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    (tmp_path / "it.yaml").write_text("program: train.py\narguments: [--b]\nspares: 3\nenvironment: {OMP: 4}\n")
    asked = job("--hostfile", "hosts", "it.yaml", "--c")
    parsed = run_parser().parse_args(launched(asked, 1))
    assert (parsed.spares, parsed.training_script, parsed.training_script_args) == (3, "train.py", ["--b", "--c"])
    assert asked.variables["OMP"] == "4"


def test_the_number_of_hosts_that_the_user_wants_holds() -> None:
    assert job("--hostfile", "hosts", "--nnodes", "2", "x.py").nnodes == "2"
    assert job("--hostfile", "hosts", "--nnodes", "1:1+1", "x.py").nnodes == "1:1+1"


def test_the_hosts_get_the_token_what_launchers_read_and_what_x_names_and_nothing_else() -> None:
    environ = {**ENVIRON, "PET_SPARES": "1", "PET_RDZV_ID": "other", "LOGLEVEL": "INFO"}
    asked = job("--hostfile", "hosts", "-x", "B=a b", "-x", "HERE", "x.py", environ=environ)
    assert asked.variables == {
        "MULTIWORLD_TOKEN": ENVIRON["MULTIWORLD_TOKEN"],
        "PET_SPARES": "1",
        "LOGLEVEL": "INFO",
        "B": "a b",
        "HERE": "1",
    }
    assert len(job("--hostfile", "hosts", "x.py", environ={}).variables["MULTIWORLD_TOKEN"]) == 32


def test_this_host_needs_no_ssh_unless_it_has_a_port_or_the_user_says_how(hosts: Path) -> None:
    name = socket.gethostname()
    hosts.write_text(f"{name}\nfar.invalid\n{name} port=2201\n")
    assert job("--hostfile", "hosts", "x.py").here == {0}
    assert job("--hostfile", "hosts", "--ssh", "ssh -F config", "x.py").here == frozenset()


def test_what_is_different_on_the_hosts_can_be_said() -> None:
    asked = job("--hostfile", "hosts", "--remote-python", "/opt/py", "--remote-dir", "/srv", "--port", "7", "x.py")
    assert (asked.python, asked.directory, asked.port) == ("/opt/py", "/srv", 7)
    assert asked.order(1).directory == "/srv"


def test_workers_have_as_long_to_end_as_the_line_says() -> None:
    assert job("--hostfile", "hosts", "x.py").end_s == 45.0
    if "--shutdown-timeout" in run_parser()._option_string_actions:
        assert job("--hostfile", "hosts", "--shutdown-timeout", "100", "x.py").order(0).end_s == 115.0


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (["--hostfile", "nosuch", "x.py"], "--hostfile nosuch: No such file or directory"),
        (["--hostfile", "bad", "x.py"], "--hostfile bad, line 2, column 9: slots=x: expected a number of workers"),
        (["--hostfile", "hosts", "--standalone", "x.py"], "--standalone and --hostfile exclude each other: a hostfile"),
        (["--hostfile", "hosts", "--nproc-per-node=2", "x.py"], "--nproc-per-node and --hostfile exclude each other"),
        (["--hostfile", "hosts", "--rdzv_id", "a", "x.py"], "--rdzv_id and --hostfile exclude each other: --tag names"),
        (["--hostfile", "hosts", "--nnodes", "3", "x.py"], "needs at least 3 hosts, and the hostfile names 2"),
        (["--hostfile", "hosts", "--ssh", "", "x.py"], "--ssh: expected a command"),
        (["--hostfile", "hosts", "--ssh", "/no/ssh", "x.py"], "--ssh: /no/ssh cannot be started: No such file"),
        (["--hostfile", "hosts", "--port", "70000", "x.py"], "--port 70000: expected 1 to 65535"),
        (["--hostfile", "hosts", "--tag", " ", "x.py"], "--tag: expected a name"),
        (["--hostfile", "hosts", "-x", "NOT_SET_ANYWHERE", "x.py"], "-x NOT_SET_ANYWHERE: expected"),
        (["--hostfile", "local", "x.py"], "localhost: the other hosts cannot meet there by that name"),
        (["--tag", "a", "x.py"], "--tag is for several hosts: it needs --hostfile FILE"),
        (["-x", "A=1", "x.py"], "-x is for several hosts"),
        (["--hostfile", "hosts", "it.yaml"], "--nproc-per-node and --hostfile exclude each other: slots="),
    ],
)
def test_a_line_that_makes_no_sense_is_answered_in_one_line(
    line: list[str], told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bad").write_text("a\nb slots=x\n")
    (tmp_path / "local").write_text("localhost\nfar.invalid\n")
    (tmp_path / "x.py").write_text("")
    (tmp_path / "it.yaml").write_text("program: x.py\nnproc_per_node: 2\n")
    assert train.main(line) == 2
    said = capsys.readouterr()
    assert (said.out, said.err.count("\n")) == ("", 1)
    assert said.err.startswith("multiworld train: ")
    assert told in said.err


@pytest.mark.parametrize("line", [["--hostfile", "hosts"], ["--hostfile", "hosts", "--nnodes", "2"], ["--hostfile"]])
def test_a_line_without_a_program_is_refused(line: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        train.main(line)
    assert ended.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1

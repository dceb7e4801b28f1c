"""What every command's parser does: help within the terminal, hints, completion."""

from __future__ import annotations

import os
import pty
import shutil
import subprocess
from pathlib import Path

import pytest

from multiworld.cli import completion
from multiworld.cli.main import COMMANDS, main
from multiworld.cli.serve import VERBS
from multiworld.elastic.launch.parser import run_parser
from tools.reference_pages import OF_SERVE, help_of

LINES = [[command] for command in COMMANDS] + [["serve", verb] for verb in OF_SERVE]


@pytest.mark.parametrize("line", [[], *LINES], ids=" ".join)
@pytest.mark.parametrize("columns", [70, 80])
def test_help_keeps_within_the_terminal(
    line: list[str], columns: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    if line == ["run"]:  # as a command it takes the process over
        text = run_parser().format_help()
    else:
        with pytest.raises(SystemExit) as ended:
            main([*line, "--help"])
        text = capsys.readouterr().out
        assert ended.value.code == 0
    assert text.startswith(f"usage: {' '.join(['multiworld', *line])}")
    examples = [each for each in text.splitlines() if each.strip() and each.strip().count(" ") == 0]  # one long word
    assert max(len(each) for each in text.splitlines() if each not in examples) <= columns


def test_help_of_a_command_is_that_of_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["help", "serve", "scale"])
    assert capsys.readouterr().out.strip().split() == help_of(["serve", "scale"]).split()
    assert main(["help"]) == 0
    assert "commands:" in capsys.readouterr().out
    assert main(["help", "sttus"]) == 2
    assert "did you mean 'status'?" in capsys.readouterr().err


@pytest.mark.filterwarnings("ignore:Unable to enable fault handler")  # torch's record wants a real stderr
@pytest.mark.parametrize(
    ("line", "hint"),
    [
        ("status --jbo x", "--jbo, did you mean '--job'?"),
        ("drain --wiat", "--wiat, did you mean '--wait'?"),
        ("logs --folow", "--folow, did you mean '--follow'?"),
        ("serve scale --no-wat a 1", "--no-wat, did you mean '--no-wait'?"),
        ("serve app.py:p --replica=a=1", "--replica=a=1, did you mean '--replicas'?"),
        ("serve watch --nam x", "--nam, did you mean '--name'?"),
        ("serve join --adress x", "--adress, did you mean '--address'?"),
        ("doctor --jsn", "--jsn, did you mean '--json'?"),
        ("demo --secnds 3", "--secnds, did you mean '--seconds'?"),
        ("bench --chekc", "--chekc, did you mean '--check'?"),
        ("manifest k8s --imgae x", "--imgae, did you mean '--image'?"),
        ("run --nproc-per-nde 2 x.py", "--nproc-per-nde, did you mean '--nproc-per-node'?"),
        ("run --nproc_per_nde=2 x.py", "--nproc_per_nde=2, did you mean '--nproc-per-node'?"),
        ("run --nproc-per-nde=2", "--nproc-per-nde=2, did you mean '--nproc-per-node'?"),
        ("run --nnodes 1", "multiworld run: no program is given: name the script to run after the options"),
        ("run --job x train.py", "--job, did you mean '--rdzv-id'?"),
        ("train --job x train.py", "multiworld train: unrecognized arguments: --job, did you mean '--rdzv-id'?"),
        ("train --min_replicas=2 x.py", "--min_replicas=2, which the program says: training.join(..., min_replicas=N)"),
        ("train --restart no x.py", "multiworld train: argument --restart: 'no': expected one of worker, world"),
        ("train --nnodes 1", "multiworld train: no program is given"),
        ("train --log 3 x.py", "multiworld train: ambiguous option: --log could match --log-dir"),
        ("train statu", "no such script: statu, did you mean 'multiworld train status'?"),
        ("exec --hostfiel f ls", "--hostfiel, did you mean '--hostfile'?"),
        ("status --xyzzy", "unrecognized arguments: --xyzzy (see multiworld status --help)"),
    ],
)
def test_an_option_that_nobody_knows_is_told_with_the_one_that_was_meant(
    line: str, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        command, *rest = line.split()
        status: object = run_parser().parse_args(rest) if command == "run" else main([command, *rest])
    except SystemExit as ended:
        status = ended.code
    told = capsys.readouterr().err
    assert status == 2
    assert hint in told
    assert told.count("\n") == 1


def test_what_torchrun_does_not_have_comes_first() -> None:
    text = run_parser().format_help()
    assert (
        text.index("--restart {") < text.index("--page") < text.index("options of torchrun") < text.index("--rdzv-id")
    )


def test_completion_knows_every_command_and_verb() -> None:
    known = completion.places()
    assert {"", *COMMANDS, *(f"serve {verb}" for verb in VERBS), "serve watch", "serve join"} <= set(known)
    assert "--force" in known["serve scale"].words
    assert "--nproc-per-node" in known["run"].words
    assert known["completion"].words[:3] == ("bash", "zsh", "fish")
    assert known["run"].values["--restart"] == ("worker", "world", "all", "auto")


TYPED = [
    ("multiworld sta", ["status"]),
    ("multiworld serve sc", ["scale"]),
    ("multiworld serve scale --no-w", ["--no-wait"]),
    ("multiworld serve scale --por", []),  # an option of serve, not of its verbs
    ("multiworld help man", ["manifest"]),
    ("multiworld help serve wat", ["watch"]),
    ("multiworld run --nproc", ["--nproc-per-node"]),
    ("multiworld run --restart wor", ["worker", "world"]),
    ("multiworld run --rdzv-backend c1", ["c10d"]),
    ("multiworld run --log-dir a_f", ["a_file", "a_folder"]),
    ("multiworld run a_f", ["a_file", "a_folder"]),
    ("multiworld status a_f", []),
    ("multiworld serve scale status a_f", []),
    ("multiworld completion fi", ["fish"]),
    ("multiworld bench chan", ["channels"]),
    ("m8d bench --reco", ["--record"]),
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "a_file").touch()
    (tmp_path / "a_folder").mkdir()
    return tmp_path


def needs(shell: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")


@pytest.mark.parametrize(("typed", "expected"), [*TYPED, ("multiworld run --restart = wor", ["worker", "world"])])
def test_bash_completes(typed: str, expected: list[str], folder: Path) -> None:
    words = typed.split()
    ask = f"COMP_WORDS=({typed}); COMP_CWORD={len(words) - 1}; _multiworld; printf '%s\\n' \"${{COMPREPLY[@]}}\""
    done = subprocess.run(
        ["bash", "-c", f"{completion.script('bash')}\n{ask}"], cwd=folder, capture_output=True, text=True, check=True
    )
    assert sorted(done.stdout.split()) == expected


def test_bash_completes_oobleck() -> None:
    asked = f"{completion.script('bash')}\ncomplete -p oobleck"
    done = subprocess.run(["bash", "-c", asked], capture_output=True, text=True, check=True)
    assert {"get_agent_list", "kill_agent", "--ip", "--port"} <= set(done.stdout.replace("'", " ").split())


def test_fish_completes(folder: Path) -> None:
    needs("fish")
    lines = [
        *TYPED,
        ("multiworld run --restart=wor", ["--restart=worker", "--restart=world"]),
        ("oobleck kill", ["kill_agent"]),
    ]
    asked = "".join(f"echo '> {typed}'; complete -C '{typed}'\n" for typed, _ in lines)
    env = {**os.environ, "HOME": str(folder), "XDG_CONFIG_HOME": str(folder), "XDG_DATA_HOME": str(folder)}
    done = subprocess.run(
        ["fish", "--no-config", "-c", f"{completion.script('fish')}\n{asked}"],
        cwd=folder,
        env=env,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""
    answers = [each.splitlines() for each in done.stdout.split("> ")[1:]]
    found = {typed: sorted(line.split("\t")[0].rstrip("/") for line in answer) for typed, *answer in answers}
    assert found == dict(lines)


def test_zsh_completes_at_a_terminal(folder: Path) -> None:
    needs("zsh")
    (folder / "script").write_text(completion.script("zsh"))
    lines = [
        ("multiworld sta", "multiworld status"),
        ("multiworld serve scale --no-w", "multiworld serve scale --no-wait"),
        ("multiworld run --rdzv-backend c1", "multiworld run --rdzv-backend c10d"),
        ("multiworld run --rdzv-backend=c1", "multiworld run --rdzv-backend=c10d"),
        ("multiworld run a_fo", "multiworld run a_folder"),
        ("multiworld status a_fo", "multiworld status a_fo"),
        ("m8d help serve wat", "m8d help serve watch"),
        ("oobleck get_a", "oobleck get_agent_list"),
    ]
    typed = "".join(f"{line}\t\x01echo '<\x05>'\r" for line, _ in lines)  # to the line's begin, and to its end
    terminal, ours = pty.openpty()
    env = {"PATH": os.environ["PATH"], "TERM": "dumb", "HOME": str(folder)}
    with subprocess.Popen(
        ["zsh", "-f", "-i"], cwd=folder, env=env, stdin=ours, stdout=ours, stderr=ours, start_new_session=True
    ):
        os.close(ours)
        os.write(terminal, b"PS1=; unsetopt zle_bracketed_paste; source ./script\r")
        os.write(terminal, f"echo READY-$((1 + 1))\r{typed}exit\r".encode())
        shown = b""
        while chunk := _read(terminal):
            shown += chunk
    os.close(terminal)
    printed = [line.strip() for line in shown.decode().split("READY-2")[-1].split("\n")]
    assert [line[1:-1].rstrip() for line in printed if line[:1] == "<" and line[-1:] == ">"] == [
        expected for _, expected in lines
    ]


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 1 << 16)
    except OSError:  # the shell has ended
        return b""


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_script_is_one_that_its_shell_can_read(shell: str) -> None:
    needs(shell)
    subprocess.run([shell, "-n"], input=completion.script(shell), text=True, check=True)

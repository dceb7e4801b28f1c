"""What is found out about a worker that failed, which failure came first, and what people read about it."""

from __future__ import annotations

import json
import os
import signal
import time
import traceback
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from torch.distributed.elastic.multiprocessing.errors import ErrorHandler, record

from multiworld.elastic.agent import exit_cause
from multiworld.elastic.agent.exit_cause import Remains, examine
from multiworld.elastic.job.actions import Exited
from multiworld.elastic.job.assignment import Assignment
from multiworld.elastic.job.failure import FailureCause, WorkerFailure, first_failure, in_causal_order
from multiworld.elastic.job.failure_report import describe, report
from multiworld.elastic.job.tracebacks import UNKNOWN_RANK, Cause, exception_line, find_cause, last_traceback
from multiworld.elastic.launch.child_failed import to_child_failed_error
from multiworld.elastic.leadership.messages import AGENT_MESSAGES
from multiworld.errors import BrokenWorldException, MessageError, PeerDiedError, PeerLeftError, StaleGenerationError
from multiworld.process.memory_kills import MemoryKills
from multiworld.wire.messages import from_json, to_json

ASSIGNMENT = Assignment(
    generation=3,
    restarts=0,
    rank=5,
    local_rank=1,
    node_rank=2,
    role_rank=5,
    world_size=8,
    local_world_size=2,
    num_nodes=4,
    role_world_size=8,
    master_addr="127.0.0.1",
    master_port=1,
)
NOON_US = 1_795_521_600_000_000  # 2026-11-24 12:00:00 UTC


def failed(rank: int, at_us: int = NOON_US, **fields: Any) -> WorkerFailure:
    known: dict[str, Any] = {
        "rank": rank,
        "local_rank": rank % 2,
        "node_rank": rank // 2,
        "role": "default",
        "hostname": f"host-{rank // 2}",
        "pid": 1000 + rank,
        "generation": 3,
        "returncode": 1,
        "at_us": at_us,
        "cause": FailureCause.EXIT,
    }
    return WorkerFailure(**{**known, **fields})


def raised(error: Exception, cause: Exception | None = None) -> str:
    """Return the traceback of an exception that was raised, as Python writes it."""
    try:
        try:
            if cause is not None:
                raise cause
        except Exception as first:
            raise error from first
        raise error
    except Exception:
        return traceback.format_exc()


@pytest.fixture
def kills(tmp_path: Path) -> MemoryKills:
    """A kernel that has killed nobody."""
    return memory_of(tmp_path, kills=0)


def memory_of(tmp_path: Path, *, kills: int, version: int = 2, kmsg: str = "") -> MemoryKills:
    (tmp_path / "proc" / "self").mkdir(parents=True, exist_ok=True)
    (tmp_path / "proc" / "vmstat").write_text("oom_kill 77\n")
    set_kills(tmp_path, kills, version)
    (tmp_path / "kmsg").write_text(kmsg)
    return MemoryKills(proc=tmp_path / "proc", cgroups=tmp_path / "cgroup", kmsg=tmp_path / "kmsg")


def set_kills(tmp_path: Path, kills: int, version: int = 2) -> None:
    if version == 2:
        line, path = "0::/job/1", tmp_path / "cgroup" / "job" / "1" / "memory.events"
    else:
        line, path = "4:cpu,memory:/job/1", tmp_path / "cgroup" / "memory" / "job" / "1" / "memory.oom_control"
    (tmp_path / "proc" / "self" / "cgroup").write_text(f"1:cpuset:/\n{line}\n")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"low 0\noom 9\noom_kill {kills}\noom_group_kill 5\n")


def remains(returncode: int | None = 1, **fields: Any) -> Remains:
    known = {"assignment": ASSIGNMENT, "role": "trainer", "hostname": "host-2", "pid": 4711, "at_us": NOON_US}
    return Remains(**{**known, "returncode": returncode, **fields})


# ---- tracebacks


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (PeerDiedError("main", 3, 2, "socket closed"), Cause(2, "main")),
        (PeerLeftError("main", 3, 0, "said so"), Cause(0, "main")),
        (StaleGenerationError("a rank 9 b", 3, 1, "fenced"), Cause(1, "a rank 9 b")),
        (BrokenWorldException.of(PeerDiedError("main", 3, 4, "socket closed")), Cause(4, "main")),
        (BrokenWorldException("main", "removed"), Cause(UNKNOWN_RANK, "main")),
        (
            RuntimeError("[/gloo/transport/tcp/pair.cc:534] Connection closed by peer [::1]:9"),
            Cause(UNKNOWN_RANK, None),
        ),
        (RuntimeError("lost rank 2"), None),
    ],
)
def test_who_caused_an_exception_is_read_from_its_class(error: Exception, cause: Cause | None) -> None:
    assert find_cause(raised(error)) == cause


def test_a_cause_further_down_the_chain_counts() -> None:
    text = raised(ValueError("training failed"), PeerDiedError("main", 3, 2, "socket closed"))
    assert find_cause(text) == Cause(2, "main")
    assert exception_line(text) == "ValueError: training failed"


def test_the_last_traceback_is_found_with_those_that_led_to_it() -> None:
    first = raised(KeyError("handled, and logged"))
    last = raised(ValueError("second"), OSError("first"))
    lines = [*first.splitlines(), "epoch 2", *last.splitlines()]
    found = last_traceback(lines)
    assert found is not None
    assert found.splitlines() == last.splitlines()


def test_a_program_that_python_cannot_read_is_told() -> None:
    said = ['  File "train.py", line 1', "    def f(:", "          ^", "SyntaxError: invalid syntax"]
    found = last_traceback(["a warning", *said])
    assert found is not None
    assert found.splitlines() == said
    assert exception_line(found) == "SyntaxError: invalid syntax"
    assert last_traceback(["SyntaxError: invalid syntax"]) is None
    assert last_traceback([*said, "and then it went on"]) is None


def test_a_traceback_that_is_too_long_says_what_is_left_out() -> None:
    lines = ["Traceback (most recent call last):", *(f"  frame {number}" for number in range(300)), "ValueError: no"]
    found = last_traceback(lines)
    assert found is not None
    assert found.splitlines() == ["... 102 lines left out ...", *lines[-200:]]
    assert exception_line(found) == "ValueError: no"


def test_a_summary_that_is_cut_says_so() -> None:
    assert failed(0, message="x" * 300).text.endswith(": " + "x" * 300)
    assert failed(0, message="x" * 1500 + "\nmore").text.endswith("x… (1,200 more characters)")


def test_there_may_be_no_traceback() -> None:
    assert last_traceback(["usage: prog", "error: no such option"]) is None


# ---- examine


def test_what_record_wrote_is_read(tmp_path: Path, kills: MemoryKills, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "error.json"
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(path))
    monkeypatch.setattr("faulthandler.enable", lambda **_: None)

    def fail() -> None:
        raise ValueError("loss is nan")

    with pytest.raises(ValueError):
        record(fail, ErrorHandler())()
    written_us = path.stat().st_mtime_ns // 1000
    failure = examine(remains(error_file=str(path), at_us=written_us + 400_000), kills=kills)
    assert failure.cause is FailureCause.EXCEPTION
    assert failure.message == failure.text == "ValueError: loss is nan"
    assert failure.traceback is not None
    assert 'raise ValueError("loss is nan")' in failure.traceback
    assert failure.at_us == written_us  # and not when the process was gone
    assert (failure.rank, failure.local_rank, failure.node_rank, failure.generation) == (5, 1, 2, 3)


@pytest.mark.parametrize("content", ["", "{", "[1]", '{"other": 1}', "[" * 100_000, "\xff"])
def test_an_error_file_that_makes_no_sense_is_as_none(tmp_path: Path, kills: MemoryKills, content: str) -> None:
    path = tmp_path / "error.json"
    path.write_text(content, encoding="latin-1")
    failure = examine(remains(3, error_file=str(path), tail=["bye"]), kills=kills)
    assert (failure.cause, failure.error_data, failure.text) == (FailureCause.EXIT, None, "exit code 3")
    assert failure.last_lines == ("bye",)


def test_an_error_file_may_hold_a_plain_message(tmp_path: Path, kills: MemoryKills) -> None:
    path = tmp_path / "error.json"
    path.write_text('{"message": "CUDA error"}')
    failure = examine(remains(-signal.SIGABRT, error_file=str(path)), kills=kills)
    assert (failure.cause, failure.text, failure.exit_status) == (FailureCause.EXCEPTION, "CUDA error", 134)


def test_a_long_traceback_is_cut_in_the_middle(tmp_path: Path, kills: MemoryKills) -> None:
    path = tmp_path / "error.json"
    stack = "first\n" + "again\n" * 20_000 + "last"
    path.write_text(json.dumps({"message": {"message": "m", "extraInfo": {"py_callstack": stack, "timestamp": "1"}}}))
    failure = examine(remains(error_file=str(path)), kills=kills)
    assert failure.traceback is not None
    assert failure.traceback.startswith("first")
    assert failure.traceback.endswith("last")
    assert len(json.dumps(to_json(failure))) < 100_000


def test_without_an_error_file_the_traceback_on_stderr_counts(kills: MemoryKills) -> None:
    text = raised(PeerDiedError("main", 3, 2, "socket closed"))
    failure = examine(remains(1, tail=["epoch 1", *text.splitlines()]), kills=kills)
    assert (failure.cause, failure.caused_by_rank, failure.caused_by_world) == (FailureCause.EXCEPTION, 2, "main")
    assert failure.traceback == text.rstrip("\n")


def test_a_traceback_that_a_program_only_logged_is_not_its_end(kills: MemoryKills) -> None:
    failure = examine(remains(7, tail=raised(KeyError("handled")).splitlines()), kills=kills)
    assert (failure.cause, failure.traceback, failure.exit_status) == (FailureCause.EXIT, None, 7)


def test_a_fault_of_the_interpreter_is_quoted(kills: MemoryKills) -> None:
    tail = ["Fatal Python error: Segmentation fault", "", "Current thread 0x1 (most recent call first):"]
    failure = examine(remains(-signal.SIGSEGV, tail=tail), kills=kills)
    assert failure.text == "killed by SIGSEGV: Fatal Python error: Segmentation fault"
    assert failure.exit_status == 139


def test_what_the_agent_knows_better_goes_before(kills: MemoryKills) -> None:
    failure = examine(remains(-signal.SIGKILL), kills=kills, cause=FailureCause.HUNG, message="no progress for 30 s")
    assert failure.text == "made no progress: no progress for 30 s"


@pytest.mark.parametrize("version", [1, 2])
def test_an_out_of_memory_kill_is_recognised_by_the_cgroups_counter_once(tmp_path: Path, version: int) -> None:
    kills = memory_of(tmp_path, kills=4, version=version)
    assert examine(remains(-signal.SIGKILL), kills=kills).cause is FailureCause.SIGNAL
    set_kills(tmp_path, 5, version)
    assert examine(remains(-signal.SIGTERM), kills=kills).cause is FailureCause.SIGNAL
    failure = examine(remains(-signal.SIGKILL), kills=kills)
    assert (failure.cause, failure.text) == (FailureCause.OUT_OF_MEMORY, "out of memory: killed by SIGKILL")
    assert failure.exit_status == 137
    assert examine(remains(-signal.SIGKILL), kills=kills).cause is FailureCause.SIGNAL


def test_an_out_of_memory_kill_is_recognised_by_the_kernels_log(tmp_path: Path) -> None:
    now_us = time.monotonic_ns() // 1000
    later, before = now_us + 1_000_000, now_us - 1_000_000
    kmsg = "3,17,{at},-;oom-kill:constraint=CONSTRAINT_MEMCG,task=python,pid={pid},uid=0\n"
    killed = memory_of(tmp_path, kills=0, kmsg=kmsg.format(at=later, pid=4711))
    assert examine(remains(-signal.SIGKILL), kills=killed).cause is FailureCause.OUT_OF_MEMORY
    another = memory_of(tmp_path, kills=0, kmsg=kmsg.format(at=later, pid=47112))
    assert examine(remains(-signal.SIGKILL), kills=another).cause is FailureCause.SIGNAL
    long_ago = memory_of(tmp_path, kills=0, kmsg=kmsg.format(at=before, pid=4711))
    assert examine(remains(-signal.SIGKILL), kills=long_ago).cause is FailureCause.SIGNAL


def test_without_a_memory_cgroup_the_machines_counter_counts(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    vmstat = tmp_path / "proc" / "vmstat"
    vmstat.write_text("pgfault 1\noom_kill 2\n")
    kills = MemoryKills(proc=tmp_path / "proc", cgroups=tmp_path / "none", kmsg=tmp_path / "none")
    vmstat.write_text("pgfault 1\noom_kill 3\n")
    assert [kills.claim(1), kills.claim(1)] == [True, False]


def fake_py_spy(folder: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    program = folder / "py-spy"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")


def test_stacks_are_what_py_spy_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_py_spy(tmp_path, 'echo "$1 of $3: main"', monkeypatch)
    assert exit_cause.dump_stacks(4711) == b"dump of 4711: main\n"


@pytest.mark.parametrize("script", ["exit 1", "exec sleep 100"])
def test_there_are_no_stacks_if_py_spy_fails_or_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str
) -> None:
    fake_py_spy(tmp_path, script, monkeypatch)
    monkeypatch.setattr(exit_cause, "DUMP_S", 0.1)
    assert exit_cause.dump_stacks(4711) is None


def test_there_are_no_stacks_without_py_spy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda *_, **__: None)
    assert exit_cause.dump_stacks(4711) is None


# ---- order


def test_the_earliest_failure_is_the_first() -> None:
    failures = [failed(0, NOON_US + 20), failed(1, NOON_US + 10), failed(2, NOON_US + 30)]
    assert [each.rank for each in in_causal_order(failures)] == [1, 0, 2]


def test_a_consequence_never_precedes_its_cause_whatever_the_clocks_say() -> None:
    killed = failed(1, NOON_US + 500, returncode=-9, cause=FailureCause.SIGNAL)
    lost_it = failed(0, NOON_US, caused_by_rank=1)
    lost_that = failed(2, NOON_US - 5, caused_by_rank=0)
    assert first_failure([lost_that, lost_it, killed]) == killed
    assert in_causal_order([lost_that, lost_it, killed]) == [killed, lost_it, lost_that]


def test_a_connection_that_broke_is_never_the_beginning_if_anything_else_failed() -> None:
    broke = failed(0, NOON_US, caused_by_rank=UNKNOWN_RANK)
    own = failed(1, NOON_US + 1000)
    assert first_failure([broke, own]) == own


def test_failures_that_blame_each_other_are_ordered_by_time() -> None:
    failures = [failed(0, NOON_US + 1, caused_by_rank=1), failed(1, NOON_US, caused_by_rank=0)]
    assert first_failure(failures).rank == 1


def test_of_no_failures_none_is_first() -> None:
    with pytest.raises(ValueError, match="nothing failed"):
        first_failure([])


# ---- records


@pytest.mark.parametrize(
    ("returncode", "status", "name"),
    [(3, 3, None), (-9, 137, "SIGKILL"), (-40, 168, "signal 40"), (256, 1, None), (None, 1, None), (0, 1, None)],
)
def test_the_exit_status_is_the_workers(returncode: int | None, status: int, name: str | None) -> None:
    failure = failed(0, returncode=returncode)
    assert (failure.exit_status, failure.signal_name) == (status, name)


def test_a_failure_survives_json() -> None:
    failure = failed(1, traceback="t", error_data={"message": "m"}, last_lines=("a", "ü"), caused_by_rank=0)
    fields = json.loads(json.dumps(to_json(failure)))
    assert from_json(WorkerFailure, fields) == failure
    assert fields["text"] == failure.text


def test_fields_that_are_missing_or_wrong_are_refused() -> None:
    fields = to_json(failed(1))
    assert from_json(WorkerFailure, {**fields, "colour": "of a later release"}) == failed(1)
    with pytest.raises(MessageError, match="cause"):
        from_json(WorkerFailure, {**fields, "cause": "boredom"})
    del fields["rank"]
    with pytest.raises(MessageError, match="rank: it is missing"):
        from_json(WorkerFailure, fields)


def test_what_a_message_cannot_hold_is_left_out_of_an_error_file(tmp_path: Path, kills: MemoryKills) -> None:
    path = tmp_path / "error.json"

    def look(text: str) -> WorkerFailure:
        path.write_text(text)
        return examine(remains(error_file=str(path)), kills=kills)

    data = look('{"message": {"message": "loss", "extraInfo": {"loss": NaN}}}').error_data
    assert data == {"message": {"message": "loss", "extraInfo": {"loss": "NaN"}}}
    failure = look('{"message": "deep", "more": ' + "[" * 100 + "]" * 100 + "}")
    assert failure.error_data == {"message": "deep"}
    AGENT_MESSAGES.encode(Exited(worker="w", returncode=1, failure=failure, ordered=False, clock_us=0))


# ---- what people read

FIRST = failed(
    1,
    NOON_US + 123_456,
    cause=FailureCause.EXCEPTION,
    message="ValueError: loss is nan",
    traceback='Traceback (most recent call last):\n  File "train.py", line 7, in <module>\nValueError: loss is nan\n',
)


def test_the_text_says_what_failed_first_and_what_followed() -> None:
    others = [
        failed(0, FIRST.at_us + 12_000, caused_by_rank=1, caused_by_world="main"),
        failed(3, FIRST.at_us + 20_500, returncode=-6, cause=FailureCause.SIGNAL, role="PS"),
    ]
    assert describe(FIRST, others, done="no restarts were left, all workers were stopped", logs="/logs/job_1") == (
        "Rank 1 failed first: ValueError: loss is nan\n"
        "  on host-0 (node 0, local rank 1, pid 1001), generation 3, exit status 1, at 2026-11-24 12:00:00.123456 UTC\n"
        "\n"
        "  Traceback (most recent call last):\n"
        '    File "train.py", line 7, in <module>\n'
        "  ValueError: loss is nan\n"
        "\n"
        "2 other workers failed after it:\n"
        "  rank 0, 0.012 s later: it lost rank 1 of world 'main'\n"
        "  rank 3 (PS), 0.021 s later: killed by SIGABRT\n"
        "\n"
        "What was done: no restarts were left, all workers were stopped\n"
        "Logs: /logs/job_1"
    )


def test_without_a_traceback_the_last_lines_are_shown() -> None:
    failure = failed(0, returncode=-9, cause=FailureCause.OUT_OF_MEMORY, last_lines=("epoch 1", "epoch 2"))
    text = describe(failure, [])
    assert text.startswith("Rank 0 failed first: out of memory: killed by SIGKILL\n")
    assert text.endswith("The last lines it wrote:\n  epoch 1\n  epoch 2")


def test_blank_lines_at_the_end_are_no_evidence() -> None:
    assert describe(failed(0, last_lines=("", "  ", "")), []).endswith("It wrote nothing.")
    assert describe(failed(0, last_lines=("", "oh", "")), []).endswith("The last line it wrote:\n  oh")


def test_an_error_that_several_workers_share_is_told_once() -> None:
    others = [failed(rank, FIRST.at_us, message="ValueError: no") for rank in (2, 3)]
    text = describe(failed(1, FIRST.at_us, message="ValueError: no"), [*others, failed(4, message="OSError: no")])
    assert text.count("ValueError: no") == 1
    assert "rank 3, 0.000 s later: the same\n" in text
    assert text.count("OSError: no") == 1


def test_who_ended_with_another_rank_s_error_has_lost_nobody() -> None:
    text = describe(FIRST, [failed(2, caused_by_rank=1), failed(3, caused_by_rank=1, caused_by_world="main")])
    assert ": it ended with the error of rank 1\n" in text
    assert text.endswith(": it lost rank 1 of world 'main'")


def test_many_others_are_counted_and_not_all_told() -> None:
    text = describe(FIRST, [failed(rank, FIRST.at_us + rank) for rank in range(2, 102)])
    assert "100 other workers failed after it:" in text
    assert text.count("\n  rank ") == 8
    assert text.endswith("  and 92 more")


def test_a_very_long_traceback_is_shown_from_both_ends() -> None:
    failure = replace(FIRST, traceback="\n".join(f"frame {number}" for number in range(1000)))
    text = describe(failure, [])
    assert "  ... 940 lines left out ..." in text
    assert text.endswith("  frame 999")


def test_the_report_is_json_and_holds_the_same(tmp_path: Path) -> None:
    found = json.loads(json.dumps(report(FIRST, [failed(0)], run_id="job", done="stopped", logs="/logs")))
    assert from_json(WorkerFailure, found["first"]) == FIRST
    assert found["first"]["exit_status"] == FIRST.exit_status
    assert [from_json(WorkerFailure, each).rank for each in found["others"]] == [0]
    assert (found["run_id"], found["exit_status"]) == ("job", 1)
    assert found["text"] == describe(FIRST, [failed(0)], done="stopped", logs="/logs")


# ---- torch's exception


def test_torch_takes_our_first_failure_for_the_first(tmp_path: Path) -> None:
    data = {"message": {"message": "ValueError: x", "extraInfo": {"py_callstack": "frames", "timestamp": "1"}}}
    root = failed(4, NOON_US + 5_000_000, error_data=data, error_file="/on/another/host/error.json")
    consequence = failed(0, NOON_US, caused_by_rank=4)
    error = to_child_failed_error([consequence, root], name="train.py", error_dir=str(tmp_path))
    rank, first = error.get_first_failure()
    assert (rank, first.exitcode, first.pid) == (4, 1, 1004)
    assert json.loads(Path(first.error_file).read_text()) == data
    assert set(error.failures) == {0, 4}
    assert "frames" in str(error)


def test_record_hands_the_first_error_to_a_scheduler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(tmp_path / "for_scheduler.json"))
    monkeypatch.setattr("faulthandler.enable", lambda **_: None)
    data = {"message": {"message": "m", "extraInfo": {"py_callstack": "frames", "timestamp": "1"}}}
    (tmp_path / "error.json").write_text(json.dumps(data))
    failure = failed(0, returncode=-6, error_data=data, error_file=str(tmp_path / "error.json"))

    def launch() -> None:
        raise to_child_failed_error([failure], name="train.py")

    with pytest.raises(Exception, match=r"train\.py FAILED"):
        record(launch, ErrorHandler())()
    written = json.loads((tmp_path / "for_scheduler.json").read_text())
    assert written["message"]["errorCode"] == -6
    assert written["message"]["extraInfo"]["py_callstack"] == "frames"


@pytest.mark.parametrize("fields", [{}, {"returncode": None, "cause": FailureCause.HOST_LOST}, {"returncode": -9}])
def test_torch_can_show_a_failure_that_left_no_file(fields: dict[str, Any]) -> None:
    error = to_child_failed_error([failed(2, last_lines=("the last line",), **fields)], name="train.py")
    assert "the last line" in str(error)
    assert error.get_first_failure()[1].error_file == "<N/A>"

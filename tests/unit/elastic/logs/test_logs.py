"""The output of workers: real pipes and files, no processes."""

from __future__ import annotations

import io
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from torch.distributed.elastic.multiprocessing import LogsDest, LogsSpecs

from multiworld.elastic.job.assignment import Assignment
from multiworld.elastic.job.options import LogOptions
from multiworld.elastic.logs import LogPump, WorkerStreams, prefix
from multiworld.elastic.logs import places as places_module
from multiworld.process.logs.console import FULL_BYTES
from multiworld.process.logs.lines import LONGEST_HELD
from multiworld.process.logs.stream import PARTIAL_S
from multiworld.testing import wait_until

pytestmark = pytest.mark.usefixtures("no_leaks")


def assignment(local_rank: int = 0, *, generation: int = 1, num_workers: int = 2) -> Assignment:
    return Assignment(
        generation=generation,
        restarts=0,
        rank=local_rank,
        local_rank=local_rank,
        node_rank=0,
        role_rank=local_rank,
        world_size=num_workers,
        local_world_size=num_workers,
        num_nodes=1,
        role_world_size=num_workers,
        master_addr="127.0.0.1",
        master_port=1,
    )


class Bench:
    """A pump with consoles in memory, and what it printed."""

    def __init__(self, tmp_path: Path, num_workers: int = 2, **options: Any) -> None:
        self.out, self.err = io.StringIO(), io.StringIO()
        options.setdefault("log_dir", str(tmp_path / "logs"))
        self.num_workers = num_workers
        self.pump = LogPump(
            LogOptions(**options),
            role="trainer",
            run_id="job",
            num_workers=num_workers,
            console_out=self.out,
            console_err=self.err,
        )

    def open(self, local_rank: int = 0, *, generation: int = 1) -> WorkerStreams:
        return self.pump.open(assignment(local_rank, generation=generation, num_workers=self.num_workers))

    def run(self, local_rank: int = 0, out: bytes = b"", err: bytes = b"", *, generation: int = 1) -> WorkerStreams:
        """Be a worker that writes and ends."""
        streams = self.open(local_rank, generation=generation)
        write(streams.stdout_fd, out)
        write(streams.stderr_fd, err)
        end(streams)
        return streams

    def files(self) -> dict[str, bytes]:
        """Return what is in the run's folder, by path."""
        root = Path(self.pump.run_dir or "/nonexistent")
        return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def write(fd: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(fd, rest) :]


def end(streams: WorkerStreams) -> None:
    streams.started()
    wait_until(lambda: streams.drained.done, 5.0)


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., Bench]]:
    benches: list[Bench] = []

    def build(num_workers: int = 2, **options: Any) -> Bench:
        benches.append(Bench(tmp_path, num_workers, **options))
        return benches[-1]

    yield build
    for bench in benches:
        bench.pump.close(timeout_s=5.0, keep=False)


# ---- prefix


def test_the_prefix_names_role_rank_and_generation() -> None:
    assert prefix(assignment(1, generation=3), role="trainer") == "[trainer 1 g3] "


def test_the_only_worker_has_no_prefix() -> None:
    assert prefix(assignment(num_workers=1), role="trainer") == ""


def test_a_template_is_used_as_torchrun_does_even_for_one_worker() -> None:
    template = "[${role_name}/${rank}/${local_rank}/${generation}/${other}]:"
    assert prefix(assignment(num_workers=1), role="a", template=template) == "[a/0/0/1/${other}]:"
    assert prefix(assignment(), role="a", template="${hostname}: ", hostname="h") == "h: "


def test_an_empty_template_means_no_prefix() -> None:
    assert prefix(assignment(), role="trainer", template="") == ""


# ---- places


def test_without_options_output_goes_to_the_console_only(make: Callable[..., Bench]) -> None:
    bench = make()
    bench.run(0, b"out\n", b"err\n")
    assert (bench.out.getvalue(), bench.err.getvalue()) == ("[trainer 0 g1] out\n", "[trainer 0 g1] err\n")
    assert bench.files() == {}


def test_a_redirected_stream_goes_to_its_file_only(make: Callable[..., Bench]) -> None:
    bench = make(redirects="1")
    bench.run(1, b"out\xff\n", b"err\n")
    assert bench.files() == {"attempt_0/1/stdout.log": b"out\xff\n"}
    assert (bench.out.getvalue(), bench.err.getvalue()) == ("", "[trainer 1 g1] err\n")


def test_a_teed_stream_goes_to_both(make: Callable[..., Bench]) -> None:
    bench = make(tee="0:3")
    bench.run(0, b"out", b"err\n")
    bench.run(1, b"other\n")
    assert bench.files() == {"attempt_0/0/stdout.log": b"out", "attempt_0/0/stderr.log": b"err\n"}
    assert bench.out.getvalue() == "[trainer 0 g1] out\n[trainer 1 g1] other\n"


def test_the_filter_of_local_ranks_is_for_the_console_only(make: Callable[..., Bench]) -> None:
    bench = make(tee="1", local_ranks_filter=frozenset({0}))
    bench.run(0, b"zero\n", b"zero\n")
    bench.run(1, b"one\n", b"one\n")
    assert bench.files() == {"attempt_0/0/stdout.log": b"zero\n", "attempt_0/1/stdout.log": b"one\n"}
    assert bench.out.getvalue() == bench.err.getvalue() == "[trainer 0 g1] zero\n"


def test_matching_lines_of_all_teed_workers_are_duplicated_into_one_file(make: Callable[..., Bench]) -> None:
    bench = make(tee="0:1,1:1", redirects="3", duplicate_stdout_filters=("loss", "acc"))
    bench.run(0, b"loss 1\nother\nacc", b"loss on stderr\n")
    bench.run(1, b"x\nloss 2\n")
    filtered = bench.files()["attempt_0/filtered_stdout.log"].splitlines()
    assert filtered == [b"[trainer 0 g1] loss 1", b"[trainer 0 g1] acc", b"[trainer 1 g1] loss 2"]
    assert "attempt_0/filtered_stderr.log" not in bench.files()


def test_each_start_of_a_worker_has_files_of_its_own(make: Callable[..., Bench]) -> None:
    bench = make(redirects="3")
    bench.run(0, b"zero")
    for start in range(3):
        streams = bench.run(1, b"one %d" % start, generation=start + 1)
        Path(streams.error_file).write_text(str(start))
    bench.run(0, b"zero again", generation=4)
    files = {path: data for path, data in bench.files().items() if "stderr" not in path}
    assert files == {
        "attempt_0/0/stdout.log": b"zero",
        "attempt_1/0/stdout.log": b"zero again",
        **{f"attempt_{start}/1/stdout.log": b"one %d" % start for start in range(3)},
        **{f"attempt_{start}/1/error.json": b"%d" % start for start in range(3)},
    }
    assert not (Path(bench.pump.run_dir or "") / "attempt_2" / "0").exists()


def test_the_worker_is_told_of_its_error_file(make: Callable[..., Bench]) -> None:
    bench = make()
    streams = bench.run(1)
    assert streams.variables == {"TORCHELASTIC_ERROR_FILE": streams.error_file}
    assert streams.error_file == f"{bench.pump.run_dir}/attempt_0/1/error.json"
    assert Path(streams.error_file).parent.is_dir()


def test_no_files_are_made_when_the_log_folder_is_the_null_device(make: Callable[..., Bench]) -> None:
    bench = make(log_dir=os.devnull, tee="3")
    streams = bench.run(0, b"out\n")
    assert (streams.error_file, bench.pump.run_dir, bench.out.getvalue()) == ("", None, "[trainer 0 g1] out\n")


@pytest.mark.parametrize("keep", [True, False])
def test_a_temporary_folder_stays_only_if_it_is_wanted(tmp_path: Path, keep: bool, monkeypatch: Any) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    bench = Bench(tmp_path, log_dir=None, redirects="3")
    bench.run(0, b"out")
    bench.pump.close(timeout_s=5.0, keep=keep)
    assert bool(list(tmp_path.rglob("stdout.log"))) is keep
    assert keep or not list(tmp_path.iterdir())


@pytest.mark.parametrize("written", [True, False])
def test_folders_stay_only_if_anything_is_in_them(tmp_path: Path, written: bool) -> None:
    bench = Bench(tmp_path)
    streams = bench.run(0, b"out")
    if written:
        Path(streams.error_file).write_text("{}")
    bench.pump.close(timeout_s=5.0, keep=True)
    bench.pump.discard_empty()
    assert Path(streams.error_file).exists() is written
    assert bool(list((tmp_path / "logs").iterdir())) is written


def test_an_unknown_kind_of_logs_specs_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"--logs-specs missing: no installed package .* 'torchrun\.logs_specs'"):
        Bench(tmp_path, logs_specs="missing")


class OneFolder(LogsSpecs):
    """Specs that know no attempts."""

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        folder = str(self._root_log_dir)
        for env in envs.values():
            env["MY_VARIABLE"] = env["RANK"]
        paths = {rank: f"{folder}/{rank}.log" for rank in envs}
        return LogsDest(
            stdouts=paths, stderrs=dict.fromkeys(envs, ""), error_files={0: f"{folder}/0/e", 1: f"{folder}/1/e"}
        )

    @property
    def root_log_dir(self) -> str:
        return str(self._root_log_dir)


def test_specs_of_others_decide_places_and_variables_but_lose_nothing(
    make: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class EntryPoint:
        def load(self) -> type[LogsSpecs]:
            return OneFolder

    monkeypatch.setattr(places_module, "entry_points", lambda **_: [EntryPoint()])
    bench = make(logs_specs="mine")
    first = bench.run(1, b"first\n")
    Path(first.error_file).write_text("old")
    second = bench.run(1, b"second\n")
    assert second.variables == {"MY_VARIABLE": "1"}
    assert (tmp_path / "logs" / "1.log").read_bytes() == b"first\nsecond\n"
    assert not Path(second.error_file).exists()
    assert Path(f"{second.error_file}.before_1").read_text() == "old"


# ---- pump


def test_one_worker_alone_goes_through_byte_for_byte(make: Callable[..., Bench]) -> None:
    bench = make(1)
    bench.run(0, b"a\r\nprompt>")
    assert bench.out.getvalue() == "a\r\nprompt>"


def test_lines_of_two_workers_never_mix(make: Callable[..., Bench]) -> None:
    bench = make()
    first, second = bench.open(0), bench.open(1)
    for part in range(200):
        write(first.stdout_fd, b"a" * (part % 7) + (b"\n" if part % 3 == 0 else b""))
        write(second.stdout_fd, b"b" * (part % 5) + (b"\n" if part % 4 == 0 else b""))
    end(first)
    end(second)
    for line in bench.out.getvalue().splitlines():
        assert set(line.removeprefix("[trainer 0 g1] ")) <= {"a"} or set(line.removeprefix("[trainer 1 g1] ")) <= {"b"}


def test_an_unfinished_line_is_shown_soon_and_others_start_a_new_one(make: Callable[..., Bench]) -> None:
    bench = make()
    first, second = bench.open(0), bench.open(1)
    write(first.stdout_fd, b"50%")
    wait_until(lambda: bench.out.getvalue() == "[trainer 0 g1] 50%", 5.0)
    write(second.stdout_fd, b"hello\n")
    wait_until(lambda: "hello" in bench.out.getvalue(), 5.0)
    write(first.stdout_fd, b" done\n")
    end(first)
    end(second)
    assert bench.out.getvalue() == "[trainer 0 g1] 50%\n[trainer 1 g1] hello\n[trainer 0 g1]  done\n"


def test_a_worker_that_was_given_another_place_has_another_prefix(make: Callable[..., Bench]) -> None:
    bench = make()
    streams = bench.open(0)
    write(streams.stdout_fd, b"before\n")
    wait_until(lambda: "before" in bench.out.getvalue(), 5.0)
    streams.reassigned(assignment(1, generation=2))
    wait_until(lambda: b"g2" in streams._stdout.label.prefix, 5.0)
    write(streams.stdout_fd, b"after\n")
    end(streams)
    assert bench.out.getvalue() == "[trainer 0 g1] before\n[trainer 1 g2] after\n"


def test_a_grandchild_does_not_hold_the_agent_up(make: Callable[..., Bench]) -> None:
    bench = make(redirects="1")
    streams = bench.open(0)
    grandchilds = os.dup(streams.stdout_fd)
    write(grandchilds, b"said before")
    streams.close_after(0.01)
    wait_until(lambda: streams.drained.done, 5.0)
    os.close(grandchilds)
    assert bench.files()["attempt_0/0/stdout.log"] == b"said before"


def test_what_others_found_out_is_added_to_stderr(make: Callable[..., Bench]) -> None:
    bench = make(tee="2")
    streams = bench.open(0)
    streams.note(b"Thread 1 hangs in recv\n")
    wait_until(lambda: "hangs" in bench.err.getvalue(), 5.0)
    end(streams)
    assert bench.files()["attempt_0/0/stderr.log"] == b"Thread 1 hangs in recv\n"


def test_the_last_lines_are_those_of_stderr_if_it_said_anything(make: Callable[..., Bench]) -> None:
    bench = make()
    both = bench.run(0, b"out\n", b"".join(b"err %d\n" % number for number in range(30)))
    only_out = bench.run(1, b"out\n")
    assert both.last_lines() == [f"err {number}" for number in range(10, 30)]
    assert only_out.last_lines() == ["out"]


def test_followers_get_whole_lines_wherever_else_they_go(make: Callable[..., Bench]) -> None:
    bench = make(redirects="3")
    followed: list[bytes] = []
    stop = bench.pump.follow(followed.append)
    wait_until(lambda: bool(bench.pump.followers), 5.0)
    streams = bench.open(1)
    write(streams.stdout_fd, b"one\ntwo")
    wait_until(lambda: len(followed) == 1, 5.0)
    end(streams)
    stop()
    wait_until(lambda: not bench.pump.followers, 5.0)
    bench.run(0, b"too late\n")
    assert followed == [b"[trainer 1 g1] one\n", b"[trainer 1 g1] two"]


def test_closing_keeps_what_is_in_the_pipes(make: Callable[..., Bench]) -> None:
    bench = make(redirects="1")
    streams = bench.open(0)
    write(streams.stdout_fd, b"last words")
    bench.pump.close(timeout_s=5.0, keep=True)
    assert bench.files()["attempt_0/0/stdout.log"] == b"last words"
    assert streams.drained.done


# ---- a console with a descriptor


class PipeConsole:
    """A pump whose stdout and stderr are one pipe, or terminal, read when the test wants."""

    def __init__(self, tmp_path: Path, make_pair: Callable[[], tuple[int, int]] = os.pipe, **options: Any) -> None:
        self.read_fd, write_fd = make_pair()
        self.stream = os.fdopen(write_fd, "w")
        self.pump = LogPump(
            LogOptions(log_dir=str(tmp_path), **options),
            role="r",
            run_id="job",
            num_workers=2,
            console_out=self.stream,
            console_err=self.stream,
        )
        self.stream.close()  # the pump has a copy
        self.shown = bytearray()
        self.reader = threading.Thread(target=self._read)

    def _read(self) -> None:
        while chunk := os.read(self.read_fd, 65536):
            self.shown += chunk

    def finish(self) -> bytes:
        """Read to the end, while the pump closes."""
        if not self.reader.ident:
            self.reader.start()
        self.pump.close(timeout_s=5.0, keep=True)
        self.reader.join()
        os.close(self.read_fd)
        return bytes(self.shown)


def flood(streams: WorkerStreams, lines: bytes) -> threading.Thread:
    """Be a worker on a thread, which may have to wait."""
    fd = os.dup(streams.stdout_fd)
    streams.started()

    def work() -> None:
        with os.fdopen(fd, "wb", buffering=0) as file:
            write(file.fileno(), lines)

    thread = threading.Thread(target=work)
    thread.start()
    return thread


def test_a_console_that_is_not_read_makes_workers_wait_and_loses_nothing(tmp_path: Path) -> None:
    console = PipeConsole(tmp_path)
    first, second = (console.pump.open(assignment(rank)) for rank in range(2))
    lines = b"x" * 99 + b"\n"
    workers = [flood(streams, lines * (FULL_BYTES * 2 // 100)) for streams in (first, second)]
    wait_until(lambda: console.pump.out.is_full, 5.0)
    assert all(worker.is_alive() for worker in workers)
    console.reader.start()
    for worker in workers:
        worker.join()
    shown = console.finish()
    for rank in range(2):
        assert shown.count(b"[r %d g1] %b" % (rank, lines)) == FULL_BYTES * 2 // 100


def test_a_long_line_stays_one_line_with_one_prefix_whoever_else_writes_and_however_slow_the_reader(
    tmp_path: Path,
) -> None:
    console = PipeConsole(tmp_path)
    length = 3 * FULL_BYTES
    streams = [console.pump.open(assignment(rank)) for rank in range(2)]
    workers = [
        flood(each, b"short\n" + letter * length + b"\nlast " + letter)
        for each, letter in zip(streams, (b"a", b"b"), strict=True)
    ]
    wait_until(lambda: console.pump.out.is_full, 5.0)
    is_late = threading.Event()

    def set_later() -> None:
        console.pump.thread.call_later(2 * PARTIAL_S, is_late.set)

    console.pump.thread.call_soon(set_later)
    assert is_late.wait(5.0)  # which counts for nothing: it is the reader that takes its time
    console.reader.start()
    for worker in workers:
        worker.join()
    wait_until(lambda: all(each.drained.done for each in streams), 5.0)
    lines = console.finish().decode().splitlines()
    expected = [
        f"[r {rank} g1] {text}"
        for rank, letter in enumerate("ab")
        for text in ("short", letter * length, f"last {letter}")
    ]
    assert sorted(map(shortened, lines)) == sorted(map(shortened, expected))


def shortened(line: str) -> str:
    return line if len(line) < 100 else f"{line[:20]}...{line[-20:]} {len(line)} {sorted(set(line[20:]))}"


def test_a_long_line_that_does_not_go_on_holds_nobody_up(make: Callable[..., Bench]) -> None:
    bench = make()
    first, second = bench.open(0), bench.open(1)
    write(first.stdout_fd, b"a" * (LONGEST_HELD + 1))
    wait_until(lambda: len(bench.out.getvalue()) > LONGEST_HELD, 5.0)
    write(second.stdout_fd, b"b" * (LONGEST_HELD + 1))  # begins behind it, and does not go on either
    wait_until(lambda: "b" in bench.out.getvalue(), 5.0)
    write(first.stdout_fd, b"rest\n")
    wait_until(lambda: "rest" in bench.out.getvalue(), 5.0)
    end(first)
    end(second)
    lengths = [len(line.removeprefix("[trainer 0 g1] ")) for line in bench.out.getvalue().splitlines()]
    assert lengths == [LONGEST_HELD + 1, LONGEST_HELD + 1 + len("[trainer 1 g1] "), len("rest")]


def test_followers_and_filters_get_long_lines_whole(make: Callable[..., Bench]) -> None:
    bench = make(redirects="3", tee="3", duplicate_stdout_filters=("needle",))
    followed: list[bytes] = []
    bench.pump.follow(followed.append)
    wait_until(lambda: bool(bench.pump.followers), 5.0)
    line = b"x" * (4 * LONGEST_HELD) + b"needle" + b"x" * LONGEST_HELD + b"\n"
    bench.run(0, line)
    assert b"".join(followed) == b"[trainer 0 g1] " + line
    assert [content for name, content in bench.files().items() if "filtered_stdout" in name] == [b"".join(followed)]


def test_a_console_whose_reader_went_away_costs_no_file_and_no_worker(tmp_path: Path) -> None:
    console = PipeConsole(tmp_path, tee="1")
    os.close(console.read_fd)
    streams = console.pump.open(assignment(0))
    lines = b"line\n" * 300_000
    flood(streams, lines).join()
    wait_until(lambda: streams.drained.done, 5.0)
    assert next(tmp_path.rglob("stdout.log")).read_bytes() == lines
    console.pump.close(timeout_s=5.0, keep=True)


@pytest.mark.parametrize("make_pair", [os.pipe, os.openpty])
def test_a_console_that_nobody_reads_does_not_hold_up_the_end(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, make_pair: Callable[[], tuple[int, int]]
) -> None:
    console = PipeConsole(tmp_path, make_pair)
    streams = console.pump.open(assignment(0))
    flood(streams, b"line\n" * 20_000).join()
    wait_until(lambda: streams.drained.done, 5.0)
    console.pump.close(timeout_s=0.05, keep=True)
    os.close(console.read_fd)
    assert "the console took too long" in caplog.text


def test_a_slow_console_does_not_delay_a_stream_that_goes_to_a_file(tmp_path: Path) -> None:
    console = PipeConsole(tmp_path, redirects="1:1")
    to_console, to_file = (console.pump.open(assignment(rank)) for rank in range(2))
    blocked = flood(to_console, b"x\n" * FULL_BYTES)
    wait_until(lambda: console.pump.out.is_full, 5.0)
    flood(to_file, b"y" * 1_000_000).join()
    wait_until(lambda: to_file.drained.done, 5.0)
    assert not to_console.drained.done
    console.reader.start()
    blocked.join()
    console.finish()
    assert next(tmp_path.rglob("stdout.log")).stat().st_size == 1_000_000


def test_stdout_and_stderr_on_one_terminal_do_not_mix_within_a_line(tmp_path: Path) -> None:
    console = PipeConsole(tmp_path)
    streams = console.pump.open(assignment(0))
    write(streams.stdout_fd, b"no end")
    assert os.read(console.read_fd, 100) == b"[r 0 g1] no end"
    write(streams.stderr_fd, b"warning\n")
    end(streams)
    assert console.finish() == b"\n[r 0 g1] warning\n"

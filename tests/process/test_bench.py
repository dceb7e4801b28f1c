"""``multiworld bench`` with real workers, as short as it gets: that it measures and reports, not how fast we are."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

from multiworld.testing import scaled
from tests import warm_programs

pytestmark = pytest.mark.process

PROGRAM = ["-c", "import sys; from multiworld.cli.main import main; sys.exit(main(sys.argv[1:]))"]
WARM_PROGRAM = ["-m", "tests.process.warm_command", "multiworld"]


def _bench(*arguments: str, backends: tuple[str, ...], program: list[str] = WARM_PROGRAM) -> dict[str, dict[str, Any]]:
    """Run quickly, with workers that are forked; return the lines of all sections by name."""
    options = ["--quick", "--rounds", "1", "--trials", "1", "--json", "-"]
    options += [word for backend in backends for word in ("--backend", backend)]
    command = [sys.executable, *program, "bench", *arguments, *options]
    done = warm_programs.run(command, capture_output=True, text=True, timeout=scaled(170), check=False)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["quick"]
    assert [section["name"] for section in report["sections"]] == list(arguments)
    return {line["name"]: line for section in report["sections"] for line in section["lines"]}


@pytest.mark.timeout(scaled(180))
@pytest.mark.usefixtures("no_leaks")
def test_p2p_measures_every_size_beside_raw_gloo() -> None:
    lines = _bench("p2p", backends=("tcp", "gloo"), program=PROGRAM)
    sizes = ("4 kB", "40 kB", "400 kB", "4 MB", "64 MB", "round trip 4 B", "round trip 4 kB")
    lanes = [f"{backend}, {api}" for backend in ("tcp", "gloo") for api in ("asyncio", "blocking")]
    assert set(lines) == {f"{size}, {lane}" for size in sizes for lane in lanes}
    for line in lines.values():
        assert line["value"] > 0
        assert line["reference"] > 0
        assert line["ratio_quartiles"][0] <= line["ratio"] <= line["ratio_quartiles"][1]


@pytest.mark.timeout(scaled(180))
@pytest.mark.usefixtures("no_leaks")
def test_channels_measures_the_whole_table() -> None:
    lines = _bench("channels", backends=("tcp",))
    for kind, sizes in (("", ("40 kB", "4 MB")), ("round trip ", ("4 B",)), ("2 ranks, all_reduce ", ("4 B", "64 MB"))):
        for size in sizes:
            for api in ("asyncio", "blocking"):
                assert lines[f"{kind}{size}, tcp, {api}"]["ratio"] > 0
    assert lines["64 MB, tcp, blocking, of memcpy"]["ratio"] > 0
    assert lines["4 ranks, reduce_scatter 4 MB, tcp, blocking"]["ratio"] > 0
    assert lines["memory of an idle world, tcp, used"]["value"] < 64  # not the tensor
    assert lines["memory while moving 64 MB, tcp"]["value"] < 64
    over_veth = lines["over veth: round trip 4 kB, tcp, blocking"]
    assert over_veth["value"] is not None or over_veth["note"].startswith("not measured: ")
    step = lines["DDP step, tcp"]
    assert step["value"] is not None or step["note"].startswith("not measured: ")


@pytest.mark.timeout(scaled(180))
@pytest.mark.usefixtures("no_leaks")
def test_the_other_benchmarks_measure_too() -> None:
    lines = _bench("join", "detect", "scale", backends=("tcp",))
    assert lines["join, tcp"]["reference"] > 0
    assert lines["SIGKILL, idle, tcp: told another cause"]["value"] == 0
    assert "2 of 2 receives still pending" in lines["SIGSTOP, operations pending, tcp"]["note"]
    assert lines["tcp: descriptors per world"]["bound"]["holds"]

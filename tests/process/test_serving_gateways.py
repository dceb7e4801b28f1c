"""Two gateways at one port, as stock clients and Prometheus meet them."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from multiworld.testing.deadlines import wait_until
from tests import warm_programs
from tests.unit.exposition import check_with_promtool, checked_samples

pytestmark = pytest.mark.process
COMMAND = [str(Path(sys.executable).with_name("multiworld")), "serve"]

APP = """
import torch
from multiworld.serving import Pipeline, Signature, Stage

def twice(x):
    return {"y": x["pixels"] * 2}

example = Signature.of({"pixels": torch.ones(1, 2)}, {"y": torch.ones(1, 2)})
pipeline = Pipeline([Stage("twice", twice, signature=example)], name="named")
"""
NUM_REQUESTS = 12
ANSWERED = 'multiworld_requests_total{{gateway="gateway-{}",outcome="answered"}}'


class Served:
    def __init__(self, folder: Path) -> None:
        (folder / "app.py").write_text(APP)
        self._log = folder / "log"
        with self._log.open("w+b") as log:
            self._process = warm_programs.Popen(
                [*COMMAND, "app.py:pipeline", "--gateways", "2", "--port", "0"],
                cwd=folder,
                env={**os.environ, "XDG_RUNTIME_DIR": str(folder)},
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        assert wait_until(lambda: self.output.count("answers at") == 2, 60), self.output
        self.url = self.output.split("answers at ")[1].split()[0]

    @property
    def output(self) -> str:
        return self._log.read_text()

    def get(self, path: str, value: Any = None) -> str:
        """Ask on a connection of its own, which the kernel leads to either gateway."""
        body = None if value is None else json.dumps(value).encode()
        request = urllib.request.Request(self.url + path, body, {"content-type": "application/json"})
        with urllib.request.urlopen(request, timeout=20) as answer:
            text: str = answer.read().decode()
        return text

    def end(self) -> None:
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    started = Served(tmp_path_factory.mktemp("gateways"))
    yield started
    started.end()


def test_a_client_of_kserve_learns_the_names_and_asks_by_them(served: Served) -> None:
    told = json.loads(served.get("/v2/models/named"))
    assert told["inputs"] == [{"name": "pixels", "datatype": "FP32", "shape": [-1, 2]}]
    assert told["outputs"] == [{"name": "y", "datatype": "FP32", "shape": [-1, 2]}]
    [spec] = told["inputs"]
    asked = {"inputs": [{**spec, "shape": [1, 2], "data": [1.5, 2]}], "outputs": [{"name": "y"}]}
    [output] = json.loads(served.get("/v2/models/named/infer", asked))["outputs"]
    assert output == {"name": "y", "datatype": "FP32", "shape": [1, 2], "data": [3.0, 4.0]}


def test_each_scrape_shows_both_gateways_and_no_counter_runs_backwards(served: Served) -> None:
    scrapes: list[dict[str, float]] = []

    def scrape() -> dict[str, float]:
        scrapes.append(checked_samples(served.get("/metrics")))
        return scrapes[-1]

    def num_answered() -> float:
        found = scrape()
        return sum(found.get(ANSWERED.format(number), 0.0) for number in (1, 2))

    assert wait_until(lambda: {ANSWERED.format(1), ANSWERED.format(2)} <= scrape().keys(), 20)
    before = num_answered()
    scrapes.clear()
    for _ in range(NUM_REQUESTS):
        served.get("/infer", {"inputs": {"pixels": [[1.0]]}})
        scrape()
    assert wait_until(lambda: num_answered() >= before + NUM_REQUESTS, 20)
    for earlier, later in itertools.pairwise(scrapes):
        assert earlier.keys() <= later.keys()
        for sample, value in earlier.items():
            if sample.partition("{")[0].endswith(("_total", "_count", "_bucket")):
                assert later[sample] >= value, sample
    check_with_promtool(served.get("/metrics"))

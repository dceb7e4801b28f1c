"""Fixtures of the tests with processes: most of their workers are forked, not started one by one."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from multiworld.elastic.launch.program_needs import PIPELINE_MODULE, TRAINING_MODULES
from multiworld.process.spawn import interpreter
from multiworld.testing import hosts, worker_group
from tests import warm_programs
from tests.process.warm_writer import WRITER
from tests.warm_workers import Nursery

TRAININGS = ("test_pipelines", "test_training")
"""How modules begin that train. They come late: a process with all these modules takes longer to fork and to end."""


@pytest.fixture(scope="session")
def nursery() -> Iterator[Nursery]:
    nursery = Nursery()
    warm_programs.fork_by(nursery.fork_program)
    yield nursery
    warm_programs.fork_by(None)
    nursery.close()


@pytest.fixture(scope="module", autouse=True)
def warm_workers(nursery: Nursery, request: pytest.FixtureRequest) -> Iterator[None]:
    """Fork the workers of ``WorkerGroup``, the hosts of deployments and what is started on simulated hosts, except in
    modules marked ``cold``.
    """
    if request.path.name.startswith(TRAININGS):
        request.getfixturevalue("training_modules")
    with pytest.MonkeyPatch.context() as patch:
        if request.node.get_closest_marker("cold") is None:
            patch.setattr(worker_group, "ChildProcess", nursery.start)
            patch.setattr(interpreter, "subprocess", warm_programs)
            patch.setattr(hosts, "subprocess", SimpleNamespace(**{**vars(subprocess), "Popen": warm_programs.Popen}))
        yield


@pytest.fixture(scope="session")
def training_modules(nursery: Nursery) -> None:
    """Fork launchers that have imported what their workers need to train: each would take three seconds for it."""
    nursery.preload(*TRAINING_MODULES, PIPELINE_MODULE, WRITER)


@pytest.fixture(scope="module")
def torch_features(nursery: Nursery) -> None:
    """Fork workers that have PyTorch's own distributed features imported, which takes as long as PyTorch itself."""
    nursery.preload("tests.process.process_group_programs")

"""Fragments of the documentation run inside what the text around them supposes, in this process."""

from __future__ import annotations

import asyncio
import contextlib
import re
import sys
import textwrap
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import multiworld as mw
from multiworld.distributed import rejoin as rejoin_default_group
from multiworld.model.signature import Signature, TensorSpec
from multiworld.serving import Stage
from multiworld.serving.config.load import load_pipeline
from multiworld.serving.generation import Advance, GenerationStage
from tests.examples.test_docs import ROOT, code_block, free_port

pytestmark = pytest.mark.usefixtures("no_leaks")

TUTORIAL = "docs/tutorial.md"
PYPROJECT = (ROOT / "pyproject.toml").read_text()


def define(code: str, **names: Any) -> Callable[[], Any]:
    """Return the fragment as a coroutine function that returns its local names."""
    source = f"async def block():\n{textwrap.indent(code, '    ')}\n    return locals()"
    space: dict[str, Any] = {"mw": mw, "torch": torch, **names}
    exec(compile(source, "fragment", "exec"), space)
    return space["block"]  # type: ignore[no-any-return]


def run(code: str, **names: Any) -> dict[str, Any]:
    """Execute the fragment at the level of a module and return its names."""
    space = dict(names)
    exec(compile(code, "fragment", "exec"), space)
    return space


@asynccontextmanager
async def pair(**options: Any) -> AsyncIterator[list[mw.World]]:
    async with mw.WorldManager() as left, mw.WorldManager() as right:
        store = left.serve_store("tcp://127.0.0.1:0")
        members = enumerate((left, right))
        joins = (each.join("pair", rank=rank, world_size=2, store=store, **options) for rank, each in members)
        yield list(await asyncio.gather(*joins))


async def test_a_payload_of_the_tutorial() -> None:
    sending, receiving = code_block(TUTORIAL, "await world.send_tensors").splitlines()
    tokens, mask = torch.arange(3), torch.ones(3, dtype=torch.bool)
    async with pair() as worlds:
        _, received = await asyncio.gather(
            define(sending, world=worlds[0], tokens=tokens, mask=mask)(), define(receiving, world=worlds[1])()
        )
    assert received["payload"].keys() == {"tokens", "mask"}
    assert torch.equal(received["payload"]["tokens"], tokens)


async def test_the_collectives_of_the_tutorial() -> None:
    code = code_block(TUTORIAL, "total = torch.tensor")
    async with pair() as worlds:
        results = await asyncio.gather(*(define(code, world=world, rank=world.rank)() for world in worlds))
    assert [[part.item() for part in found["parts"]] for found in results] == [[3.0, 3.0], [3.0, 3.0]]


async def test_a_deadline_of_the_tutorial_leaves_the_world_standing() -> None:
    code = code_block(TUTORIAL, "    await world.recv(answer, src=1, timeout_s=5)")
    handled = code.replace("timeout_s=5", "timeout_s=0.01").replace("    ...  #", "    is_late = True  #")
    async with pair() as (left, right):
        found = await define(handled, world=left, answer=torch.empty(1))()
        assert found["is_late"]
        tensor = torch.ones(1)
        await asyncio.gather(right.send(tensor, dst=0), left.recv(tensor, src=1))


async def test_the_watcher_of_the_tutorial(capsys: pytest.CaptureFixture[str]) -> None:
    watch = run(code_block(TUTORIAL, "async def watch"), mw=mw)["watch"]
    async with mw.WorldManager() as left, mw.WorldManager() as right:
        watching = asyncio.create_task(watch(left))
        await asyncio.sleep(0)  # it begins to listen
        store = left.serve_store("tcp://127.0.0.1:0")
        members = enumerate((left, right))
        world, _ = await asyncio.gather(
            *(each.join("pair", rank=rank, world_size=2, store=store) for rank, each in members)
        )
        await right.aclose()
        await world.wait_broken()
        shown = capsys.readouterr().out
        while "rank 1" not in shown:
            await asyncio.sleep(0)
            shown += capsys.readouterr().out
        watching.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watching
    assert shown.startswith("pair: generation 1 after 0.")
    assert "pair: rank 1: " in shown


def test_the_blocking_twins_of_the_tutorial() -> None:
    store = f"tcp://127.0.0.1:{free_port()}"
    names = {"rank": 0, "STORE": store, "total": torch.ones(2), "tensor": torch.empty(1), "number": torch.empty(1)}
    code = code_block(TUTORIAL, "manager.blocking.join")
    found: dict[str, Any] = {}
    thread = threading.Thread(target=lambda: found.update(run(code, mw=mw, **names)))
    thread.start()
    with mw.WorldManager() as manager:
        world = manager.blocking.join("pair", rank=1, world_size=2, store=store)
        world.blocking.all_reduce(torch.ones(2))
        world.blocking.send(torch.tensor([3.0]), dst=0)
        world.blocking.send(torch.tensor([4.0]), dst=0)
        thread.join(20)
    assert (found["source"], found["tensor"].item(), found["number"].item()) == (1, 3.0, 4.0)
    assert found["total"].tolist() == [2.0, 2.0]


async def test_the_token_of_the_tutorial() -> None:
    code = code_block(TUTORIAL, "async with mw.WorldManager(host=")
    port = free_port()
    code = code.replace("10.0.0.2", "127.0.0.1").replace("10.0.0.1:29500", f"127.0.0.1:{port}")
    token = "0123456789abcdef" * 2
    second = define(code, os=SimpleNamespace(environ={"JOB_TOKEN": token}))
    async with mw.WorldManager(host="127.0.0.1", token=token) as manager:
        store = f"tcp://127.0.0.1:{port}"
        await asyncio.gather(second(), manager.join("pair", rank=0, world_size=2, store=store, serve_store=True))


def test_the_loop_of_process_group_mode() -> None:
    """It rejoins after a loss and does the work again; ``rejoin`` itself is tested by tests/process."""
    ends = iter([mw.WorldBrokenError("pair", 1, 1, "gone"), None])
    waits: list[float] = []

    def work() -> bool:
        end = next(ends)
        if end is not None:
            raise end
        return True

    def rejoin(*, join_timeout_s: float) -> None:
        waits.append(join_timeout_s)

    assert "join_timeout_s" in rejoin_default_group.__annotations__
    code = code_block("docs/process-group-mode.md", "while not finished:")
    run(code, finished=False, work=work, multiworld=mw, dist=SimpleNamespace(rejoin=rejoin))
    assert waits == [120]


def test_the_training_loop_of_process_groups() -> None:
    """A world of one loses a generation amid its steps, and the loop goes on in the next; with peers: examples."""
    steps: list[int] = []
    net = nn.Linear(2, 1)

    def loss_of(model: nn.Module, step: int) -> torch.Tensor:
        steps.append(step)
        if len(steps) == 2:
            raise mw.WorldBrokenError("training", 1, 1, "a peer is lost")
        return model(torch.ones(2)).sum()  # type: ignore[no-any-return]

    with mw.WorldManager() as manager:
        found = run(
            code_block("docs/process-groups.md", 'world = manager.blocking.join("training"'),
            mw=mw,
            manager=manager,
            rank=0,
            world_size=1,
            store=manager.serve_store("tcp://127.0.0.1:0"),
            agree_on_a_step_and_load_its_state=lambda world: len(steps) - 1 if steps else 0,
            DistributedDataParallel=nn.parallel.DistributedDataParallel,
            net=net,
            num_steps=3,
            loss_of=loss_of,
            optimizer=torch.optim.SGD(net.parameters(), lr=0.1),
        )
        assert found["world"].generation == 2
    assert steps == [0, 1, 1, 2]


def test_the_default_group_of_one_process() -> None:
    run(code_block("docs/process-groups.md", "torch.distributed.init_process_group"), torch=torch)
    try:
        assert torch.distributed.get_world_size() == 1
    finally:
        torch.distributed.destroy_process_group()


def test_the_stages_that_the_page_about_serving_declares() -> None:
    stages: list[Stage] = []

    def declare(*arguments: Any, **options: Any) -> None:
        stages.append(Stage(*arguments, **options))

    names = {"Stage": declare, "Signature": Signature, "TensorSpec": TensorSpec, "twice": lambda payload: payload}
    run(code_block("docs/serving.md", "signature=Signature("), torch=torch, **names)
    for stage in stages:
        assert stage.signature is not None
        assert [spec.name for spec in stage.signature.inputs] == ["pixels"]
    assert len(stages) == 2
    names = {"GenerationStage": GenerationStage, "Advance": Advance, "Tensor": torch.Tensor}
    blocks = run(code_block("docs/serving.md", "class Blocks(GenerationStage)"), **names)["Blocks"]
    assert blocks().advance([]) is None


def test_the_files_of_the_page_about_serving(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(code_block("docs/serving.md", 'name="calc"'))
    model = "nn.Sequential(*(nn.Linear(4, 4) for _ in range(6)))"
    (tmp_path / "own.py").write_text(f"from torch import nn, ones\nModel = {model}\nexample = ones(2, 4)\n")
    (tmp_path / "pipeline.yaml").write_text(code_block("docs/serving.md", "name: calc"))
    (tmp_path / "job.yaml").write_text(code_block("docs/serving.md", "name: job"))
    try:
        calc = load_pipeline(str(tmp_path / "pipeline.yaml"))
        assert [stage.name for stage in calc.build()] == ["add", "scale"]
        job = load_pipeline(str(tmp_path / "job.yaml"))
        assert (job.cut.model, job.cut.example, len(job.build())) == ("own:Model", "own:example", 1)
    finally:
        for name in ("app", "own"):
            sys.modules.pop(name, None)


def test_the_entry_point_names_the_channel_of_the_page() -> None:
    entry = code_block("docs/channels.md", '[project.entry-points."multiworld.channels"]')
    module, _, name = entry.split('"')[-2].partition(":")
    assert f"class {name}(StreamChannel)" in code_block("docs/channels.md", f'title="{module}.py"')


def test_the_layers_of_the_overview_are_those_that_are_checked() -> None:
    shown = [line.split()[0] for line in code_block("docs/index.md", "cli          the commands").splitlines()]
    contract = PYPROJECT.partition('name = "Each layer imports only what stands below it"')[2]
    layers = re.findall(r"^layers = \[(.*?)^\]", contract, re.MULTILINE | re.DOTALL)[0]
    checked = [re.findall(r"\w+", line) for line in re.findall('"(.*)"', layers)]
    places = [next(place for place, names in enumerate(checked) if name in names) for name in shown]
    assert places == sorted(places)
    missing = {name for names in checked for name in names} - set(shown)
    assert [name for name in sorted(missing) if (ROOT / "src/multiworld" / name).is_dir()] == []

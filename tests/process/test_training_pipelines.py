"""A model trained in several pipelines: the losses have the same bits after any kill."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from multiworld.testing import scaled
from multiworld.training.pipeline.growing import PREFETCH
from tests import warm_programs

from .training_pipeline_program import GLOBAL_BATCH, MAX_NORM, MICRO_BATCH, Options, dataset, loss_of, stages

pytestmark = [pytest.mark.process, pytest.mark.timeout(scaled(120))]  # each trains once or twice

PROGRAM = Path(__file__).with_name("training_pipeline_program.py")
TOTAL = 12
GPT = Options(model="gpt", layers_of_a_process=14)  # two pipelines of two processes


@dataclass(frozen=True)
class Committed:
    """What one process saw of one step."""

    rank: int
    loss: float
    layers: tuple[int, ...]
    lr: float
    num_reroutes: int
    policy: str
    forwards: tuple[int, ...] = ()
    """The micro-batches of its forwards, in all tries of the step."""
    num_put_off: int = 0
    """Split backwards that it has ended until then."""


def train(folder: Path, options: Options, *, num_processes: int = 4) -> dict[int, list[Committed]]:
    """Return for each step what the processes saw that committed it."""
    folder.mkdir()
    run = [sys.executable, "-m", "multiworld.run", f"--nproc-per-node={num_processes}", "--max-restarts=5"]
    command = [*run, "--restart=worker", str(PROGRAM), str(folder), json.dumps(asdict(options))]
    ended = warm_programs.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return read(folder)


def read(folder: Path) -> dict[int, list[Committed]]:
    seen: dict[int, list[Committed]] = {}
    for path in sorted(folder.iterdir()):
        for line in path.read_text().splitlines():
            said: dict[str, Any] = json.loads(line)
            if "end" in said:
                continue
            rank = int(path.name.partition("-")[0])
            lr, reroutes, forwards = said["lr"][0], said["reroutes"], tuple(said["forwards"])
            one = Committed(
                rank, said["loss"], tuple(said["layers"]), lr, reroutes, said["policy"], forwards, said["put_off"]
            )
            seen.setdefault(said["step"], []).append(one)
    return dict(sorted(seen.items()))


def losses(seen: dict[int, list[Committed]], steps: Sequence[int] = range(TOTAL)) -> list[float]:
    """Return the loss of each of these steps. Asserts that all saw the same, in every step."""
    for step, each in seen.items():
        assert len({(one.loss, one.lr) for one in each}) == 1, f"step {step}: {each}"
    assert list(seen) == list(steps)
    return [each[0].loss for each in seen.values()]


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> Sequence[float]:
    return losses(train(tmp_path_factory.mktemp("undisturbed") / "run", Options()))


def test_pipelines_compute_what_one_process_computes(tmp_path: Path) -> None:
    seen = train(tmp_path / "run", Options(dropout=0.0, exact=False))
    torch.set_num_threads(1)  # on a busy machine more of them wait for each other
    model = torch.nn.Sequential(*stages(0.0))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 5, gamma=0.5)
    expected = [_alone(model, optimizer, scheduler, step) for step in range(TOTAL)]
    assert losses(seen) == pytest.approx(expected, rel=1e-9)
    held = {one.layers for one in seen[TOTAL - 1]}
    assert held == {(0, 1, 2, 3), (4, 5, 6, 7)}


def _alone(
    model: torch.nn.Sequential,
    optimizer: torch.optim.Optimizer,
    scheduler: torch.optim.lr_scheduler.LRScheduler,
    step: int,
) -> float:
    """Do one step; running statistics take the mean change of all micro-batches, as in a training of replicas."""
    from multiworld.training import open_loader

    loader = open_loader(dataset(), global_batch=GLOBAL_BATCH, micro_batch=MICRO_BATCH, shuffle=True)
    optimizer.zero_grad()
    seen = []
    for _, (inputs, target) in loader.fetch(step, range(loader.num_micro_batches)):
        loss = loss_of(model(inputs), target)
        (loss / loader.num_micro_batches).backward()  # type: ignore[no-untyped-call]
        seen.append(loss.item())
    loader.close()
    torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)
    optimizer.step()
    scheduler.step()
    return sum(seen) / len(seen)


@pytest.mark.parametrize("moment", ["forward", "backward", "reduced", "committed"])
@pytest.mark.parametrize("rank", [0, 3])
def test_losses_keep_their_bits_when_a_stage_is_killed(
    tmp_path: Path, expected: Sequence[float], rank: int, moment: str
) -> None:
    seen = train(tmp_path / "run", Options(kills=((rank, 4, moment),), waits_for=TOTAL))
    assert losses(seen) == list(expected)
    assert {one.rank for one in seen[5]} == {0, 1, 2, 3} - {rank} or len(seen[5]) == 4
    held = {layer for one in seen[5] for layer in one.layers}
    assert held == set(range(8))  # the layers of the dead went to others


@pytest.mark.parametrize(("rank", "moment"), [(0, "forward"), (3, "backward"), (2, "weights"), (1, "reduced")])
def test_a_split_backward_has_the_bits_of_a_whole_one_through_a_loss(
    tmp_path: Path, expected: Sequence[float], rank: int, moment: str
) -> None:
    options = Options(kills=((rank, 4, moment),), waits_for=TOTAL, schedule="zero-bubble")
    seen = train(tmp_path / "run", options)
    assert losses(seen) == list(expected)
    assert all(one.num_put_off > 0 for each in seen.values() for one in each)


@pytest.mark.parametrize("options", [Options(), GPT], ids=["chain", "tied"])
def test_layers_are_trained_on_another_device_than_the_model_was_built_on(tmp_path: Path, options: Options) -> None:
    """Each copy to ``cpu:0`` is a new one: a value that is not the one of the copy would not be trained."""
    there = replace(options, device="cpu:0", kills=((3, 4, "backward"),), waits_for=TOTAL)
    assert losses(train(tmp_path / "there", there)) == losses(train(tmp_path / "here", options))


def test_tied_weights_keep_their_bits_with_a_split_backward(tmp_path: Path) -> None:
    expected = losses(train(tmp_path / "undisturbed", GPT))
    options = replace(GPT, kills=((1, 4, "weights"),), waits_for=TOTAL, schedule="zero-bubble")
    seen = train(tmp_path / "killed", options)
    assert losses(seen) == expected
    assert all(one.num_put_off > 0 for each in seen.values() for one in each)


def test_peers_put_gradients_of_weights_into_bubbles(tmp_path: Path, expected: Sequence[float]) -> None:
    kills = ((3, 4, "backward"), (2, 5, "weights"))
    options = Options(kills=kills, waits_for=TOTAL, moves_are_dear=True, schedule="auto")
    seen = train(tmp_path / "run", options, num_processes=6)
    assert losses(seen) == list(expected)
    assert 1 in {one.num_reroutes for each in seen.values() for one in each}
    assert any(one.num_put_off > 0 for each in seen.values() for one in each if one.num_reroutes)


def test_a_second_loss_while_layers_are_moved_is_survived(tmp_path: Path, expected: Sequence[float]) -> None:
    seen = train(tmp_path / "run", Options(kills=((3, 4, "backward"), (2, 4, "move")), waits_for=TOTAL))
    assert losses(seen) == list(expected)


@pytest.mark.parametrize(("rank", "moment"), [(0, "forward"), (3, "backward"), (1, "reduced"), (2, "committed")])
def test_losses_keep_their_bits_when_peers_compute_for_a_lost_stage(
    tmp_path: Path, expected: Sequence[float], rank: int, moment: str
) -> None:
    seen = train(tmp_path / "run", Options(kills=((rank, 4, moment),), waits_for=TOTAL, moves_are_dear=True))
    assert losses(seen) == list(expected)
    (after,) = {one.num_reroutes for one in seen[5]}
    if after:  # no replacement has come yet
        assert {one.rank: one.layers for one in seen[5]}.items() <= {one.rank: one.layers for one in seen[3]}.items()
    assert {one.num_reroutes for each in seen.values() for one in each} == {0, 1}
    if len(seen[TOTAL - 1]) == 4:  # the replacement has the lost place
        assert {one.num_reroutes for one in seen[TOTAL - 1]} == {0}


def test_a_second_loss_while_peers_compute_for_the_first_is_survived(tmp_path: Path, expected: Sequence[float]) -> None:
    kills = ((3, 4, "backward"), (2, 5, "forward"))
    seen = train(tmp_path / "run", Options(kills=kills, waits_for=TOTAL, moves_are_dear=True), num_processes=6)
    assert losses(seen) == list(expected)
    assert 1 in {one.num_reroutes for each in seen.values() for one in each}


def test_a_newcomer_gets_the_place_that_peers_have_computed_for(tmp_path: Path, expected: Sequence[float]) -> None:
    options = Options(kills=((3, 4, "backward"),), waits_for_newcomer_in=6, moves_are_dear=True)
    seen = train(tmp_path / "run", options)
    assert losses(seen) == list(expected)
    first, rerouted, last = seen[0], seen[6], seen[TOTAL - 1]
    assert {one.num_reroutes for one in rerouted} == {1}
    assert {one.num_reroutes for one in last} == {0}
    assert {one.rank: one.layers for one in last} == {one.rank: one.layers for one in first}


@pytest.mark.parametrize("options", [Options(), GPT], ids=["chain", "tied"])
def test_a_newcomer_gets_layers_beside_the_steps(tmp_path: Path, options: Options) -> None:
    expected = losses(train(tmp_path / "undisturbed", options))
    options = replace(options, kills=((3, 2, "backward"),), waits_for_newcomer_in=4, moves_are_large=True)
    seen = train(tmp_path / "killed", options)
    assert losses(seen) == expected
    meanwhile = [each for each in seen.values() if {one.policy for one in each} == {PREFETCH}]
    assert len(meanwhile) > 1  # one source sends one layer in a step
    assert [len({one.rank for one in each if one.layers}) for each in meanwhile] == [3] * len(meanwhile)
    assert len({one.rank for one in seen[TOTAL - 1] if one.layers}) == 4


@pytest.mark.parametrize("rank", [0, 2])
def test_a_loss_while_a_newcomer_gets_layers_is_survived(tmp_path: Path, expected: Sequence[float], rank: int) -> None:
    kills = ((3, 2, "backward"), (rank, 0, "prefetch"))
    options = Options(kills=kills, waits_for_newcomer_in=4, moves_are_large=True, waits_for=TOTAL)
    seen = train(tmp_path / "killed", options, num_processes=6)
    assert losses(seen) == list(expected)
    assert PREFETCH in {one.policy for each in seen.values() for one in each}
    assert len([path for path in (tmp_path / "killed").iterdir() if path.name.startswith(f"{rank}-")]) == 2


def test_a_training_ends_while_a_newcomer_gets_layers(tmp_path: Path, expected: Sequence[float]) -> None:
    options = Options(kills=((3, TOTAL - 4, "backward"),), waits_for_newcomer_in=TOTAL - 3, moves_are_large=True)
    seen = train(tmp_path / "run", options)
    assert losses(seen) == list(expected)
    assert {one.policy for one in seen[TOTAL - 1]} == {PREFETCH}
    assert len(seen[TOTAL - 1]) == 4


def test_sums_over_peers_are_right_without_exact(tmp_path: Path) -> None:
    options = replace(GPT, exact=False, dropout=0.0)
    expected = losses(train(tmp_path / "undisturbed", options))
    options = replace(options, kills=((1, 4, "backward"),), waits_for=TOTAL, moves_are_dear=True, layers_of_a_process=9)
    seen = train(tmp_path / "killed", options)
    assert losses(seen) == pytest.approx(expected, rel=1e-6)
    assert 1 in {one.num_reroutes for each in seen.values() for one in each}


@pytest.mark.parametrize("options", [Options(), GPT], ids=["chain", "tied"])
def test_a_pipeline_that_lost_nobody_computes_nothing_again(tmp_path: Path, options: Options) -> None:
    expected = losses(train(tmp_path / "undisturbed", options))
    seen = train(tmp_path / "killed", replace(options, kills=((1, 4, "last"),), waits_for=TOTAL))
    assert losses(seen) == expected
    check_unbroken(seen[4], lost=1)


def test_without_exact_sums_are_kept_too(tmp_path: Path) -> None:
    options = replace(GPT, exact=False, dropout=0.0)
    expected = losses(train(tmp_path / "undisturbed", options))
    seen = train(tmp_path / "killed", replace(options, kills=((1, 4, "last"),), waits_for=TOTAL))
    assert losses(seen) == pytest.approx(expected, rel=1e-5)
    check_unbroken(seen[4], lost=1)


def check_unbroken(seen: Sequence[Committed], lost: int) -> None:
    """Assert that no member of one pipeline computed a micro-batch twice, and nobody did so with any of its own."""
    tries = [Counter(one.forwards) for one in seen if one.rank != lost]
    assert sorted(max(each.values()) for each in tries) == [1, 1, 2]
    num_micro_batches = GLOBAL_BATCH // MICRO_BATCH
    again = {number for each in tries for number, count in each.items() if count > 1}
    assert len(again) == num_micro_batches // 2


@pytest.mark.parametrize("second", ["redo", "move"])
def test_a_second_loss_in_a_step_that_was_kept_in_part(tmp_path: Path, expected: Sequence[float], second: str) -> None:
    options = Options(kills=((3, 4, "last"), (2, 4, second)), waits_for=TOTAL)
    assert losses(train(tmp_path / "run", options, num_processes=6)) == list(expected)  # each layer is with three


def test_another_number_of_processes_gives_the_same_bits(tmp_path: Path, expected: Sequence[float]) -> None:
    assert losses(train(tmp_path / "run", Options(), num_processes=3)) == list(expected)


def test_tied_weights_of_a_model_that_was_cut_keep_their_bits_too(tmp_path: Path) -> None:
    expected = losses(train(tmp_path / "undisturbed", GPT))
    seen = train(tmp_path / "killed", replace(GPT, kills=((1, 4, "backward"),), waits_for=TOTAL))
    assert losses(seen) == expected
    assert all(len(each) <= 4 for each in seen.values())  # no step was committed twice: nobody began anew


def test_tied_weights_keep_their_bits_where_only_some_owners_keep_sums(tmp_path: Path) -> None:
    expected = losses(train(tmp_path / "undisturbed", GPT))
    options = replace(GPT, kills=((1, 4, "last"), (3, 5, "backward")), waits_for=TOTAL)
    assert losses(train(tmp_path / "killed", options, num_processes=6)) == expected


def test_others_go_on_with_the_layers_of_one_that_leaves(tmp_path: Path, expected: Sequence[float]) -> None:
    seen = train(tmp_path / "run", Options(leaves=(1, 4), waits_for=TOTAL))
    assert losses(seen) == list(expected)
    assert {one.rank for one in seen[TOTAL - 1]} == {0, 2, 3}


def test_a_checkpoint_fits_any_number_of_processes(tmp_path: Path, expected: Sequence[float]) -> None:
    options = Options(total=6, checkpoint=str(tmp_path / "checkpoints"))
    before = train(tmp_path / "before", options)
    after = train(tmp_path / "after", replace(options, total=TOTAL), num_processes=3)
    assert losses(before, range(6)) + losses(after, range(6, TOTAL)) == list(expected)


def test_a_checkpoint_has_the_layers_of_a_lost_process_from_its_peer(tmp_path: Path, expected: Sequence[float]) -> None:
    checkpoint = str(tmp_path / "checkpoints")
    options = Options(total=7, checkpoint=checkpoint, kills_last_of_first_in=1, moves_are_dear=True)
    before = train(tmp_path / "before", options)
    assert {one.num_reroutes for one in before[2]} == {1}
    after = train(tmp_path / "after", Options(checkpoint=checkpoint), num_processes=3)
    begun = min(after)
    assert begun in (3, 6, 7)
    assert losses(before, range(7))[:begun] + losses(after, range(begun, TOTAL)) == list(expected)


def test_a_replacement_after_the_last_step_ends_with_what_the_others_have(tmp_path: Path) -> None:
    train(tmp_path / "run", Options(kills=((2, TOTAL - 1, "committed"),)))
    ends = [
        json.loads(line)["end"]
        for path in (tmp_path / "run").iterdir()
        for line in path.read_text().splitlines()
        if "end" in json.loads(line)
    ]
    assert len(ends) == 4
    sums: dict[str, set[float]] = {}
    for end in ends:
        for name, value in end.items():
            sums.setdefault(name, set()).add(value)
    names = [name for name, _ in torch.nn.Sequential(*stages(0.0)).named_parameters()]
    assert sorted(sums) == sorted(names)
    assert {name: len(each) for name, each in sums.items()} == dict.fromkeys(names, 1)

"""A model trained in several pipelines: the losses have the same bits after any kill."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from multiworld.testing import scaled

from .training_pipeline_program import GLOBAL_BATCH, MAX_NORM, MICRO_BATCH, Options, dataset, loss_of, stages
from .training_pipelines import CHAIN, GPT, TOTAL, losses, train, undisturbed

pytestmark = [pytest.mark.process, pytest.mark.timeout(scaled(120))]  # each trains once or twice


def test_pipelines_compute_what_one_process_computes(tmp_path: Path) -> None:
    seen = train(tmp_path / "run", Options(dropout=0.0, exact=False))
    torch.set_num_threads(1)  # on a busy machine more of them wait for each other
    expected, in_reverse = _losses_alone(backwards=False), _losses_alone(backwards=True)
    assert len(losses(seen)) == TOTAL
    for loss, alone, other in zip(losses(seen), expected, in_reverse, strict=True):
        # Rounding grows a hundredfold in four steps: another order of summation tells how far it may be by now.
        assert loss == pytest.approx(alone, rel=1e-11 + 20 * abs(other - alone) / alone)
    assert in_reverse == pytest.approx(expected, rel=1e-8)
    held = {one.layers for one in seen[TOTAL - 1]}
    assert held == {(0, 1, 2, 3), (4, 5, 6, 7)}


def _losses_alone(*, backwards: bool) -> list[float]:
    """Train with plain PyTorch in this process. ``backwards``: add up the gradients from the last micro-batch."""
    model = torch.nn.Sequential(*stages(0.0))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 5, gamma=0.5)
    return [_alone(model, optimizer, scheduler, step, backwards=backwards) for step in range(TOTAL)]


def _alone(
    model: torch.nn.Sequential,
    optimizer: torch.optim.Optimizer,
    scheduler: torch.optim.lr_scheduler.LRScheduler,
    step: int,
    *,
    backwards: bool,
) -> float:
    """Do one step; running statistics take the mean change of all micro-batches, as in a training of replicas."""
    from multiworld.training import open_loader

    loader = open_loader(dataset(), global_batch=GLOBAL_BATCH, micro_batch=MICRO_BATCH, shuffle=True)
    optimizer.zero_grad()
    seen = []
    fetched = list(loader.fetch(step, range(loader.num_micro_batches)))
    for _, (inputs, target) in reversed(fetched) if backwards else fetched:
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
def test_losses_keep_their_bits_when_a_stage_is_killed(tmp_path: Path, rank: int, moment: str) -> None:
    seen = train(tmp_path / "run", Options(kills=((rank, 4, moment),), waits_for=TOTAL))
    assert losses(seen) == undisturbed()
    assert {one.rank for one in seen[5]} == {0, 1, 2, 3} - {rank} or len(seen[5]) == 4
    held = {layer for one in seen[5] for layer in one.layers}
    assert held == set(range(8))  # the layers of the dead went to others


@pytest.mark.parametrize("options", [CHAIN, GPT], ids=["chain", "tied"])
def test_layers_are_trained_on_another_device_than_the_model_was_built_on(tmp_path: Path, options: Options) -> None:
    """Each copy to ``cpu:0`` is a new one: a value that is not the one of the copy would not be trained."""
    there = replace(options, device="cpu:0", kills=((3, 4, "backward"),), waits_for=TOTAL)
    assert losses(train(tmp_path / "there", there)) == undisturbed(options)


def test_a_second_loss_while_layers_are_moved_is_survived(tmp_path: Path) -> None:
    seen = train(tmp_path / "run", Options(kills=((3, 4, "backward"), (2, 4, "move")), waits_for=TOTAL))
    assert losses(seen) == undisturbed()


def test_another_number_of_processes_gives_the_same_bits(tmp_path: Path) -> None:
    assert losses(train(tmp_path / "run", Options(), num_processes=3)) == undisturbed()


def test_tied_weights_of_a_model_that_was_cut_keep_their_bits_too(tmp_path: Path) -> None:
    expected = undisturbed(GPT)
    seen = train(tmp_path / "killed", replace(GPT, kills=((1, 4, "backward"),), waits_for=TOTAL))
    assert losses(seen) == expected
    assert all(len(each) <= 4 for each in seen.values())  # no step was committed twice: nobody began anew


def test_others_go_on_with_the_layers_of_one_that_leaves(tmp_path: Path) -> None:
    seen = train(tmp_path / "run", Options(leaves=(1, 4), waits_for=TOTAL))
    assert losses(seen) == undisturbed()
    assert {one.rank for one in seen[TOTAL - 1]} == {0, 2, 3}


def test_a_checkpoint_fits_any_number_of_processes(tmp_path: Path) -> None:
    options = Options(total=6, checkpoint=str(tmp_path / "checkpoints"))
    before = train(tmp_path / "before", options)
    after = train(tmp_path / "after", replace(options, total=TOTAL), num_processes=3)
    assert losses(before, range(6)) + losses(after, range(6, TOTAL)) == undisturbed()


def test_a_checkpoint_has_the_layers_of_a_lost_process_from_its_peer(tmp_path: Path) -> None:
    checkpoint = str(tmp_path / "checkpoints")
    options = Options(total=7, checkpoint=checkpoint, kills_last_of_first_in=1, moves_are_dear=True)
    before = train(tmp_path / "before", options)
    assert {one.num_reroutes for one in before[2]} == {1}
    after = train(tmp_path / "after", Options(checkpoint=checkpoint), num_processes=3)
    begun = min(after)
    assert begun in (3, 6, 7)
    assert losses(before, range(7))[:begun] + losses(after, range(begun, TOTAL)) == undisturbed()


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

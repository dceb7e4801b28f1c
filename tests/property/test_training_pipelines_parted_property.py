"""Trainings in pipelines whose hosts are parted in two halves: who goes on, who waits, and what follows."""

from __future__ import annotations

import pytest

from benchmarks.training.simulated import chain
from benchmarks.training.simulated.network import LEASE_S
from benchmarks.training.simulated.pipelines import GATHER_S, JOIN_S, RETURN_S, Training
from multiworld.errors import StoreError
from multiworld.training.errors import LayersLostError

NUM_STEPS = 40
SEEN_S = 2 * LEASE_S
"""After a cut: until both sides have found out, and those that can have gone on."""


def run_for(training: Training, seconds: float) -> None:
    until = training.turns.now + seconds
    training.turns.at(until, lambda: None)
    training.run_while(lambda: training.turns.now < until)


def end(training: Training) -> None:
    """Run until all processes have done all steps."""
    training.run_while(lambda: bool(training.living or training.num_coming))
    assert {program.error for program in training.programs} == {None}
    assert training.furthest == NUM_STEPS
    training.check_ended()
    assert training.report().problems == ()


def begun(training: Training) -> None:
    """Run until all have done a few steps together."""
    training.run_while(lambda: training.furthest < 3)
    assert len({program.team.generation.number for program in training.programs}) == 1


def owners_of(training: Training, layer: int) -> frozenset[str]:
    """Return the hosts that have a layer."""
    hosts = {program.membership.member.id: program.process.host for program in training.programs}
    generation = training.programs[0].team.generation
    assert generation.assignment is not None
    return frozenset(hosts[member] for member in generation.assignment.owners(layer))


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("is_launched", [True, False])
def test_of_two_hosts_that_have_all_layers_each_one_goes_on(seed: int, is_launched: bool) -> None:
    with Training(seed, 4, num_steps=NUM_STEPS, num_hosts=2, is_launched=is_launched) as training:
        begun(training)
        before = training.furthest
        training.cut(frozenset({"host1"}))
        run_for(training, SEEN_S + 1.0)
        assert training.furthest > before + 3
        training.heal()
        end(training)


@pytest.mark.parametrize("seed", range(6))
def test_halves_that_lack_layers_wait_for_each_other_and_go_on_together(seed: int) -> None:
    with Training(seed, 4, num_steps=NUM_STEPS, num_hosts=4, is_launched=False) as training:
        begun(training)
        training.cut(owners_of(training, 0))  # the others have the last layer, and no half has both
        run_for(training, SEEN_S)
        reached, members = training.furthest, {program.id for program in training.programs}
        run_for(training, JOIN_S / 2)
        assert training.furthest == reached
        assert len(training.living) == 4
        training.heal()
        end(training)
        assert {program.membership.member.id for program in training.programs} == members  # nobody lost its layers
        assert {program.trainer.num_restarts for program in training.programs} == {1}  # as the training began


@pytest.mark.parametrize("seed", range(3))
def test_a_half_that_lacks_layers_begins_with_a_checkpoint_after_a_while(seed: int) -> None:
    with Training(seed, 4, num_steps=NUM_STEPS, num_hosts=4, saved_step=1, is_launched=False) as training:
        begun(training)
        training.cut(owners_of(training, chain.NUM_LAYERS - 1))
        run_for(training, SEEN_S)
        reached = training.turns.now
        run_for(training, GATHER_S / 2)
        assert training.counted_at < reached
        run_for(training, GATHER_S)
        assert training.counted_at > reached
        training.heal()
        end(training)


def test_halves_that_lack_layers_give_up_once_members_would_not_wait_longer_to_join() -> None:
    with Training(0, 4, num_steps=NUM_STEPS, num_hosts=4, is_launched=False) as training:
        begun(training)
        training.cut(owners_of(training, 0))
        training.run_while(lambda: bool(training.living))
        assert training.turns.now > JOIN_S
        assert {type(program.error) for program in training.programs} == {LayersLostError, StoreError}


@pytest.mark.parametrize("seed", range(4))
def test_a_layer_that_is_lost_before_the_first_step_counts_begins_anew(seed: int) -> None:
    with Training(seed, 4, num_steps=NUM_STEPS) as training:
        training.run_while(lambda: not any(each.process.phase == "backward" for each in training.living))
        hosts = {program.membership.member.id: program for program in training.programs}
        assignment = training.programs[0].team.generation.assignment
        assert assignment is not None
        for member in assignment.owners(0):
            training.kill(hosts[member])
            training.turns.after(training.turns.some(RETURN_S), lambda rank=hosts[member].rank: training.start(rank))  # type: ignore[misc]
        training.run_while(lambda: not training.furthest)
        end(training)

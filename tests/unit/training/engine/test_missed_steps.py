"""Steps that count while a member waits for its state are applied later, with what they had then."""

from __future__ import annotations

import torch

from multiworld.training.engine.facts import Facts
from multiworld.training.engine.gradients import Gradients
from multiworld.training.engine.missed_steps import MissedSteps


def test_missed_steps_come_in_their_order_with_the_gradients_that_they_had() -> None:
    parameter = torch.nn.Parameter(torch.zeros(3))
    gradients = Gradients([parameter], ["weight"])
    (bucket,) = gradients.buckets
    missed = MissedSteps()
    for step in (4, 5):
        bucket.reduced.fill_(step)
        missed.keep(step, [Facts(step=step)], gradients.buckets, frozenset({step}))
    bucket.reduced.zero_()
    applied = []
    while missed:
        missed.begin_next()
        assert missed.present is not None
        missed.present.restore(gradients.buckets)
        applied.append((missed.present.step, missed.present.looked_at, bucket.reduced.tolist()[:3]))
        missed.applied()
    assert applied == [(4, frozenset({4}), [4.0] * 3), (5, frozenset({5}), [5.0] * 3)]
    assert missed.present is None
    gradients.close()


def test_a_newer_state_makes_them_useless() -> None:
    missed = MissedSteps()
    missed.keep(4, [], [], None)
    missed.clear()
    assert not missed

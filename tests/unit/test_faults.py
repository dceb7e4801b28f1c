"""Plans of faults: drawn from a seed, ordered, written as one line and read back."""

from __future__ import annotations

import pytest

from multiworld.testing import Fault, FaultKind, FaultPlan, shown_on_failure


def test_equal_seeds_draw_equal_plans_and_others_differ() -> None:
    def draw(seed: int) -> FaultPlan:
        return FaultPlan.random(seed, targets=["a", "b", "c"], kinds=list(FaultKind), num_faults=20, within_s=3)

    assert draw(7) == draw(7)
    assert draw(7) != draw(8)
    assert all(0 <= fault.at_s <= 3 for fault in draw(7).faults)


def test_a_plan_is_ordered_by_time() -> None:
    late, early = Fault(2, FaultKind.KILL, "a"), Fault(1, FaultKind.STOP, "b")
    plan = FaultPlan((late, early))
    assert plan.faults == (early, late)
    assert plan.between(0, 1) == (early,)
    assert plan.between(1, 2) == (late,)


def test_a_plan_survives_its_one_line_form() -> None:
    plan = FaultPlan.random(3, targets=["a"], kinds=list(FaultKind), num_faults=5)
    assert FaultPlan.from_json(plan.to_json()) == plan


def test_a_failure_prints_seed_faults_and_replay(capsys: pytest.CaptureFixture[str]) -> None:
    plan = FaultPlan.random(42, targets=["rank1"])
    with pytest.raises(ZeroDivisionError), shown_on_failure(plan):
        _ = 1 / 0
    printed = capsys.readouterr().err
    assert "seed 42" in printed
    assert "kill rank1" in printed
    assert plan.to_json() in printed


def test_impossible_plans_are_refused() -> None:
    with pytest.raises(ValueError, match="before its plan starts"):
        Fault(-1, FaultKind.KILL, "a")
    with pytest.raises(ValueError, match="explode"):
        Fault(1, "explode", "a")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="at least one target"):
        FaultPlan.random(1, targets=[])

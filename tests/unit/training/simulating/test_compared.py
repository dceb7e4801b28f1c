"""On Oobleck's published inputs this project commits at least what Oobleck does, in every row."""

from __future__ import annotations

import pytest

from multiworld.training.simulating.compared import Oobleck, Ours, Row, rows
from multiworld.training.simulating.published import MODELS, RESULTS
from multiworld.training.simulating.published_traces import CREATION_S, published_traces
from multiworld.training.simulating.replay import replay


@pytest.fixture(scope="module")
def table() -> list[Row]:
    return list(rows())


def test_every_row_of_the_published_table_is_there(table: list[Row]) -> None:
    assert {(row.trace.name, row.model.name) for row in table} == set(RESULTS)
    assert len(table) == 35


def test_ours_commits_at_least_what_oobleck_does_by_the_same_rules_in_every_row(table: list[Row]) -> None:
    assert {(row.trace.name, row.model.name): row.over_oobleck for row in table if row.over_oobleck < 1.0} == {}


def test_ours_commits_more_than_what_is_printed_where_nodes_come_again(table: list[Row]) -> None:
    spot = [row.over_published for row in table if row.trace.name in ("GCP", "EC2")]
    assert len(spot) == 10
    assert min(spot) > 1.08


def test_ours_is_behind_what_is_printed_in_one_row_by_two_steps_at_most(table: list[Row]) -> None:
    behind = {(row.trace.name, row.model.name): row for row in table if row.over_published < 1.0}
    assert set(behind) == {("6 h", "GPT-2")}
    (row,) = behind.values()
    assert (1.0 - row.over_published) * row.ours.num_steps < 2.0


def test_without_what_is_kept_of_a_step_ours_would_be_behind_in_most_rows(table: list[Row]) -> None:
    assert all(row.ours.samples_per_s > row.nothing_kept.samples_per_s for row in table)
    assert sum(row.nothing_kept.samples_per_s < row.published.oobleck for row in table) == 25


def test_the_authors_simulator_counts_steps_within_recoveries(table: list[Row]) -> None:
    """What it prints is what comes of that, but for one step: a step is lost or not by milliseconds there."""
    for row in table:
        if row.trace.name not in ("GCP", "EC2"):
            theirs = replay(row.trace, Oobleck(model=row.model), works_in_recoveries=True)
            printed = row.published.oobleck * (row.trace.end_s - CREATION_S) / row.model.samples_per_step
            assert abs(theirs.num_steps - printed) < 2.0, (row.trace.name, row.model.name)
            assert theirs.num_steps >= row.oobleck.num_steps


def test_by_the_rules_of_the_authors_simulator_ours_is_behind_what_it_prints_in_no_row(table: list[Row]) -> None:
    over = {(row.trace.name, row.model.name): row.over_as_printed for row in table}
    assert {key: each for key, each in over.items() if each < 1.0} == {}


def test_losses_at_equal_intervals_cost_oobleck_what_its_authors_simulator_does_not_count(table: list[Row]) -> None:
    for row in table:
        if row.trace.name not in ("GCP", "EC2"):
            assert 0.964 < row.oobleck.samples_per_s / row.published.oobleck <= 1.0001, (row.trace.name, row.model.name)


def test_the_traces_have_the_published_numbers_of_nodes() -> None:
    for trace in published_traces():
        nodes, most, fewest = 0, 0, 99
        for change in trace.changes:
            nodes += len(change.joined) - len(change.lost)
            most = max(most, nodes)
            fewest = min(fewest, nodes) if change.at_s > 660 else fewest
        assert most <= 30
        assert most >= 29
        assert fewest >= 14  # a node that replaces another one comes 45 s later
    spot = {trace.name: (trace.num_losses, trace.end_s) for trace in published_traces()[-2:]}
    assert spot == {"GCP": (72, 38760.0), "EC2": (141, 40920.0)}


def test_a_model_runs_at_its_published_rates_while_nothing_happens() -> None:
    trace = published_traces()[0]
    quiet = type(trace)(name="quiet", changes=trace.changes[:1], end_s=50_000.0)
    for model in MODELS:
        for system in (Oobleck(model=model), Ours(model=model)):
            assert replay(quiet, system).samples_per_s == pytest.approx(model.rates[-1])
    assert MODELS[4].rate(15) == MODELS[4].rate(3) == 0.0
    assert MODELS[0].rate(31) == MODELS[0].rate(30) == 368.2457947


def test_larger_models_take_longer_to_move() -> None:
    moves = [Ours(model=model).transfer_s(16) for model in MODELS]
    assert moves == sorted(moves)
    assert moves[-1] == pytest.approx(6.7e9 * 16 / 8 / 1.25e9)

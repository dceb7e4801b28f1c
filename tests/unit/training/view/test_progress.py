"""The progress line: what it says, how often, and that exactly one member writes it."""

from __future__ import annotations

from functools import partial

import pytest

from multiworld.training.errors import PeerRaisedError
from multiworld.training.events import MembershipChanged, PipelinesChanged, TrainingEnded, TrainingEvent
from multiworld.training.view.progress import LINE_S, Progress, ProgressLine, members_text, progress_text
from multiworld.world.launcher.pipelines import PipelineRanks

from .runs import Run
from .test_lines import step

ONE_PIPELINE = (PipelineRanks(ranks=(0, 1), starts=(0, 1), num_micro_batches=4, busy=()),)


def written(run: Run, *, in_place: bool) -> dict[str, str]:
    """Return what each member has written, by its id."""
    texts = {}
    for member, its in run.events.items():
        line = ProgressLine(in_place=in_place)
        texts[member] = "".join(line.take(event, now=event.at) for event in its)
    return texts


def test_the_line_says_step_loss_rate_replicas_and_goodput() -> None:
    progress = Progress(
        job="gpt",
        step=119,
        total=2000,
        loss_name="loss",
        loss=2.31,
        samples_per_s=1512.4,
        replicas=4,
        goodput=0.973,
        left_s=185.0,
        num_recoveries=0,
        at=0.0,
    )

    assert progress_text(progress) == (
        "gpt  step 120/2000  loss 2.31  1,512 samples/s  4 replicas  goodput 97.3 %  3 min left"
    )


def test_only_the_lowest_rank_writes_and_a_line_every_few_seconds() -> None:
    texts = written(Run(num_members=3).steps(300).end(), in_place=False)  # 15 s of steps

    lines = texts["m001"].splitlines()
    assert texts["m002"] == texts["m003"] == ""
    assert len(lines) == int(15 / LINE_S) + 1
    assert lines[-1].startswith("gpt  step 300/60")
    assert "1,280 samples/s" in lines[-1]


def test_on_a_terminal_a_line_overwrites_the_one_before() -> None:
    text = written(Run(num_members=1).steps(20).end(), in_place=True)["m001"]

    assert text.count("\r") == 6  # a second of steps, five times a second at most; and the end
    assert text.count("\n") == 1
    assert text.endswith("\n")
    assert "\x1b[K" in text


def test_a_loss_is_told_at_once_and_above_the_line_in_place() -> None:
    text = written(Run(num_members=3).steps(3).lose(2).steps(3), in_place=True)["m001"]

    assert "\r\x1b[Kgpt: lost rank 2 in step 3: PeerDiedError: its socket closed\n" in text
    assert "gpt: 2 replicas go on with step 3 (without rank 2)\n" in text
    assert text.rstrip("\x1b[K").endswith("%  2 s left") or "2 replicas" in text.rpartition("\r")[2]


def test_a_line_counts_replicas_of_several_processes_and_not_processes() -> None:
    def changed(
        generation: int, ranks: tuple[int, ...], came: tuple[int, ...] = (), gone: tuple[int, ...] = ()
    ) -> MembershipChanged:
        in_order = sorted(ranks, key=lambda rank: (generation > 1 and rank in came, rank))
        return MembershipChanged(
            job="gpt",
            member="m3",
            rank=2,
            generation=generation,
            step=3,
            ranks=ranks,
            came=came,
            gone=gone,
            members=tuple(f"m{rank + 1}" for rank in in_order),
        )

    line = ProgressLine(in_place=False)
    line.take(changed(1, (0, 1, 2, 3), came=(0, 1, 2, 3)), now=0.0)
    line.take(step(step=2, replicas=2), now=1.0)
    told = line.take(changed(2, (2, 3), gone=(0, 1)), now=2.0)
    assert told == "gpt: 1 replica goes on with step 3 (without ranks 0, 1); this rank shows the progress now\n"
    line.take(step(step=3, replicas=1), now=3.0)
    assert line.take(changed(3, (0, 1, 2, 3), came=(0, 1)), now=4.0) == (
        "gpt: 2 replicas go on with step 3 (ranks 0, 1 came)\n"
    )


def test_the_line_goes_on_when_the_member_that_wrote_it_dies() -> None:
    texts = written(Run(num_members=3).steps(3).lose(0).steps(200).end(), in_place=False)

    lost, goes_on = texts["m002"].splitlines()[:2]
    assert lost.startswith("gpt: lost rank 0 in step 3: ")
    assert goes_on.endswith("go on with step 3 (without rank 0); this rank shows the progress now")
    assert "step 204/60" in texts["m002"]
    assert texts["m003"] == ""


def test_a_replacement_of_the_first_rank_does_not_write_beside_the_others() -> None:
    texts = written(Run(num_members=2).steps(3).lose(0).join(0).steps(300), in_place=False)

    assert texts["m003"] == ""  # the new rank 0
    assert "rank 0 came" in texts["m002"]


@pytest.mark.parametrize("values", [{}, {"accuracy": 0.5}])
def test_a_program_that_records_no_loss_has_a_line_too(values: dict[str, float]) -> None:
    run = Run(num_members=1).steps(3)
    for each in run.events["m001"][2:]:
        object.__setattr__(each, "values", values)
    text = written(run, in_place=False)["m001"]

    assert ("accuracy 0.5" in text) == bool(values)
    assert "loss" not in text


def test_an_error_ends_the_line() -> None:
    run = Run(num_members=1).steps(3)
    run.say(0, TrainingEnded, step=2, error="PoisonedStepError: step 3 failed 3 times")

    assert written(run, in_place=False)["m001"].endswith(
        "gpt: ended after step 2: PoisonedStepError: step 3 failed 3 times\n"
    )


def test_a_traceback_in_an_error_is_left_to_the_error_itself() -> None:
    run = Run(num_members=1).steps(3)
    error = PeerRaisedError(1, 3, "KeyError: 'a bug'", "Traceback:\n    f()")
    run.say(0, TrainingEnded, step=2, error=f"PeerRaisedError: {error}")

    assert written(run, in_place=False)["m001"].endswith(
        "ended after step 2: PeerRaisedError: the program raised on rank 1 in step 3: KeyError: 'a bug'\n"
    )


def test_one_replica_goes_on_in_the_singular() -> None:
    assert (
        "gpt: 1 replica goes on with step 3 (without rank 1)\n"
        in written(Run(num_members=2).steps(3).lose(1).steps(3), in_place=False)["m001"]
    )


def test_the_line_says_how_many_pipelines_of_which_sizes_train() -> None:
    lines = written(Run(num_members=5, has_pipelines=True).steps(5).lose(4).steps(5).end(), in_place=False)["m001"]

    assert "5 processes in 2 pipelines of 2 and 3  goodput" in lines
    assert "gpt: 4 processes in 2 pipelines of 2 go on with step 5 (without rank 4)\n" in lines
    assert "replica" not in lines


def test_who_survives_less_than_was_asked_for_is_told_from_the_start() -> None:
    def change(generation: int, needed: int, tolerates: int = 0) -> list[TrainingEvent]:
        where = partial(PipelinesChanged, job="gpt", rank=0, member="m001", generation=generation, at=0.0)
        there = partial(MembershipChanged, job="gpt", rank=0, member="m001", generation=generation, at=0.0)
        gone = () if generation == 1 else (3,)
        return [
            where(step=4, num_layers=2, pipelines=ONE_PIPELINE, needed=needed, tolerates=tolerates),
            there(step=4, ranks=(0, 1), gone=gone, members=("m001", "m002")),
        ]

    def said(*events: TrainingEvent) -> str:
        line = ProgressLine(in_place=False)
        return "".join(line.take(event, now=0.0) for event in events)

    assert said(*change(1, needed=0)) == ""
    assert said(*change(1, needed=6)) == (
        "gpt: 2 processes in 1 pipeline go on with step 4; they survive no loss: what was asked for needs 6 processes\n"
    )
    assert "without rank 3); they survive 1 loss at once and no more: what was asked for needs 9 processes\n" in (
        said(*change(1, needed=0), *change(2, needed=9, tolerates=1))
    )


def test_processes_that_wait_are_in_no_pipeline() -> None:
    assert members_text(5, (2, 2)) == "5 processes, 4 of them in 2 pipelines of 2"
    assert members_text(1, ()) == "1 replica"

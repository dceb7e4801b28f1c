"""What the coordinator knows of trainings, and which events of the job it makes of what it is told."""

from __future__ import annotations

from collections import Counter

from multiworld.elastic.job.actions import TrainingTold
from multiworld.elastic.job.trainings import CHANGED, MAX_TRAININGS, RECOVERED, Trainings
from multiworld.elastic.leadership.messages import AGENT_MESSAGES
from multiworld.world.launcher.news import Trained, TrainingFault, TrainingPipelines
from multiworld.world.launcher.pipelines import PipelineRanks


def trained(step: int, **changes: object) -> Trained:
    said: dict[str, object] = {"name": "gpt", "generation": 1, "replicas": 4, "value_name": "loss", "value": 9.0 - step}
    return Trained(step=step, **{**said, **changes})  # type: ignore[arg-type]  # as the kind takes them


def fault(**changes: object) -> TrainingFault:
    said: dict[str, object] = {
        "name": "gpt",
        "generation": 2,
        "step": 5,
        "replicas": 3,
        "key": "2:5",
        "change": "failure",
        "text": "rank 2 was lost (PeerDiedError: its socket closed)",
    }
    return TrainingFault(**{**said, **changes})  # type: ignore[arg-type]  # as the kind takes them


def pipelines(**changes: object) -> TrainingPipelines:
    formed = (
        PipelineRanks(ranks=(0, 1), starts=(0, 4), num_micro_batches=9, busy=(0.9, 0.8)),
        PipelineRanks(ranks=(3,), starts=(0,), num_micro_batches=7),
    )
    said: dict[str, object] = {"name": "gpt", "generation": 2, "step": 5, "replicas": 3, "num_layers": 8}
    return TrainingPipelines(pipelines=formed, **{**said, **changes})  # type: ignore[arg-type]  # as the kind takes them


def test_the_last_news_and_the_curve_are_kept() -> None:
    trainings = Trainings()
    for step in range(4):
        assert trainings.take(trained(step), at=100.0 + step) == []
    (status,) = trainings.status()

    assert (status.name, status.step, status.value, status.at) == ("gpt", 3, 6.0, 103.0)
    assert trainings.curves() == {"gpt": ((0, 9.0), (1, 8.0), (2, 7.0), (3, 6.0))}


def test_a_fault_is_two_events_however_often_it_is_told() -> None:
    trainings = Trainings()
    known, over = fault(), fault(took_s=0.185, phases={"detect": 0.005, "form": 0.06}, redone=2)
    records = [
        record for at, news in enumerate((known, known, over, over, known)) for record in trainings.take(news, at=at)
    ]
    trainings.take(trained(5), at=9.0)

    assert [record.kind for record in records] == [CHANGED, RECOVERED]
    assert records[0].text.startswith("training gpt, step 5: rank 2 was lost (PeerDiedError")
    assert records[1].text.endswith("(detect 5 ms, form 60 ms)")
    (status,) = trainings.status()
    assert status.num_faults == {"failure": 1}
    assert [(each.at, each.took_s, each.redone) for each in status.faults] == [(0.0, 0.185, 2)]


def test_what_the_coordinator_before_has_recorded_is_not_recorded_again() -> None:
    asked: Counter[tuple[str, str]] = Counter()

    def is_recorded(kind: str, key: str) -> bool:
        asked[kind, key] += 1
        return kind == CHANGED

    trainings = Trainings(is_recorded)
    assert trainings.take(fault(), at=1.0) == []
    assert [each.kind for each in trainings.take(fault(took_s=0.2), at=2.0)] == [RECOVERED]
    assert set(asked) == {(CHANGED, "gpt:2:5"), (RECOVERED, "gpt:2:5")}


def test_the_next_coordinator_goes_on_with_all_that_this_one_knows() -> None:
    trainings, undisturbed = Trainings(), Trainings()
    for step in range(1000):
        for each in (trainings, undisturbed):
            each.take(trained(step, value=float(step)), at=float(step))
            each.take(fault(key=f"2:{step}", step=step), at=float(step))
    following = Trainings(known=trainings.known)
    assert following.curves() == trainings.curves()
    assert following.status() == trainings.status()
    for step in range(1000, 1100):
        for each in (following, undisturbed):
            each.take(trained(step, value=float(step)), at=float(step))
    assert following.curves() == undisturbed.curves()
    assert following.status() == undisturbed.status()


def test_news_of_before_that_an_agent_repeats_does_not_cut_off_the_curve() -> None:
    trainings = Trainings()
    trainings.take(trained(1), at=1.0, is_repeated=True)  # nobody has told more yet
    trainings.take(trained(7), at=2.0)
    trainings.take(trained(3), at=3.0, is_repeated=True)
    assert trainings.curves() == {"gpt": ((1, 8.0), (7, 2.0))}
    assert trainings.status()[0].step == 7
    trainings.take(trained(3), at=4.0)  # the training itself went back
    assert trainings.curves() == {"gpt": ((1, 8.0), (3, 6.0))}


def test_a_loss_that_is_not_finite_leaves_the_curve_alone() -> None:
    trainings = Trainings()
    trainings.take(trained(1), at=1.0)
    trainings.take(trained(2, value=None, is_finite=False), at=2.0)

    assert trainings.curves() == {"gpt": ((1, 8.0),)}
    assert not trainings.status()[0].is_finite


def test_many_names_do_not_fill_the_memory() -> None:
    trainings = Trainings()
    for number in range(100):
        trainings.take(trained(1, name=f"t{number}"), at=1.0)

    assert len(trainings.status()) == MAX_TRAININGS
    assert trainings.status()[-1].name == "t99"


def test_what_agents_pass_on_comes_through_the_wire() -> None:
    for news in (trained(3), fault(took_s=0.2, phases={"form": 0.06})):
        told = TrainingTold(news=news)
        assert AGENT_MESSAGES.decode(AGENT_MESSAGES.encode(told)) == told


def test_a_fault_of_pipelines_speaks_of_processes() -> None:
    trainings = Trainings()
    assert trainings.take(pipelines(), at=1.0) == []
    trainings.take(trained(4), at=1.0)
    (record,) = trainings.take(fault(), at=2.0)

    assert record.text.endswith("; 3 processes go on as 2 pipelines of 1 and 2")
    assert trainings.status()[0].pipelines == pipelines()


def test_the_next_coordinator_knows_the_pipelines_and_older_ones_do_not_replace_them() -> None:
    trainings = Trainings()
    trainings.take(pipelines(), at=1.0)
    trainings.take(trained(4), at=1.0)
    following = Trainings(known=trainings.known)
    following.take(pipelines(generation=1, step=0), at=2.0, is_repeated=True)

    assert following.status()[0].pipelines == pipelines()
    following.take(pipelines(generation=3), at=2.0, is_repeated=True)
    assert following.status()[0].pipelines == pipelines(generation=3)

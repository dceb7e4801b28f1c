"""What the page is made of: metrics, who may read it, and which events are new to a reader."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import pytest

from multiworld.elastic.job.history import Event
from multiworld.elastic.job.options import JobOptions
from multiworld.elastic.job.remote import remote_status
from multiworld.elastic.job.trainings import Trainings
from multiworld.elastic.launch.parser import run_parser
from multiworld.elastic.page.metrics import metrics_text
from multiworld.elastic.page.site import page_html
from multiworld.elastic.page.snapshot import Snapshot
from multiworld.observe.access import may_read
from multiworld.observe.sites import is_loopback
from multiworld.world.launcher.remote_nodes import RemoteNodes
from tests.unit.elastic.control.test_questions import job_status, three
from tests.unit.elastic.job.test_trainings import fault, pipelines, trained
from tests.unit.elastic.launch.test_arguments import options
from tests.unit.exposition import check_with_promtool, checked_samples
from tests.unit.world.launcher.test_remote_nodes import remote_node

LABEL = r'[a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\\n]|\\[\\n"])*"'
SAMPLE = re.compile(rf"(?P<name>[a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{{{LABEL}(?:,{LABEL})*\}})? (?P<value>[0-9.e+-]+)")


def snapshot(num_events: int = 0, **changes: Any) -> Snapshot:
    numbers = range(1, num_events + 1)
    kept = tuple(Event(number=number, kind="x", text=str(number), at=1.0, generation=1, term=1) for number in numbers)[
        -3:
    ]
    return Snapshot(status=replace(job_status(three()), **changes), events=kept, last_number=num_events, counts={})


def samples(text: str) -> dict[str, str]:
    """Parse the format strictly: each family is announced once, and all its samples follow."""
    found: dict[str, str] = {}
    families: dict[str, str] = {}
    described = ""
    for line in text.splitlines():
        if line.startswith("# HELP "):
            described = line.split(" ", 3)[2]
            assert line.split(" ", 3)[3]
            assert described not in families
        elif line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            assert name == described
            families[name] = kind
            assert (kind == "counter") == name.endswith("_total")
        else:
            matched = SAMPLE.fullmatch(line)
            assert matched is not None, line
            assert matched["name"] == described
            key = line.rpartition(" ")[0]
            assert key not in found
            found[key] = matched["value"]
    assert text.endswith("\n")
    assert all(name.startswith("multiworld_") for name in families)
    return found


def test_the_metrics_of_a_job() -> None:
    some = three()
    some.fail(2)
    found = samples(metrics_text(job_status(some), {"worker failed": 1, "generation": 1}))
    assert found['multiworld_job_info{job="job7",phase="running",policy="worker"}'] == "1"
    assert found["multiworld_job_generation"] == "1"
    assert found['multiworld_nodes{bound="active"}'] == "2"
    assert found['multiworld_agents{state="waiting"}'] == "1"
    assert found['multiworld_workers{state="running"}'] == "4"
    assert found['multiworld_workers{state="idle"}'] == "0", "a series does not come and go"
    assert found['multiworld_worker_restarts_total{rank="2",host="b"}'] == "1"
    assert found['multiworld_events_total{kind="worker failed"}'] == "1"


def test_promtool_has_nothing_to_say_of_a_job() -> None:
    some = three()
    for told, counts in ((job_status(some), {}), (job_status(some), {"worker failed": 1, "generation": 1})):
        checked_samples(metrics_text(told, counts))
        check_with_promtool(metrics_text(told, counts))


def test_names_that_users_choose_are_escaped_in_metrics() -> None:
    told = replace(job_status(three()), job='a "job"\\ of\ntwo lines, }x{')
    assert 'multiworld_job_info{job="a \\"job\\"\\\\ of\\ntwo lines, }x{",' in metrics_text(told, {})
    samples(metrics_text(told, {}))


def test_names_that_users_choose_do_not_end_the_data_in_the_page() -> None:
    page = page_html(snapshot(job="</script><script>alert(1)</script>"))
    assert "</script><script>alert(1)" not in page
    data = page.partition('id="first">')[2].partition("</script>")[0]
    assert json.loads(data)["status"]["job"] == "</script><script>alert(1)</script>"


def test_the_page_needs_nothing_from_elsewhere() -> None:
    page = page_html(None)
    assert not re.findall(r"""(?:src|href)=(?!"data:)|https?://|@import|url\(""", page)


@pytest.mark.parametrize(("number", "texts"), [(0, ["3", "4", "5"]), (3, ["4", "5"]), (4, ["5"]), (5, []), (9, [])])
def test_a_reader_gets_the_events_that_are_new_to_it(number: int, texts: list[str]) -> None:
    assert [event.text for event in snapshot(5).events_since(number)] == texts


@pytest.mark.parametrize(
    ("authorization", "query", "may"),
    [
        ("", {}, False),
        ("Bearer secret", {}, True),
        ("bearer  secret", {}, True),
        ("Basic secret", {}, False),
        ("Bearer other", {}, False),
        ("", {"token": ["secret"]}, True),
        ("Bearer other", {"token": ["secret"]}, True),
        ("", {"token": ["sécret"]}, False),
    ],
)
def test_the_token_opens_the_page(authorization: str, query: dict[str, list[str]], may: bool) -> None:
    assert may_read("secret", authorization, query) is may


def test_only_loopback_is_served_without_a_token() -> None:
    assert is_loopback("127.0.0.1")
    assert is_loopback("::1")
    assert not is_loopback("0.0.0.0")
    with pytest.raises(ValueError, match=r"--page 0\.0\.0\.0:80 can be read by other hosts: set MULTIWORLD_TOKEN"):
        options("--page", "0.0.0.0:80")


@pytest.mark.parametrize(
    ("arguments", "page"),
    [
        ([], ("127.0.0.1", 0)),
        (["--page", "localhost:8080"], ("127.0.0.1", 8080)),
        (["--page", "[::1]:8080"], ("::1", 8080)),
        (["--no-page"], None),
    ],
)
def test_where_the_page_is_served(arguments: list[str], page: tuple[str, int] | None) -> None:
    assert options(*arguments).page == page


@pytest.mark.parametrize("text", ["8080", "example.org:80", "127.0.0.1:", "127.0.0.1:99999"])
def test_an_address_for_the_page_that_means_nothing_is_refused(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        run_parser().parse_args(["--page", text, "x.py"])
    assert ended.value.code == 2
    assert "expected a numeric address and a port" in capsys.readouterr().err


def test_an_open_page_with_a_token_is_possible() -> None:
    entrypoint = options().entrypoint
    assert JobOptions(entrypoint=entrypoint, page=("0.0.0.0", 80), token="secret").page == ("0.0.0.0", 80)


def test_metrics_tell_how_trainings_stand() -> None:
    trainings = Trainings()
    for news in (
        trained(4),
        fault(),
        fault(took_s=0.185, phases={"form": 0.06}),
        trained(7, samples_per_s=512.0, goodput=0.9),
        trained(1, name="other", value=None, is_finite=False),
    ):
        trainings.take(news, at=1000.0)
    text = metrics_text(snapshot(trainings=trainings.status()).status, {})
    found = checked_samples(text)

    assert found['multiworld_training_step{training="gpt"}'] == 7
    assert found['multiworld_training_value{training="gpt",value="loss"}'] == 2
    assert str(found['multiworld_training_value{training="other",value="loss"}']) == "nan"
    assert found['multiworld_training_samples_per_second{training="gpt"}'] == 512
    assert found['multiworld_training_goodput_ratio{training="gpt"}'] == 0.9
    assert found['multiworld_training_changes_total{training="gpt",kind="failure"}'] == 1
    assert found['multiworld_training_last_recovery_seconds{training="gpt"}'] == 0.185
    assert 'training_last_recovery_seconds{training="other"}' not in text
    check_with_promtool(text)


def test_a_job_without_a_training_has_no_metrics_of_one() -> None:
    assert "training" not in metrics_text(snapshot().status, {})


def test_the_trainings_are_sent_with_their_curves_and_apart_from_the_status() -> None:
    trainings = Trainings()
    trainings.take(trained(4, value=1.23456789), at=1000.0)
    shown = replace(snapshot(trainings=trainings.status()), curves=trainings.curves())

    assert json.loads(shown.trainings_json)[0]["curve"] == [[4, 1.2346]]
    assert json.loads(shown.shown_json)["trainings"] == []
    assert json.loads(shown.status_json)["trainings"][0]["step"] == 4
    assert json.loads(json.dumps(shown.first["trainings"])) == json.loads(shown.trainings_json)


def test_nodes_of_remote_tensors_are_sent_apart_from_the_status() -> None:
    news = RemoteNodes(rank=0, syncs=3, nodes=(remote_node(1), remote_node(2, lost="it died")))
    shown = snapshot(remote=remote_status(news, at=1000.0))
    sent = json.loads(shown.remote_json)
    assert [(each["number"], each["lost"]) for each in sent["nodes"]] == [(1, ""), (2, "it died")]
    assert json.loads(shown.shown_json)["remote"] is None
    assert json.loads(shown.status_json)["remote"] == sent
    assert json.loads(json.dumps(shown.first["remote"])) == sent
    assert snapshot().remote_json == "null"


def test_metrics_and_page_have_the_pipelines_of_a_training() -> None:
    trainings = Trainings()
    for news in (pipelines(), trained(4), trained(1, name="other")):
        trainings.take(news, at=1000.0)
    shown = snapshot(trainings=trainings.status())
    text = metrics_text(shown.status, {})

    assert 'multiworld_training_pipelines{training="gpt"} 2' in text
    assert 'multiworld_training_pipelines{training="other"}' not in text
    formed = json.loads(shown.trainings_json)[0]["pipelines"]
    assert formed["pipelines"][0] == {
        "ranks": [0, 1],
        "starts": [0, 4],
        "num_micro_batches": 9,
        "busy": [0.9, 0.8],
        "computed": [],
    }

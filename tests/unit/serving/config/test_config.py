"""What configuration files say, and what is said about files that are wrong."""

import contextlib
import pickle
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from multiworld.serving.config import ConfigError, CutPlan, PipelineFile, load_pipeline, read_file
from multiworld.serving.config.document import Document
from multiworld.serving.config.infscale import is_job, read_job
from multiworld.serving.config.pipeline_file import read_pipeline
from multiworld.serving.config.sections import fits
from multiworld.serving.control.scaling import ScalingPolicy
from multiworld.serving.errors import DeploymentError
from multiworld.serving.graph import Batch, Graph

WHOLE = """
name: rhombus
policy: power-of-two
lease_s: 1.5
gateways: 2
preload: [numpy]
gateway: {host: 0.0.0.0, port: 8000, nan_policy: refuse, default_timeout_s: 5}
autoscaling:
  target_utilization: 0.6
  down_after_s: 60
stages:
  - name: embed
    model: app.models:Embed
  - name: left
    model: app.models:Left
    inputs: [embed]
    replicas: 2
    min_replicas: 0
    max_replicas: 4
    batch: {max_size: 8, max_wait_s: 0.005}
    device: cuda:0
    hosts: [10.0.0.1, 10.0.0.2]
    idempotent: false
  - name: right
    model: app.models:Right
    inputs: [embed]
    batch: 32
  - name: head
    model: app.models:Head
    inputs: [left, right, input]
"""

DIAMOND = """
name: resnet152 example
model: microsoft/resnet-152
nfaults: 1
micro_batch_size: 4
fwd_policy: "rr"
job_id: "job1"
max_inflight: 8
flow_graph:
  s-0:
    - {name: w0, port: 29500, peers: [1-0], backend: gloo}
  0-0:
    - {name: w1, port: 30500, peers: [s-0], backend: gloo, addr: 10.20.1.50}
  0-1:
    - {name: w4, port: 33500, peers: [s-0], backend: gloo, addr: 10.20.1.51}
  1-0:
    - {name: w2, port: 31500, peers: [0-0], backend: nccl}
    - {name: w3, port: 32500, peers: [0-1], backend: nccl}
dataset: {path: cifar10, name: "", split: test}
workers:
  - {id: s-0, device: cpu, stage: {start: -1, end: -1, is_server: True}}
  - {id: 0-0, device: cuda:1, stage: {start: 0, end: 25}}
  - {id: 0-1, device: cuda:2, stage: {start: 0, end: 25}}
  - {id: 1-0, device: cuda:3, stage: {start: 26, end: 51}}
"""


@pytest.fixture(autouse=True)
def _own_modules() -> Iterator[None]:
    before, path = set(sys.modules), list(sys.path)
    yield
    sys.path[:] = path
    for name in set(sys.modules) - before:
        if getattr(sys.modules[name], "__file__", None) and "pytest-of" in str(sys.modules[name].__file__):
            del sys.modules[name]


def write(folder: Path, text: str, name: str = "serve.yaml") -> str:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return str(path)


def problems(folder: Path, text: str, name: str = "serve.yaml") -> str:
    path = write(folder, text, name)
    with pytest.raises(ConfigError) as caught:
        read_file(path)
    assert isinstance(caught.value, DeploymentError)
    return str(caught.value).replace(path, name)


def test_a_file_says_all_that_a_pipeline_takes(tmp_path: Path) -> None:
    file = load_pipeline(write(tmp_path, WHOLE))
    assert isinstance(file, PipelineFile)
    assert (file.name, file.policy, file.lease_s, file.gateways) == ("rhombus", "power-of-two", 1.5, 2)
    assert file.preload == ("numpy",)
    assert (file.gateway.host, file.gateway.port, file.gateway.nan_policy) == ("0.0.0.0", 8000, "refuse")
    assert file.gateway.default_timeout_s == 5
    assert file.autoscaling == ScalingPolicy(target_utilization=0.6, down_after_s=60)
    assert file.folder == str(tmp_path)
    graph = Graph(file.build())
    left = graph.stages["left"]
    assert (left.work, left.replicas, left.fewest, left.most) == ("app.models:Left", 2, 0, 4)
    assert left.batch == Batch(max_size=8, max_wait_s=0.005)
    assert (left.device, left.hosts, left.idempotent) == ("cuda:0", ("10.0.0.1", "10.0.0.2"), False)
    assert graph.stages["right"].batch == Batch(max_size=32)
    assert graph.inputs("head") == ("left", "right", "input")
    assert graph.outputs == ("head",)
    assert file.warnings == ()


def test_almost_nothing_has_to_be_said(tmp_path: Path) -> None:
    file = read_file(write(tmp_path, "stages: [{name: only, model: 'app:Model'}]", "my serve.yaml"))
    assert file.name == "my-serve"
    assert file.policy == "shortest-queue"
    assert [stage.replicas for stage in file.stages] == [1]
    assert file.autoscaling == ScalingPolicy()
    off = read_file(write(tmp_path, "autoscaling: false\nstages: [{name: only, model: 'app:Model'}]"))
    assert off.autoscaling is None


def test_json_says_the_same(tmp_path: Path) -> None:
    text = '{\n\t"stages": [{"name": "only", "model": "app:Model", "batch": {"max_size": 3}}]}'
    file = read_file(write(tmp_path, text, "serve.json"))
    assert file.stages[0].batch == Batch(max_size=3)
    assert problems(tmp_path, '{"stages":\n ]', "bad.json") == "bad.json:2: no JSON: Expecting value"


def test_all_problems_are_told_at_once_with_their_lines(tmp_path: Path) -> None:
    text = """
polic: random
lease_s: soon
gateway:
  prot: 80
stages:
  - name: a
    model: app:A
    replica: 2
  - name: b
    model: app/b.py
    batch:
      max_size: 0
"""
    assert problems(tmp_path, text).splitlines() == [
        "serve.yaml:2: polic: unknown key, did you mean 'policy'?",
        "serve.yaml:3: lease_s: expected a number, got 'soon'",
        "serve.yaml:5: gateway.prot: unknown key, did you mean 'port'?",
        "serve.yaml:9: stages[0].replica: unknown key, did you mean 'replicas'?",
        "serve.yaml:11: stages[1].model: expected 'package.module:attribute', got 'app/b.py'",
        "serve.yaml:12: stages[1].batch: max_size must be a number of rows from 1, got 0",
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", " the file is empty"),
        ("- a\n- b", "1: expected keys and values, got a list"),
        ("name: x", "1: expected either 'stages' or 'cut', a model to be cut into stages"),
        ("stages: [", "1: no YAML: expected the node content, but found '<stream end>'"),
        ("name: a\nname: b", "2: name: stands here a second time"),
        ("name: !!python/object:os.system x", "1: no YAML: could not determine a constructor for the tag"),
        ("name: 'a b'\nstages: []", "1: name: 'a b': expected a letter or digit"),
        ("policy: fastest\nstages: []", "1: policy: unknown policy 'fastest', expected one of power-of-two"),
        ("stages: []", "1: stages: a pipeline needs at least one stage"),
        ("stages: [{name: a}]", "1: stages[0].model: is missing: expected text"),
        ("stages: [5]", "1: stages[0]: expected keys and values, got 5"),
        ("stages: [{name: a, model: 'm:A', replicas: true}]", "1: stages[0].replicas: expected a whole number"),
        ("stages: [{name: a, model: 'm:A', hosts: h1}]", "1: stages[0].hosts: expected a list of texts, got 'h1'"),
        ("stages: [{name: a, model: 'm:A', inputs: [b]}]", "1: stages: stage 'a' takes its input from 'b'"),
        ("stages: [{name: a, model: 'm:A', max_replicas: 0}]", "1: stages[0]: stage 'a': expected 0 <= min_replicas"),
        ("autoscaling: {drain_s: 0}\nstages: []", "1: autoscaling: drain_s must be above 0, got 0"),
        ("gateway: {nan_policy: maybe}\nstages: []", "1: gateway.nan_policy: expected 'allow' or 'refuse', got"),
        ("gateways: 0\nstages: []", "1: gateways: expected 1 to 64, got 0"),
        ("lease_s: 0.1\ncut: {model: gpt2, stages: 2}", "1: lease_s: expected 0.3 to 60 seconds, got 0.1"),
        ("cut: {model: gpt2, stages: 0}", "1: cut.stages: expected 1 or more, got 0"),
        ("cut: {model: gpt2, stages: 2, replicas: [1]}", "1: cut: replicas has 1 entries for 2 stages"),
        ("cut: {model: 'm:A', stages: 2}", "1: cut.example: is missing: expected text"),
        (
            "stages: [{name: a, model: 'm:A', canary: true}]",
            "1: stages[0].canary: expected false or 'package.module:attribute', got True",
        ),
        (
            "stages: [{name: a, model: 'm:A', canary: [1]}]",
            "1: stages[0].canary: expected false or 'package.module:attribute', got [1]",
        ),
        ("cut: {model: gpt2, stages: 2, min_replicas: 3}", "1: cut: stage 'part0': expected 0 <= min_replicas"),
    ],
)  # fmt: skip
def test_a_wrong_file_says_what_is_wrong_where(tmp_path: Path, text: str, message: str) -> None:
    assert f"serve.yaml:{message}" in problems(tmp_path, text)


def test_aliases_do_not_make_a_small_file_large(tmp_path: Path) -> None:
    layers = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    layers += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 12)]
    assert "a0: unknown key" in problems(tmp_path, "\n".join([*layers, "stages: []"]))
    assert "stages[0]: expected keys and values, got a list" in problems(tmp_path, "stages: &s [*s]")


def test_files_that_cannot_be_read_say_why(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        read_file(str(tmp_path / "none.yaml"))
    (tmp_path / "latin.yaml").write_bytes(b"name: \xe9")
    with pytest.raises(ConfigError, match="not UTF-8"):
        read_file(str(tmp_path / "latin.yaml"))


def test_a_config_error_goes_between_processes() -> None:
    error = pickle.loads(pickle.dumps(ConfigError("serve.yaml", ["1: a", "2: b"])))
    assert (str(error), error.problems) == ("serve.yaml:1: a\nserve.yaml:2: b", ("1: a", "2: b"))


def test_a_program_is_loaded_with_its_neighbours(tmp_path: Path) -> None:
    write(tmp_path, "VALUE = 41", "neighbour_of_app.py")
    path = write(tmp_path, "import neighbour_of_app\npipeline = neighbour_of_app.VALUE + 1\nother = 7", "my_app.py")
    assert load_pipeline(f"{path}:pipeline") == 42
    assert load_pipeline(path) == 42
    assert load_pipeline(f"{path}:other") == 7
    with pytest.raises(ConfigError, match="my_app has no 'pipelin', did you mean 'pipeline'"):
        load_pipeline(f"{path}:pipelin")


def test_a_module_is_loaded_by_its_name() -> None:
    assert load_pipeline("multiworld.serving.graph:INPUT") == "input"
    with pytest.raises(ConfigError, match=r"no module 'multiworld.nowhere'"):
        load_pipeline("multiworld.nowhere:pipeline")
    with pytest.raises(ConfigError, match=r"expected 'app.py:pipeline'"):
        load_pipeline("folder/app:pipeline")


def test_a_program_that_is_not_there_or_hidden_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file"):
        load_pipeline(str(tmp_path / "none.py:pipeline"))
    with pytest.raises(ConfigError, match="hidden by another module called 'json'"):
        load_pipeline(write(tmp_path, "pipeline = 1", "json.py"))
    with pytest.raises(ConfigError, match="'my-app' is no name"):
        load_pipeline(write(tmp_path, "pipeline = 1", "my-app.py"))


def test_errors_of_the_users_module_are_its_own(tmp_path: Path) -> None:
    with pytest.raises(ModuleNotFoundError, match="not_installed_here"):
        load_pipeline(write(tmp_path, "import not_installed_here", "broken_app.py"))


MODEL = """
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
def model():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
example = torch.zeros(2, 4)
"""


def test_a_model_is_cut_when_it_is_built_and_not_before(tmp_path: Path) -> None:
    text = """
cut: {model: "cuttable:model", example: "cuttable:example", stages: 2, replicas: [1, 3], max_replicas: 5, batch: 4}
"""
    file = read_file(write(tmp_path, text))
    assert file.stages == ()
    write(tmp_path, MODEL, "cuttable.py")
    stages = file.build()
    assert [(stage.name, stage.replicas, stage.most) for stage in stages] == [("part0", 1, 5), ("part1", 3, 5)]
    assert stages[1].batch == Batch(max_size=4)
    torch.manual_seed(1)
    whole = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    payload = torch.randn(3, 4)
    assert torch.equal(stages[1].work(stages[0].work(payload)), whole(payload))
    file = read_file(write(tmp_path, text.replace("batch: 4", "batch: false")))
    assert [stage.batch for stage in file.build()] == [False, False]


CANARIES = """
import torch
from pathlib import Path

Path(__file__).with_name("imported").touch()
one = {"x": torch.ones(2)}
words = "no tensor"


def two():
    return torch.ones(2), torch.zeros(2)
"""
JOINED = """
stages:
  - {name: a, model: "m:A", canary: "trials:one"}
  - {name: b, model: "m:B", inputs: [input], canary: false}
  - {name: c, model: "m:C", inputs: [a, b], canary: "trials:two"}
  - {name: d, model: "m:D"}
"""


@pytest.fixture
def trials(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "trials.py").write_text(CANARIES)
    yield tmp_path
    sys.modules.pop("trials", None)
    if str(tmp_path) in sys.path:
        sys.path.remove(str(tmp_path))


def test_canaries_of_a_file_are_looked_up_when_it_is_built(trials: Path) -> None:
    file = read_file(write(trials, JOINED))
    assert not (trials / "imported").exists()
    a, b, c, d = file.build()
    assert torch.equal(a.canary["x"], torch.ones(2))
    assert b.canary is False
    assert [payload.tolist() for payload in c.canary] == [[1, 1], [0, 0]]
    assert d.canary is None


@pytest.mark.parametrize(
    ("named", "message"),
    [
        ("trials:words", "stage 'a': trials:words: canary is no payload: "),
        ("trials:two", "stage 'a': trials:two: canary has 2 payloads, the stage takes 1"),
        ("trials:on", "trials has no 'on', did you mean 'one'?"),
        ("nowhere:one", "no module 'nowhere'"),
    ],
)
def test_a_canary_that_is_none_is_refused_when_the_file_is_built(trials: Path, named: str, message: str) -> None:
    file = read_file(write(trials, JOINED.replace("trials:one", named)))
    with pytest.raises(ConfigError, match=re.escape(message)):
        file.build()


def test_a_job_of_infscale_becomes_stages(tmp_path: Path) -> None:
    file = load_pipeline(write(tmp_path, DIAMOND))
    assert (file.name, file.policy, file.gateways, file.max_inflight) == ("resnet152-example", "round-robin", 1, 8)
    cut = file.cut
    assert cut is not None
    assert (cut.model, cut.num_stages, cut.replicas) == ("microsoft/resnet-152", 2, (2, 1))
    assert cut.batch == Batch(max_size=4)
    assert cut.devices == ("cuda:1", "cuda:3")
    assert cut.hosts == (("10.20.1.50", "10.20.1.51"), ())
    told = "\n".join(file.warnings)
    for word in ("dataset", "job_id", "nfaults", "backend gloo, nccl", "cuda:1, cuda:2", "0-25, 26-51"):
        assert word in told
    assert "each replica is connected" not in told

    def resolve(model: str, example: str | None, folder: str) -> tuple[nn.Module, Any]:
        assert (model, example, folder) == ("microsoft/resnet-152", None, str(tmp_path))
        return nn.Sequential(nn.Linear(2, 2), nn.ReLU()), torch.zeros(2, 2)

    assert [stage.replicas for stage in file.build(resolve)] == [2, 1]


def test_a_token_loop_and_missing_edges_are_told(tmp_path: Path) -> None:
    text = DIAMOND.replace("    - {name: w3, port: 32500, peers: [0-1], backend: nccl}\n", "")
    text = text.replace("  1-0:\n    - {", "  0-1:\n    - {peers: [1-0]}\n  1-0:\n    - {", 1)
    assert "stands here a second time" in problems(tmp_path, text)
    text = text.replace("  0-1:\n    - {peers: [1-0]}\n", "").replace("peers: [s-0], backend: gloo, addr: 10.20.1.50",
                                                                      "peers: [s-0, 1-0]")  # fmt: skip
    told = "\n".join(read_file(write(tmp_path, text)).warnings)
    assert "flow_graph: 1-0 to 0-0: tokens are not generated in a loop" in told
    assert "each replica is connected with every replica" in told


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"rr"', '"fastest"', "6: fwd_policy: unknown policy 'fastest', did you mean 'shortest'?"),
        ("end: 51", "end: 20", "24: workers[3].stage: ends at layer 20, before it starts at 26"),
        ("start: 26", "start: 30", "20: workers: layers 30-51 do not follow 0-25"),
        ("peers: [0-1]", "peers: [0-7]", "18: flow_graph.1-0[1].peers: unknown worker '0-7', did you mean"),
        ("id: 0-1", "id: 0-0", "workers[2].id: two workers are called '0-0'"),
        ("micro_batch_size: 4", "micro_batch_size: 0", "max_size must be a number of rows from 1, got 0"),
        ("max_inflight", "max_inflght", "8: max_inflght: unknown key, did you mean 'max_inflight'?"),
        ("peers: [1-0]", "peers: [0-0]", "flow_graph.s-0: receives from '0-0', which does not come just before"),
        ("model: microsoft/resnet-152\n", "", "model: is missing"),
    ],
)
def test_a_wrong_job_says_what_is_wrong(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in DIAMOND
    assert message in problems(tmp_path, DIAMOND.replace(old, new))


OWN_JOB = """
name: own
model: "own:Model"
example: "own:example"
recovery: {enable: true, attempts: 3}
idle_cache_cleanup: true
force_terminate: true
flow_graph:
  s-0: [{name: w0, port: 29500, peers: [0-0], backend: gloo, conflict_count: 1}]
  0-0: [{name: w1, data_port: 30500, ctrl_port: 30501, peers: [s-0], backend: gloo, conflict_count: 0, recover: true}]
workers:
  - {id: s-0, device: cpu, deploy: true, stage: {start: -1, end: -1, is_server: true}}
  - {id: 0-0, device: cpu, deploy: false, recover: false, stage: {start: 0, end: 5}}
"""
OWN_MODULE = """
import torch

class Model(torch.nn.Sequential):
    def __init__(self):
        super().__init__(torch.nn.Linear(8, 8), torch.nn.Linear(8, 4))

def example():
    return torch.zeros(2, 8)

words = "no payload"
pair = [torch.zeros(2, 8), torch.zeros(2, 8)]
"""


@pytest.fixture
def own(tmp_path: Path) -> Path:
    write(tmp_path, OWN_MODULE, "own.py")
    return tmp_path


def test_a_job_with_a_model_of_ones_own_names_its_example(own: Path) -> None:
    file = read_file(write(own, OWN_JOB, "job.yaml"))
    assert file.cut is not None
    assert (file.cut.model, file.cut.example) == ("own:Model", "own:example")
    (stage,) = file.build()
    assert isinstance(stage.work, nn.Module)
    assert stage.work(torch.ones(3, 8)).shape == (3, 4)


def test_what_a_job_asks_for_and_does_not_get_is_told_once(own: Path) -> None:
    told = read_file(write(own, OWN_JOB, "job.yaml")).warnings
    keys = [warning.rpartition(": ")[0] for warning in told]
    for key in (
        "recovery",
        "idle_cache_cleanup",
        "force_terminate",
        "flow_graph: conflict_count",
        "flow_graph: port",
        "flow_graph: data_port",
        "flow_graph: ctrl_port",
        "flow_graph: recover",
        "workers: deploy",
        "workers: recover",
    ):
        assert keys.count(key) == 1, key


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('example: "own:example"\n', "", "2: example: is missing: the model 'own:Model' is not one of Hugging Face"),
        ("own:example", "example", "4: example: expected 'package.module:attribute', got 'example'"),
        ('"own:example"', "[1, 2]", "4: example: expected text, got a list"),
    ],
)
def test_a_job_without_a_usable_example_says_under_which_key_it_goes(
    tmp_path: Path, old: str, new: str, message: str
) -> None:
    assert message in problems(tmp_path, OWN_JOB.replace(old, new), "job.yaml")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("own:words", "an example is a tensor, or a list or dict of tensors, not str"),
        ("own:pair", "Model.forward(input) cannot take an example of [Tensor, Tensor]"),
        ("own:missing", "own has no 'missing'"),
    ],
)
@pytest.mark.parametrize("text", [OWN_JOB, 'cut: {model: "own:Model", stages: 1, example: "own:example"}'])
def test_an_example_that_is_none_is_named_with_its_file(own: Path, text: str, name: str, message: str) -> None:
    path = write(own, text.replace("own:example", name), "job.yaml")
    with pytest.raises(ConfigError, match=re.escape(message)) as caught:
        read_file(path).build()
    assert name in str(caught.value)


def test_a_model_of_ones_own_without_an_example_is_refused_however_its_plan_was_made(own: Path) -> None:
    file = PipelineFile(path=str(own / "made.yaml"), name="made", cut=CutPlan(model="own:Model", num_stages=1))
    with pytest.raises(ConfigError, match="own:Model: needs an example"):
        file.build()


def test_hugging_face_models_need_transformers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ConfigError, match="needs transformers"):
        read_file(write(tmp_path, DIAMOND)).build()


WORDS = ["name", "stages", "cut", "model", "inputs", "replicas", "batch", "max_size", "policy", "gateway", "port"]
JOB_WORDS = ["workers", "flow_graph", "id", "stage", "start", "end", "peers", "device", "is_server", "0-0", "example"]
KEYS = st.sampled_from([*WORDS, *JOB_WORDS])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 9) | st.floats() | st.text(max_size=4) | KEYS | st.just("m:A"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=6),
    max_leaves=25,
)


@given(st.dictionaries(KEYS, VALUES, max_size=8))
def test_no_file_ends_in_anything_but_a_pipeline_or_its_problems(value: dict[str, Any]) -> None:
    document = Document("serve.json", value)
    with contextlib.suppress(ConfigError):
        file = read_job(document) if is_job(value) else read_pipeline(document)
        assert file.cut is not None or file.stages


@given(st.text(max_size=60) | st.lists(st.sampled_from(list("[]{}:&*!|>-\n \"'ab0<?,%")), max_size=40).map("".join))
def test_no_text_ends_in_anything_but_a_document_or_its_problems(text: str) -> None:
    for source in ("serve.yaml", "serve.json"):
        with contextlib.suppress(ConfigError):
            Document.parse(source, text)


@pytest.mark.parametrize(
    ("value", "expected", "fit"),
    [
        (1, float, True),
        (True, int, False),
        (True, float, False),
        (None, int | None, True),
        ("a", int | None, False),
        (["a"], tuple[str, ...], True),
        ([1], list[str], False),
    ],
)
def test_values_fit_annotations(value: object, expected: Any, fit: bool) -> None:
    assert fits(value, expected) is fit


def test_a_file_says_which_web_pages_may_ask(tmp_path: Path) -> None:
    text = """
stages: [{name: a, model: "m:A"}]
gateway: {cors_origins: ["https://App.example.org"], allowed_hosts: [models.example.org]}
"""
    gateway = read_file(write(tmp_path, text)).gateway
    assert (gateway.cors_origins, gateway.allowed_hosts) == (("https://app.example.org",), ("models.example.org",))

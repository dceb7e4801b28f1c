"""A profile is written and read as it is, and a wrong file is told with its place."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace

import pytest

from multiworld.training.errors import ProfileFileError, ProfileMismatchError
from multiworld.training.planning.profile import LayerCost, Profile
from multiworld.training.planning.profile_file import ProfileKey, profile_text, read_profile
from multiworld.training.planning.uniform import uniform_profile

KEY = ProfileKey(model_digest="9f", shapes="[4, 16] int64", device="cpu", torch_version="2.13.0")
LAYERS = (
    LayerCost(name="embed", forward_s=0.1, backward_s=0.2, weight_backward_s=0.2, state_bytes=16, move_bytes=12),
    LayerCost(name="head", forward_s=0.0, backward_s=0.3, activation_bytes=5, output_bytes=1 << 40),
)
PROFILE = Profile(
    model="gpt2",
    micro_batch=4,
    layers=LAYERS,
    sharded={2: tuple(replace(each, forward_s=each.forward_s / 2) for each in LAYERS)},
    latency_s=1e-4,
    bytes_per_s=1e9,
)


@pytest.mark.parametrize("profile", [PROFILE, uniform_profile(3)])
@pytest.mark.parametrize("key", [KEY, None])
def test_a_profile_is_read_as_it_was_written(profile: Profile, key: ProfileKey | None) -> None:
    stored = read_profile("p.json", profile_text(profile, key))
    assert stored.profile == profile
    assert stored.key == key


def test_each_layer_has_its_line_in_the_file() -> None:
    text = profile_text(PROFILE, KEY)
    assert sum('"name": "embed"' in line for line in text.splitlines()) == 2
    assert not any("embed" in line and "head" in line for line in text.splitlines())


def test_a_profile_of_the_same_measurement_fits() -> None:
    assert read_profile("p.json", profile_text(PROFILE, KEY)).fitting(KEY, "gpt2") == PROFILE


def test_a_profile_of_another_model_is_refused_with_what_differs() -> None:
    stored = read_profile("p.json", profile_text(PROFILE, KEY))
    with pytest.raises(ProfileMismatchError) as raised:
        stored.fitting(replace(KEY, model_digest="1c", device="cuda"), "bert")
    told = str(raised.value)
    assert "its model is 'gpt2', and 'bert' is wanted" in told
    assert "its model (digest) is '9f', and '1c' is wanted" in told
    assert "its device is 'cpu', and 'cuda' is wanted" in told
    assert "shapes" not in told
    again = pickle.loads(pickle.dumps(raised.value))
    assert (again.source, again.differences) == ("p.json", raised.value.differences)


def test_a_profile_without_a_key_fits_no_model() -> None:
    with pytest.raises(ProfileMismatchError, match="nobody measured it"):
        read_profile("p.json", profile_text(PROFILE)).fitting(KEY, "gpt2")


def test_text_that_is_not_json_is_told_with_line_and_column() -> None:
    with pytest.raises(ProfileFileError, match=r"^p\.json: line 2, column 3: this is not JSON: ") as raised:
        read_profile("p.json", "{\n  model: 1}")
    again = pickle.loads(pickle.dumps(raised.value))
    assert str(again) == str(raised.value)


def changed(**values: object) -> str:
    return json.dumps({**json.loads(profile_text(PROFILE, KEY)), **values})


LAYER = {"name": "a", "forward_s": 1.0, "backward_s": 1.0}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[]", "expected an object, found a list of 0"),
        ("[" * 100_000, "this is not a profile: brackets are nested too deeply"),
        ("{}", "format: this is not a profile: expected 'multiworld profile', found nothing"),
        (changed(version=2), "version: a later release wrote this: it is 2, and this release reads up to 1"),
        (changed(version=True), "version: expected a whole number, at least 1, found true"),
        (changed(modle="x"), "modle: there is no such field: did you mean 'model'?"),
        (changed(model=""), 'model: expected text, found ""'),
        (changed(micro_batch=0), "micro_batch: expected a whole number, at least 1, found 0"),
        (changed(latency_s=-1), "latency_s: expected a number, at least 0, found -1"),
        (changed(latency_s=10**400), "latency_s: expected a number, at least 0, found 1000"),
        ('{"version": 1' + "0" * 9999 + "}", "a number has too many digits"),
        (changed(bytes_per_s=0), "bytes_per_s: is 0: give more than 0, or null for no limit"),
        (changed(layers=[]), "layers: expected a list of layers, found a list of 0"),
        (changed(layers=[LAYER, 7]), "layers[1]: expected an object, found 7"),
        (changed(layers=[{**LAYER, "forward": 1}]), "layers[0].forward: there is no such field: did you mean"),
        (changed(layers=[{"name": "a", "forward_s": 1}]), "layers[0].backward_s: expected a number, at least 0, found"),
        (
            changed(layers=[{**LAYER, "weight_backward_s": 2}]),
            "layers[0].weight_backward_s: is 2, a part of backward_s",
        ),
        (changed(layers=[{**LAYER, "state_bytes": 1.5}]), "layers[0].state_bytes: expected a whole number of bytes"),
        (changed(layers=[{**LAYER, "forward_s": 0, "backward_s": 0}], sharded={}), "layers: no layer takes any time"),
        (changed(sharded={"3": [LAYER]}), 'sharded["3"]: expected a number of devices: 2, 4, 8, ...'),
        (changed(sharded={"2": [LAYER]}), 'sharded["2"]: these are not the layers of "layers"'),
        (changed(key={"device": "cpu"}), "key.model_digest: expected text, found nothing"),
        (changed(latency_s=float("nan")), "NaN is no number that a profile may have"),
        (changed(latency_s="x" * 90), f'latency_s: expected a number, at least 0, found "{"x" * 56}...'),
    ],
)
def test_a_wrong_file_is_told_with_the_path_of_the_field(text: str, told: str) -> None:
    with pytest.raises(ProfileFileError) as raised:
        read_profile("p.json", text)
    assert str(raised.value).startswith(f"p.json: {told}")


def test_equal_layers_hold_four_times_their_parameters() -> None:
    profile = uniform_profile(3, layer_bytes=10, forward_s=0.5)
    assert [each.name for each in profile.layers] == ["layer0", "layer1", "layer2"]
    assert {(each.state_bytes, each.move_bytes, each.backward_s) for each in profile.layers} == {(40, 30, 1.0)}
    with pytest.raises(ValueError, match="0 layers: at least 1 is needed"):
        uniform_profile(0)

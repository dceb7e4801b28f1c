"""Where the processes of a program meet: arguments before the environment, and what is missing is named."""

from __future__ import annotations

import pytest

from multiworld.distributed.place import LAUNCHED, Place, find_place

ENVIRONMENT = {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500", "RANK": "1", "WORLD_SIZE": "4"}


def test_an_address_needs_rank_and_size_and_reads_no_environment() -> None:
    place = find_place("tcp://host:1234", 0, 2, ENVIRONMENT)
    assert place == Place(store="tcp://host:1234", rank=0, world_size=2)
    for rank, size, missing in ((None, 2, "rank="), (0, None, "world_size=")):
        with pytest.raises(ValueError, match=f"needs {missing}: only 'env://' reads the environment"):
            find_place("tcp://host:1234", rank, size, ENVIRONMENT)


def test_the_environment_is_read_for_what_no_argument_says() -> None:
    assert find_place("env://", None, None, ENVIRONMENT) == Place(store="tcp://10.0.0.1:29500", rank=1, world_size=4)
    assert find_place("env://", 3, 8, ENVIRONMENT) == Place(store="tcp://10.0.0.1:29500", rank=3, world_size=8)
    assert find_place("env://", 0, None, {**ENVIRONMENT, "MASTER_ADDR": "::1"}).store == "tcp://[::1]:29500"


@pytest.mark.parametrize("name", sorted(ENVIRONMENT))
def test_what_is_missing_or_no_number_is_named(name: str) -> None:
    rest = {key: value for key, value in ENVIRONMENT.items() if key != name}
    for environment in (rest, {**rest, name: ""}):
        with pytest.raises(ValueError, match=f"reads {name} from the environment, where it is not set"):
            find_place("env://", None, None, environment)
    if name != "MASTER_ADDR":
        with pytest.raises(ValueError, match=f"{name}='x' in the environment is not a number"):
            find_place("env://", None, None, {**rest, name: "x"})


def test_the_port_that_torchrun_takes_for_itself_is_refused() -> None:
    with pytest.raises(ValueError, match="torchrun's own store listens at MASTER_ADDR:MASTER_PORT"):
        find_place("env://", None, None, {**ENVIRONMENT, "TORCHELASTIC_USE_AGENT_STORE": "True"})


@pytest.mark.parametrize("method", ["", "file:///tmp/x", "29500", 3])
def test_other_methods_are_refused(method: str) -> None:
    with pytest.raises(ValueError, match="expected 'env://' or 'tcp://HOST:PORT'"):
        find_place(method, 0, 1, ENVIRONMENT)
    with pytest.raises(ValueError, match="nothing follows 'env://'"):
        find_place("env://?rank=0", 0, 1, ENVIRONMENT)


def test_the_launcher_gives_what_the_environment_would() -> None:
    environment = {**ENVIRONMENT, "TORCHELASTIC_USE_AGENT_STORE": "True"}
    assert find_place("env://", None, None, environment, is_launched=True) == LAUNCHED
    assert find_place("env://", 1, 4, environment, is_launched=True) == LAUNCHED
    with pytest.raises(ValueError, match="rank=2, but the launcher gave this process RANK=1: leave it out"):
        find_place("env://", 2, None, environment, is_launched=True)
    own = find_place("tcp://10.0.0.1:29600", 2, 3, environment, is_launched=True)
    assert own == Place(store="tcp://10.0.0.1:29600", rank=2, world_size=3)

"""What the demo plays on which card."""

import json

import pytest

from gpuwatch.cli.play import CARD_BYTES, KNOBS, play_on
from gpuwatch.storage.errors import BadValue
from gpuwatch.storage.knobs import Knobs
from gpuwatch.storage.units import parse_size

MIB = 1 << 20


def test_without_a_spec_cuda_is_taken_where_there_is_some() -> None:
    assert play_on(None, has_cuda=lambda: True).gpu == "auto"


def test_without_a_spec_and_without_cuda_the_card_is_a_simulated_one() -> None:
    play = play_on(None, has_cuda=lambda: False)
    assert play.simulated
    assert parse_size(play.gpu.removeprefix("sim:")) == CARD_BYTES


def test_a_spec_is_taken_as_it_is_and_nobody_looks_for_cuda() -> None:
    def never() -> bool:
        raise AssertionError

    assert play_on("cuda:1", has_cuda=never).gpu == "cuda:1"


def test_the_neighbour_is_sized_for_the_card_and_only_played_on_a_simulated_one() -> None:
    played = play_on("sim:1GiB", has_cuda=lambda: False)
    assert played.neighbour is not None
    assert 700 * MIB < played.neighbour.size_bytes < 1024 * MIB
    assert "SCRIPTED" in played.neighbour.text
    assert play_on("cuda:0", has_cuda=lambda: False).neighbour is None


@pytest.mark.parametrize("spec", ["sim:big", "sim:", "sim:1GiB,1GiB"])
def test_a_size_that_is_none_is_refused(spec: str) -> None:
    with pytest.raises(BadValue):
        play_on(spec, has_cuda=lambda: False)


def test_the_start_values_are_knobs_that_exist_and_are_allowed() -> None:
    assert Knobs.defaults(("image",)).turned(KNOBS).by_lane["image"].run_timeout_s == 30


def test_the_services_environment_is_the_given_one_with_the_demos_over_it() -> None:
    environment = play_on("sim:640MiB", has_cuda=lambda: False).environment({"HOME": "/h", "GPUWATCH_KNOBS": "{}"})
    assert environment["HOME"] == "/h"
    assert json.loads(environment["GPUWATCH_KNOBS"]) == KNOBS
    assert int(environment["GPUWATCH_SIM__NEIGHBOUR_BYTES"]) == int(640 * MIB * 0.7)


def test_a_real_card_has_no_neighbours_settings() -> None:
    assert not any("NEIGHBOUR" in name for name in play_on("cuda:0", has_cuda=lambda: False).environment({}))

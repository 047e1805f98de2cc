import pytest

from gateway.simulator.options import Options, read_options
from gateway.simulator.refusal import Refused


def test_a_request_without_options_gets_the_defaults() -> None:
    defaults = Options(events=7, interval=0.5)

    assert read_options({"model": "gpt-5.5", "metadata": {"other": "x"}}, defaults) == defaults


def test_the_model_name_carries_options() -> None:
    options = read_options({"model": "gpt-5.5;events=100;interval=0.01;bytes=300;reasoning=1;text=ok"}, Options())

    assert options == Options(events=100, interval=0.01, size=300, reasoning=True, text="ok")


@pytest.mark.parametrize("container", ["metadata", "client_metadata"])
def test_metadata_wins_over_the_model_name(container: str) -> None:
    body = {"model": "m;events=1;bytes=5", container: {"sim_events": "9"}}

    assert read_options(body, Options()) == Options(events=9, size=5)


@pytest.mark.parametrize(
    "setting", ["events=0", "events=x", "events=1000001", "interval=-1", "interval=nan", "reasoning=maybe", "speed=9"]
)
def test_an_option_that_cannot_be_used_is_refused_with_the_known_names(setting: str) -> None:
    with pytest.raises(Refused, match=r"events.*interval.*reasoning"):
        read_options({"model": f"m;{setting}"}, Options())

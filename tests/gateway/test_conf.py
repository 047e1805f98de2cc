"""Tunables come from the environment, and a value that cannot work stops the start."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, fields

import pytest

from accounts.selection import Strategy
from gateway.conf import MIB, SettingError, Tunables, read_tunables, variable


def test_an_empty_environment_gives_the_defaults() -> None:
    assert read_tunables({}) == Tunables()


def test_a_variable_sets_the_field_of_its_name() -> None:
    tunables = read_tunables({"GATEWAY_CONNECT_TIMEOUT": "2.5", "GATEWAY_LANES_PER_ACCOUNT": "16"})
    assert (tunables.connect_timeout, tunables.lanes_per_account) == (2.5, 16)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("soon", "a number of seconds, not 'soon'"),
        ("0", "greater than zero, not 0"),
        ("-1", "greater than zero, not -1"),
        ("nan", "greater than zero, not nan"),
        ("inf", "greater than zero, not inf"),
    ],
)
def test_a_time_that_cannot_work_is_refused_by_the_name_of_its_variable(text: str, complaint: str) -> None:
    with pytest.raises(SettingError, match=f"GATEWAY_CONNECT_TIMEOUT must be .*{complaint}"):
        read_tunables({"GATEWAY_CONNECT_TIMEOUT": text})


def test_a_count_must_be_a_whole_number() -> None:
    with pytest.raises(SettingError, match="GATEWAY_ADMISSION_TURNS must be a whole number"):
        read_tunables({"GATEWAY_ADMISSION_TURNS": "1.5"})


def test_a_name_must_be_one_of_those_there_are() -> None:
    assert read_tunables({"GATEWAY_SELECTION_STRATEGY": "fill_first"}).selection_strategy is Strategy.FILL_FIRST
    with pytest.raises(SettingError, match=r"GATEWAY_SELECTION_STRATEGY must be one of capacity_weighted, .*'luck'"):
        read_tunables({"GATEWAY_SELECTION_STRATEGY": "luck"})


def test_a_body_that_could_never_be_admitted_stops_the_start() -> None:
    with pytest.raises(SettingError, match="raise GATEWAY_ADMISSION_BYTES"):
        Tunables(max_body_bytes=2 * MIB, admission_bytes=MIB)


def test_a_share_of_the_client_buffers_cannot_exceed_their_total() -> None:
    with pytest.raises(SettingError, match="raise the total"):
        Tunables(client_buffer_bytes=2 * MIB, client_buffer_total=MIB)


@pytest.mark.parametrize(("idle", "ping"), [(120.0, 20.0), (30.0, 10.0)])
def test_pings_go_out_every_20_seconds_or_a_third_of_the_idle_timeout(idle: float, ping: float) -> None:
    assert Tunables(websocket_idle_timeout=idle).ping_interval == ping


def test_tunables_cannot_be_changed_while_the_process_runs() -> None:
    with pytest.raises(FrozenInstanceError):
        Tunables().connect_timeout = 1.0  # type: ignore[misc]


@pytest.mark.parametrize("name", [field.name for field in fields(Tunables)])
def test_every_tunable_says_its_unit_and_what_it_means(name: str) -> None:
    (field,) = [field for field in fields(Tunables) if field.name == name]
    assert field.metadata["unit"] in ("seconds", "bytes", "count", "name", "on or off")
    assert field.metadata["meaning"].endswith(".")
    assert variable(name) == f"GATEWAY_{name.upper()}"

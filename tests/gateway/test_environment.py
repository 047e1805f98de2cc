"""Settings from the environment: what cannot work is refused in one sentence."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from gateway.conf import SettingError
from gateway.environment import keep_private, read_database, read_flag, unknown_settings

DEFAULT = "sqlite:////tmp/default.sqlite3"


@pytest.mark.parametrize(("text", "on"), [("1", True), ("True", True), ("on", True), ("", False), ("off", False)])
def test_a_switch_is_on_or_off(text: str, on: bool) -> None:
    assert read_flag({"DEBUG": text}, "DEBUG", default=not on) is on


def test_a_switch_that_is_not_set_is_as_usual() -> None:
    assert read_flag({}, "DEBUG", default=True) is True


def test_what_is_neither_on_nor_off_is_refused() -> None:
    with pytest.raises(SettingError, match="DEBUG must be on or off, not 'banana'"):
        read_flag({"DEBUG": "banana"}, "DEBUG", default=False)


def test_databases_are_read_by_their_url() -> None:
    read = [read_database({"DATABASE_URL": url}, DEFAULT) for url in ("sqlite:////a/b", "postgres://u:p@h:5433/n")]
    assert [each["ENGINE"].rpartition(".")[2] for each in read] == ["sqlite3", "postgresql"]
    assert (read[0]["NAME"], read[1]["NAME"], read[1]["PORT"]) == ("/a/b", "n", 5433)
    assert read_database({}, DEFAULT)["NAME"] == "/tmp/default.sqlite3"


@pytest.mark.parametrize(
    "url", ["banana", "mysql://u:secret@h/n", "postgres://u:secret@h:99999999/n", "postgres://u@h/"]
)
def test_a_url_of_no_database_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(SettingError, match="DATABASE_URL") as refused:
        read_database({"DATABASE_URL": url}, DEFAULT)
    assert "secret" not in str(refused.value)


def test_a_database_file_is_its_owners_alone(tmp_path: Path) -> None:
    new, old = tmp_path / "new", tmp_path / "old"
    old.touch(0o644)
    (tmp_path / "old-wal").touch(0o644)
    for path in (new, old):
        keep_private(path)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    assert modes == {"new": 0o600, "old": 0o600, "old-wal": 0o600}
    keep_private(tmp_path / "nowhere" / "file")


def test_a_variable_that_means_nothing_is_told_with_what_it_may_mean() -> None:
    environment = {"GATEWAY_ADMISION_TURNS": "5", "GATEWAY_XYZZY": "", "GATEWAY_PORT": "", "OTHER": ""}
    assert unknown_settings(environment, ["GATEWAY_ADMISSION_TURNS", "GATEWAY_PORT"]) == [
        "GATEWAY_ADMISION_TURNS is no setting; did you mean GATEWAY_ADMISSION_TURNS?",
        "GATEWAY_XYZZY is no setting.",
    ]

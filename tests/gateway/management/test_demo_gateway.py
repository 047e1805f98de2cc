"""The demo's gateway process, with a script in place of manage.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.management.demo_gateway import DemoGateway, StartFailed, environment

ANNOUNCES = """
import signal, sys
print("Pointsman 1 is ready on http://127.0.0.1:4711")
print("  admin http://127.0.0.1:4711/admin/  user admin, password secret-1")
print("  API key   pm_abc_def", flush=True)
signal.pause()
"""
BREAKS = """
import sys
sys.exit("the port is taken")
"""


def script(folder: Path, text: str) -> DemoGateway:
    manage = folder / "manage.py"
    manage.write_text(text)
    return DemoGateway(folder, manage)


async def test_address_key_and_password_are_read_from_the_first_start(tmp_path: Path) -> None:
    async with script(tmp_path, ANNOUNCES) as gateway:
        assert (gateway.url, gateway.key, gateway.password) == ("http://127.0.0.1:4711", "pm_abc_def", "secret-1")


async def test_the_process_has_ended_when_the_context_is_left(tmp_path: Path) -> None:
    async with script(tmp_path, ANNOUNCES) as gateway:
        pass
    await gateway.wait()


async def test_a_gateway_that_ends_before_it_serves_says_what_it_logged(tmp_path: Path) -> None:
    with pytest.raises(StartFailed, match=r"did not start\.\nthe port is taken"):
        await script(tmp_path, BREAKS).__aenter__()


async def test_a_command_that_fails_says_what_it_printed(tmp_path: Path) -> None:
    with pytest.raises(StartFailed, match=r"manage\.py migrate failed\.\nthe port is taken"):
        await script(tmp_path, BREAKS).run("migrate")


async def test_an_accounts_token_is_given_on_standard_input_only(tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    gateway = script(tmp_path, f"import sys; open({str(seen)!r}, 'w').write(repr((sys.argv[1:], sys.stdin.read())))")
    await gateway.add_account("ada", "sim-ada", "http://127.0.0.1:1/v1")
    assert seen.read_text().endswith("'http://127.0.0.1:1/v1'], 'sim-ada')")


def test_nothing_of_another_installation_reaches_the_gateway(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DATABASE_URL", "postgres://elsewhere")
    monkeypatch.setenv("GATEWAY_MAX_BODY_BYTES", "1")
    monkeypatch.setenv("PORT", "8045")
    monkeypatch.setenv("LANG", "C.UTF-8")
    given = environment(tmp_path)
    assert {name for name in given if name.startswith("GATEWAY_")} == {"GATEWAY_DATA_DIR"}
    assert given["GATEWAY_DATA_DIR"] == str(tmp_path)
    assert not {"DATABASE_URL", "PORT"} & given.keys()
    assert given["LANG"] == "C.UTF-8"

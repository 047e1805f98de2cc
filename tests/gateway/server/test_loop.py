from __future__ import annotations

import subprocess
import sys

import pytest

from gateway.server import loop


def run(code: str) -> str:
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=30)
    return result.stdout.strip()


def test_importing_the_package_puts_the_reactor_on_uvloop() -> None:
    pytest.importorskip("uvloop")
    code = "import gateway.server; from twisted.internet import reactor; print(type(reactor._asyncioEventloop))"
    assert run(code) == "<class 'uvloop.Loop'>"


def test_without_uvloop_the_reactor_runs_on_asyncio() -> None:
    code = (
        "import sys; sys.modules['uvloop'] = None; import gateway.server;"
        "from gateway.server.loop import reactor_loop; print(type(reactor_loop()).__module__)"
    )
    assert run(code) == "asyncio.unix_events"


def test_a_reactor_that_is_there_already_is_kept() -> None:
    code = (
        "from twisted.internet import asyncioreactor; import asyncio; mine = asyncio.new_event_loop();"
        "asyncioreactor.install(mine); import gateway.server;"
        "from gateway.server.loop import reactor_loop; print(reactor_loop() is mine)"
    )
    assert run(code) == "True"


def test_a_reactor_that_does_not_run_on_asyncio_is_named() -> None:
    code = (
        "import sys, types; from gateway.server import loop\n"
        "sys.modules['twisted.internet.reactor'] = types.ModuleType('x')\n"
        "try: loop.reactor_loop()\nexcept RuntimeError as error: print(error)"
    )
    assert "does not run on asyncio" in run(code)


def test_the_reactor_of_this_process_has_a_loop() -> None:
    assert not loop.reactor_loop().is_closed()

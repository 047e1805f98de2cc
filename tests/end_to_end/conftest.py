"""Real processes that tests share: one simulated upstream and one installation for each worker of the test run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.processes import Installation, SimulatorProcess, simulator


@pytest.fixture(scope="session")
def simulator_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimulatorProcess]:
    with simulator(tmp_path_factory.mktemp("simulator")) as process:
        yield process


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Installation:
    """An installation after its first start, without accounts. Do not use it: copy it."""
    return Installation.create(tmp_path_factory.mktemp("template"))


@pytest.fixture(scope="session")
def furnished(
    tmp_path_factory: pytest.TempPathFactory, template: Installation, simulator_process: SimulatorProcess
) -> Installation:
    """The same with one account, ada, at the simulated upstream. Do not use it: copy it."""
    installation = template.copy(tmp_path_factory.mktemp("furnished") / "data")
    installation.add_account("ada", simulator_process.base_url())
    return installation


@pytest.fixture(scope="module")
def new_installation(tmp_path_factory: pytest.TempPathFactory, furnished: Installation) -> Callable[[], Installation]:
    """Makes installations with the account ada, each in a folder of its own."""

    def make() -> Installation:
        return furnished.copy(Path(tmp_path_factory.mktemp("installation")) / "data")

    return make


@pytest.fixture
def upstream(simulator_process: SimulatorProcess) -> Iterator[SimulatorProcess]:
    """The simulated upstream, without faults and with nothing observed yet."""
    simulator_process.clear_faults()
    simulator_process.forget()
    yield simulator_process
    simulator_process.clear_faults()

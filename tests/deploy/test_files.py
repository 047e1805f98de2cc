"""What can be known of the deployment files without a container engine: they parse, and name what exists."""

from __future__ import annotations

import re
import shlex
import tomllib
from dataclasses import fields
from typing import Any

import pytest
import yaml
from django.conf import settings
from django.core.management import get_commands

from gateway.conf import Tunables, variable
from gateway.forwarding.address import BIND, PLAIN, read_peer_address
from gateway.management.ports import DEFAULT_PORT
from tests.support.processes import ROOT

DEPLOY = ROOT / "deploy"
COMPOSE: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
SERVICES: dict[str, Any] = COMPOSE["services"]
OURS = ("migrate", "gateway-1", "gateway-2", "worker", "beat")
OWN_VARIABLES = {"DATABASE_URL", "CELERY_BROKER_URL", "CSRF_TRUSTED_ORIGINS", "GATEWAY_DATA_DIR", BIND, PLAIN}


def instructions() -> list[tuple[str, str]]:
    """The Dockerfile's instructions and what follows each."""
    lines = [line for line in (DEPLOY / "Dockerfile").read_text().splitlines() if line and not line.startswith("#")]
    return [(word, rest) for word, _, rest in (line.partition(" ") for line in lines)]


def of(instruction: str) -> list[str]:
    return [rest for word, rest in instructions() if word == instruction]


def seconds(text: str) -> int:
    found = re.fullmatch(r"(\d+)s", text)
    assert found is not None, text
    return int(found.group(1))


def test_the_image_copies_what_exists_and_nothing_that_is_kept_out_of_it():
    allowed = {line[1:] for line in (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines() if line[:1] == "!"}
    copied = [name for rest in of("COPY") if "--from" not in rest for name in shlex.split(rest)[:-1]]
    assert copied
    for name in copied:
        assert (ROOT / name).exists(), name
        assert name in allowed


def test_the_image_installs_extras_that_exist():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    (install,) = [rest for rest in of("RUN") if "pip install" in rest]
    found = re.search(r"\.\[([\w,]+)\]", install)
    assert found is not None
    assert set(found.group(1).split(",")) <= extras.keys()
    assert "-c constraints.txt" in install


def test_the_image_is_slim_and_does_not_run_as_root():
    assert all("slim" in image for image in of("FROM"))
    (user,) = of("USER")
    assert int(user) > 0
    assert f"--uid {user}" in " ".join(of("RUN"))


def test_the_image_serves_and_asks_for_its_health_by_commands_that_exist():
    (health,), (entry,), (command,) = of("HEALTHCHECK"), of("ENTRYPOINT"), of("CMD")
    assert yaml.safe_load(entry) == ["python", "manage.py"]
    assert yaml.safe_load(health.partition("CMD ")[2]) == ["python", "manage.py", "healthcheck"]
    assert {yaml.safe_load(command)[0], "healthcheck", SERVICES["migrate"]["command"][0]} <= get_commands().keys()


def test_the_image_names_the_port_that_is_served_and_that_the_health_check_asks():
    named = {name for rest in of("ENV") for name in re.findall(r"(\w+)=", rest)}
    for service in OURS:
        named |= SERVICES[service]["environment"].keys()
    assert not named & {"PORT", "GATEWAY_PORT"}
    assert of("EXPOSE") == [str(DEFAULT_PORT)]
    (command,) = of("CMD")
    assert "--port" not in command


@pytest.mark.parametrize("name", OURS)
def test_every_variable_that_is_set_is_one_that_is_read(name: str):
    known = {variable(field.name) for field in fields(Tunables)} | OWN_VARIABLES
    assert SERVICES[name]["environment"].keys() <= known


@pytest.mark.parametrize("name", ["gateway-1", "gateway-2"])
def test_a_gateway_may_drain_before_it_is_killed(name: str):
    service = SERVICES[name]
    drain = float(service["environment"].get("GATEWAY_DRAIN_TIMEOUT", Tunables().drain_timeout))
    assert seconds(service["stop_grace_period"]) > drain
    assert seconds(SERVICES["nginx"]["stop_grace_period"]) >= seconds(service["stop_grace_period"])


def test_the_files_that_are_built_from_or_mounted_exist():
    for name in OURS:
        build = SERVICES[name]["build"]
        assert (DEPLOY / build["context"] / build["dockerfile"]).is_file()
    mounts = [volume.split(":")[0] for service in SERVICES.values() for volume in service.get("volumes", ())]
    for source in mounts:
        assert source in COMPOSE["volumes"] or (DEPLOY / source).is_file(), source


def test_every_service_waits_for_services_that_exist_and_can_be_healthy():
    for service in SERVICES.values():
        for other, wait in service.get("depends_on", {}).items():
            disabled = SERVICES[other].get("healthcheck", {}).get("disable", False)
            assert not (wait["condition"] == "service_healthy" and disabled), other


def test_nginx_knows_every_gateway_by_its_address():
    config = (DEPLOY / "nginx.conf").read_text()
    addresses = {SERVICES[name]["networks"]["default"]["ipv4_address"] for name in ("gateway-1", "gateway-2")}
    (port,) = of("EXPOSE")
    assert set(re.findall(r"server (\S+?):(\d+) ", config)) == {(address, port) for address in addresses}
    found = re.search(r"listen (\d+);", config)
    assert found is not None
    assert SERVICES["nginx"]["ports"] == [f"127.0.0.1:8045:{found.group(1)}"]


def test_gateways_reach_each_other_at_their_own_addresses():
    for name in ("gateway-1", "gateway-2"):
        peers = read_peer_address(SERVICES[name]["environment"])
        assert peers.host == SERVICES[name]["networks"]["default"]["ipv4_address"]
        assert peers.port not in (0, int(of("EXPOSE")[0]))


def test_nginx_takes_bodies_as_large_as_the_gateway_does():
    found = re.search(r"client_max_body_size (\d+)m;", (DEPLOY / "nginx.conf").read_text())
    assert found is not None
    assert int(found.group(1)) * 1024 * 1024 == Tunables().max_body_bytes


def test_celery_runs_the_application_that_exists():
    for name, role in (("worker", "worker"), ("beat", "beat")):
        assert SERVICES[name]["entrypoint"][:4] == ["celery", "-A", "gateway", role]
    assert settings.CELERY_BEAT_SCHEDULE

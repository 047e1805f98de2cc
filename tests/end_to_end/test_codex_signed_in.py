"""A Codex client that believes it is signed in with ChatGPT: what it asks a gateway besides responses.

Its access token is a key of the gateway, and TLS stands in front, as the client demands. It is driven as an IDE does.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.accounts.cast import jwt
from tests.end_to_end.app_server import AppServer, app_server
from tests.support.optional import require_program
from tests.support.processes import ROOT, GatewayProcess, Installation, SimulatorProcess, environment
from tests.support.proxies import certificate_for_this_machine
from tests.support.tls import Front, tls_front

pytestmark = [
    pytest.mark.slow,
    pytest.mark.real_client,
    pytest.mark.timeout(180),
]

MODEL, ALIAS = "gpt-5.5", "gpt-5.5-high"
ACCOUNT = "acc-of-the-client"


@pytest.fixture(scope="module")
def program() -> str:
    return require_program("codex")


@pytest.fixture(scope="module")
def gateway(program: str, template: Installation, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    installation = template.copy(tmp_path_factory.mktemp("signed-in") / "data")
    yield from installation.serve()


@pytest.fixture(scope="module")
def furnished_gateway(
    gateway: GatewayProcess, simulator_process: SimulatorProcess, tmp_path_factory: pytest.TempPathFactory
) -> GatewayProcess:
    """With a sign-in, ada, and an alias with an effort of its own."""
    file = tmp_path_factory.mktemp("accounts") / "ada.json"
    tokens = {"access_token": "sk-ada", "refresh_token": "refresh-of-ada", "account_id": "chatgpt-ada"}
    file.write_text(json.dumps({"tokens": tokens}))
    url = simulator_process.base_url("/backend-api/codex")
    gateway.manage("add_account", "ada", "--kind", "codex", "--auth-json", str(file), "--base-url", url)
    alias = f"ModelAlias.objects.create(name='{ALIAS}', model='{MODEL}', effort='high')"
    gateway.manage("shell", "-v", "0", "-c", f"from gateway.models import ModelAlias; {alias}")
    gateway.wait_ready()
    return gateway


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return certificate_for_this_machine(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def front(furnished_gateway: GatewayProcess, certificate: Path) -> Iterator[Front]:
    with tls_front(furnished_gateway.port, certificate) as front:
        yield front


@pytest.fixture
def client(
    program: str, gateway: GatewayProcess, front: Front, certificate: Path, upstream: SimulatorProcess, tmp_path: Path
) -> Iterator[AppServer]:
    front.asked.clear()
    place = ROOT / "var"
    place.mkdir(mode=0o700, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="codex-home-", dir=place, ignore_cleanup_errors=True) as name:
        home = Path(name)
        (home / "config.toml").write_text(configuration(front.url))
        (home / "auth.json").write_text(json.dumps(sign_in(gateway.key)))
        variables = {"CODEX_HOME": name, "HOME": name, "CODEX_CA_CERTIFICATE": str(certificate)}
        with app_server(program, environment(gateway.data_dir, variables), tmp_path) as client:
            yield client


def configuration(url: str) -> str:
    return f"""\
model = "{MODEL}"
model_provider = "pointsman"
chatgpt_base_url = "{url}/backend-api/"
check_for_update_on_startup = false

[analytics]
enabled = false

[model_providers.pointsman]
name = "Pointsman"
base_url = "{url}/backend-api/codex"
requires_openai_auth = true
wire_api = "responses"
supports_websockets = true
"""


def sign_in(key: str) -> dict[str, Any]:
    claims = {"chatgpt_plan_type": "pro", "chatgpt_account_id": ACCOUNT}
    tokens = {
        "id_token": jwt(email="client@example.com", **{"https://api.openai.com/auth": claims}),
        "access_token": key,
        "refresh_token": "none",
        "account_id": ACCOUNT,
    }
    return {"auth_mode": "chatgpt", "tokens": tokens, "last_refresh": datetime.now(UTC).isoformat()}


def turn(client: AppServer, work: Path, model: str) -> dict[str, Any]:
    """A conversation of one turn with `model`, as its client tells the end of it."""
    thread = client.call("thread/start", cwd=str(work), model=model)["thread"]
    client.call("turn/start", threadId=thread["id"], input=[{"type": "text", "text": "hi"}])
    told: dict[str, Any] = client.until("turn/completed")["turn"]
    return told


def test_it_lists_the_models_of_the_gateway_with_their_aliases(client: AppServer, front: Front):
    entries = {entry["model"]: entry for entry in client.call("model/list")["data"]}
    assert {MODEL, ALIAS} <= set(entries)
    assert entries[ALIAS]["defaultReasoningEffort"] == "high"
    assert "GET /backend-api/codex/models" in front.asked


def test_its_account_is_checked_at_the_gateway_before_its_first_turn(client: AppServer, front: Front, tmp_path: Path):
    assert turn(client, tmp_path, MODEL)["status"] == "completed"
    check, responses = "GET /backend-api/wham/accounts/check", "GET /backend-api/codex/responses"
    assert front.asked.index(check) < front.asked.index(responses)
    routing = client.call("account/read")["workspaceRouting"]
    assert (routing["chatgptAccountId"], routing["backendOrigin"]) == (ACCOUNT, front.url)


def test_an_alias_answers_as_its_model_with_its_effort_and_is_no_reroute(
    client: AppServer, upstream: SimulatorProcess, tmp_path: Path
):
    done = turn(client, tmp_path, ALIAS)
    assert [item["text"] for item in done["items"]] == ["Hello from ada."]
    asked = {(request.body.model, request.body.effort) for request in upstream.observed().requests if request.body}
    assert asked == {(MODEL, "high")}
    assert not [note for note in client.notes if note.get("method") == "model/rerouted"]


def test_the_limits_of_the_pool_are_shown_during_a_turn_and_when_asked_for(
    client: AppServer, front: Front, tmp_path: Path
):
    turn(client, tmp_path, MODEL)
    told = client.until("account/rateLimits/updated")["rateLimits"]["primary"]
    assert (told["usedPercent"], told["windowDurationMins"]) == (10, 300)
    limits = client.call("account/rateLimits/read")["rateLimits"]
    assert limits["limitId"] == "codex"
    assert (limits["primary"]["usedPercent"], limits["primary"]["windowDurationMins"]) == (10, 300)
    assert limits["planType"] == "plus"
    assert "GET /backend-api/wham/usage" in front.asked


def test_a_usage_limit_of_the_pool_is_told_as_what_it_is(client: AppServer, upstream: SimulatorProcess, tmp_path: Path):
    """The last test here: the one account stays at its limit."""
    upstream.add_fault("usage_limit:7200")
    done = turn(client, tmp_path, MODEL)
    assert done["status"] == "failed"
    assert "usage limit" in done["error"]["message"]

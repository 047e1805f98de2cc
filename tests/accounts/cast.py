"""Ada is healthy, Bo is at his limit, Cy is paused for now. It is noon."""

from __future__ import annotations

import json
from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime

from cryptography.fernet import Fernet
from django.db import connection

from accounts.credentials import CodexCredentials, OpenAICredentials, seal
from accounts.models import Account
from accounts.registry import AccountSnapshot
from accounts.states import Kind, State, Transport

NOON = datetime(2026, 3, 2, 12, 0, tzinfo=UTC)
NOW = NOON.timestamp()
HOUR = 3600.0
KEYS = [Fernet.generate_key().decode()]
OTHER_KEYS = [Fernet.generate_key().decode()]
SIGN_IN = CodexCredentials("access-of-ada", "refresh-of-ada", account_id="chatgpt-ada")


def jwt(**claims: object) -> str:
    """A token in the form of a JWT; nobody checks its signature."""
    payload = urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip("=")
    return f"e30.{payload}.c2ln"


def auth_json(**changes: object) -> bytes:
    """What `codex login` writes, with top-level fields changed."""
    content = {
        "auth_mode": "chatgpt",
        "OPENAI_API_KEY": None,
        "tokens": {
            "id_token": jwt(email="ada@example.com", **{"https://api.openai.com/auth": {"chatgpt_plan_type": "plus"}}),
            "access_token": jwt(exp=1_900_000_000),
            "refresh_token": "refresh-of-ada",
            "account_id": "chatgpt-ada",
        },
        "last_refresh": "2026-03-01T08:30:00.123456789Z",
    }
    return json.dumps(content | changes).encode()


def stored(name: str, **values: object) -> Account:
    """An account in the database, active and of kind codex unless `values` says otherwise."""
    defaults: dict[str, object] = {
        "kind": Kind.CODEX.value,
        "base_url": "https://chatgpt.com/backend-api/codex",
        "account_id": f"chatgpt-{name}",
        "credentials": seal(SIGN_IN, KEYS),
    }
    return Account.objects.create(name=name, **(defaults | values))


def stored_cast() -> tuple[Account, Account, Account]:
    return (
        stored("ada"),
        stored("bo", state="limited", state_until=datetime.fromtimestamp(NOW + 2 * HOUR, UTC)),
        stored("cy", state="paused", state_reason="Holiday."),
    )


ADA = AccountSnapshot(
    id=1,
    name="ada",
    kind=Kind.CODEX,
    base_url="https://chatgpt.com/backend-api/codex",
    transport=Transport.AUTO,
    priority=100,
    state=State.ACTIVE,
    state_reason="",
    state_until=None,
    streams=8,
    credentials=SIGN_IN,
    account_id="chatgpt-ada",
    revision=1,
)
BO = replace(ADA, id=2, name="bo", state=State.LIMITED, state_until=NOW + 2 * HOUR)
CY = replace(ADA, id=3, name="cy", kind=Kind.OPENAI, state=State.PAUSED, credentials=OpenAICredentials("sk-cy"))


@contextmanager
def meanwhile(statement: str, act: Callable[[], object], times: int = 1) -> Iterator[None]:
    """Before each of the next `times` queries that begin with `statement` somebody else does `act`."""
    left = times

    def hook(execute, sql, params, many, context):
        nonlocal left
        if left and sql.startswith(statement):
            left -= 1
            acting, left = left, 0
            act()
            left = acting
        return execute(sql, params, many, context)

    with connection.execute_wrapper(hook):
        yield
    assert not left, f"no query began with {statement}"

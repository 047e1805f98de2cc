"""The accounts and turns that the admin's tests look at."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from cryptography.fernet import Fernet
from django.utils import timezone

from accounts.credentials import OpenAICredentials, seal
from accounts.models import Account
from accounts.states import State
from gateway.models import Turn

SECRET = "sk-never-to-be-seen"
TOKEN_KEY = Fernet.generate_key().decode()
REPLICA = "11111111-1111-4111-8111-111111111111"


def account(name: str, state: State = State.ACTIVE, **fields: Any) -> Account:
    """A stored account with sealed credentials."""
    credentials = seal(OpenAICredentials(SECRET), [TOKEN_KEY])
    made = Account(name=name, kind="openai", state=state, credentials=credentials, **fields)
    made.full_clean()
    made.save()
    return made


def limited(name: str, hours: float) -> Account:
    """An account whose limit ends in so many hours; a negative number means that it is over."""
    until = timezone.now() + timedelta(hours=hours)
    return account(name, State.LIMITED, state_until=until, state_reason="usage limit reached")


def turn(**fields: Any) -> Turn:
    """A completed turn of a minute ago, unless `fields` say otherwise."""
    given = {
        "replica": REPLICA,
        "received_at": datetime.now(UTC) - timedelta(minutes=1),
        "key_name": "laptop",
        "account_name": "ada",
        "route": "codex",
        "downstream": "websocket",
        "upstream": "websocket",
        "model": "gpt-5.5",
        "admitted_ms": 0,
        "sent_ms": 3,
        "streaming_ms": 54,
        "settled_ms": 1600,
        "outcome": "completed",
        "input_tokens": 35,
        "cached_tokens": 7,
        "output_tokens": 12,
        **fields,
    }
    return Turn.objects.create(**given)

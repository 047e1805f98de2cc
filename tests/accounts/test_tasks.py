from dataclasses import replace
from datetime import UTC, datetime

import pytest
from django.conf import settings
from structlog.testing import capture_logs

from accounts import tasks
from accounts.credentials import CodexCredentials, seal
from tests.accounts.cast import NOW, SIGN_IN, stored
from tests.accounts.issuing import access_token

pytestmark = pytest.mark.django_db
# Nobody listens there, so that a task that asks is told so at once.
NOWHERE = "http://127.0.0.1:9"


@pytest.fixture(autouse=True)
def nowhere(monkeypatch):
    monkeypatch.setenv("GATEWAY_ISSUER_URL", NOWHERE)


def test_limits_that_are_over_end():
    stored("bo", state="limited", state_until=datetime.fromtimestamp(NOW, UTC))
    assert tasks.recover_limited() == "The limit is over of 1 account (bo)."


def test_tokens_are_refreshed_over_the_network():
    expired = CodexCredentials(access_token(0, NOW - 60), "refresh-0")
    stored("ada", credentials=seal(expired, settings.TOKEN_KEYS))
    with capture_logs() as logs:
        told = tasks.refresh_tokens()
    assert told == "Tokens of 1 account were about to expire; to be tried later: 1 account (ada)."
    assert logs[0]["error"] == "127.0.0.1 could not be asked (ConnectError)."


def test_usage_is_asked_for_over_the_network():
    credentials = seal(replace(SIGN_IN, last_refresh=datetime.now(UTC)), settings.TOKEN_KEYS)
    stored("ada", credentials=credentials, base_url=NOWHERE)
    assert tasks.poll_usage() == (
        "Asked 1 account for the usage: 0 told it; 1 did not (ada: 127.0.0.1 could not be asked (ConnectError))."
    )

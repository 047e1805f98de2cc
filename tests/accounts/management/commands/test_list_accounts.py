import json
from datetime import UTC, datetime, timedelta

import pytest
from django.conf import settings
from django.core.management import call_command

from accounts.credentials import seal_text
from accounts.management.commands.list_accounts import as_json, as_table
from accounts.models import Account, AccountCircuit
from tests.accounts.cast import HOUR, NOON, OTHER_KEYS, stored, stored_cast

pytestmark = pytest.mark.django_db

PROXY = "socks5://ada:secret@proxy.example:1080"
CIRCUIT = "CIRCUIT".ljust(len("open until 2026-03-02 12:03"))
WAY = "PROXY".ljust(len("socks5://…@proxy.example:1080"))
NONE = "-".ljust(len(WAY))


class TestTable:
    def test_the_cast_reads_as_an_aligned_table_with_a_closing_sentence(self):
        ada, *_ = stored_cast()
        Account.objects.filter(id=ada.id).update(plan_type="plus")
        url = "https://chatgpt.com/backend-api/codex"
        AccountCircuit.objects.create(account=ada, state="open", until=NOON + timedelta(minutes=3))
        Account.objects.filter(name="cy").update(proxy=seal_text(PROXY, settings.TOKEN_KEYS))
        assert as_table(list(Account.objects.all()), NOON).splitlines() == [
            f"NAME  KIND   STATE    UNTIL             {CIRCUIT}  PRIORITY  TRANSPORT  PLAN  {WAY}  BASE URL"
            "                               REASON",
            "ada   codex  active   -                 open until 2026-03-02 12:03  100       auto       plus  "
            f"{NONE}  {url}",
            "bo    codex  limited  2026-03-02 14:00  closed                       100       auto       -     "
            f"{NONE}  {url}",
            "cy    codex  paused   -                 closed                       100       auto       -     "
            f"socks5://…@proxy.example:1080  {url}  Holiday.",
            "",
            "3 accounts: 1 active, 1 limited, 1 paused; 1 circuit open.",
        ]

    def test_a_limit_that_is_over_is_shown_as_active(self):
        stored("bo", state="limited", state_until=NOON, state_reason="usage limit")
        table = as_table(list(Account.objects.all()), NOON)
        assert "limit" not in table
        assert table.endswith("1 account: 1 active.")

    def test_a_reason_keeps_to_its_line(self):
        stored("cy", state="paused", state_reason="two\nlines")
        assert "two lines" in as_table(list(Account.objects.all()), NOON)

    def test_a_circuit_whose_time_is_over_is_half_open(self):
        AccountCircuit.objects.create(account=stored("ada"), state="open", until=NOON)
        table = as_table(list(Account.objects.all()), NOON)
        assert "  half open  " in table
        assert table.endswith("1 account: 1 active.")

    def test_a_proxy_that_no_key_opens_is_told(self):
        stored("ada", proxy=seal_text(PROXY, OTHER_KEYS))
        assert "  cannot be opened  " in as_table(list(Account.objects.all()), NOON)

    def test_an_empty_pool_says_what_to_do(self):
        assert call_command("list_accounts") == "No accounts; add one with add_account."


class TestJson:
    def test_each_account_is_an_object_without_secrets(self):
        stored_cast()
        entries = json.loads(as_json(list(Account.objects.all()), NOON))
        assert [entry["usable"] for entry in entries] == [True, False, False]
        assert entries[1] == {
            "name": "bo",
            "kind": "codex",
            "state": "limited",
            "state_reason": "",
            "state_until": "2026-03-02T14:00:00Z",
            "usable": False,
            "circuit": "closed",
            "circuit_until": None,
            "proxy": None,
            "priority": 100,
            "transport": "auto",
            "base_url": "https://chatgpt.com/backend-api/codex",
            "max_streams": None,
            "account_id": "chatgpt-bo",
            "email": "",
            "plan_type": "",
            "last_used_at": None,
        }

    def test_a_limit_that_is_over_counts_as_usable(self):
        stored("bo", state="limited", state_until=NOON)
        (entry,) = json.loads(as_json(list(Account.objects.all()), NOON + timedelta(seconds=HOUR)))
        assert (entry["state"], entry["usable"]) == ("limited", True)

    def test_an_empty_pool_is_an_empty_array(self):
        assert json.loads(call_command("list_accounts", "--json")) == []


class TestCommand:
    def test_neither_form_shows_a_secret(self):
        proxy = seal_text(PROXY, settings.TOKEN_KEYS)
        ada = stored("ada", last_used_at=datetime(2026, 3, 1, tzinfo=UTC), proxy=proxy)
        for text in (call_command("list_accounts"), call_command("list_accounts", "--json")):
            assert "ada" in text
            assert ada.credentials not in text
            assert "access-of-ada" not in text
            assert "proxy.example" in text
            assert "secret" not in text
            assert proxy not in text

    def test_credentials_are_not_even_read(self, django_assert_num_queries):
        stored_cast()
        with django_assert_num_queries(1) as queries:
            call_command("list_accounts")
        assert "credentials" not in queries[0]["sql"]

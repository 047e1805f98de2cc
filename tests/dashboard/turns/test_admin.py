"""The ledger is read here, newest first, and never changed."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from accounts.models import Account
from dashboard.paging import MOST_ROWS
from dashboard.turns.outcomes import OUTCOME_TONES
from gateway.models import Session, Turn
from gateway.turns.turn import Outcome
from tests.dashboard.cast import REPLICA, account, turn

pytestmark = pytest.mark.django_db

LIST = "/admin/gateway/turn/"


def listed(client: Client, **query: str) -> list[Turn]:
    answer = client.get(LIST, query)
    assert answer.status_code == 200
    return list(answer.context["cl"].result_list)


def page(client: Client, path: str = "") -> str:
    answer = client.get(LIST + path)
    assert answer.status_code == 200
    return answer.content.decode()


def test_the_newest_turn_comes_first(admin_client: Client) -> None:
    now = datetime.now(UTC)
    for minutes in (3, 1, 2):
        turn(received_at=now - timedelta(minutes=minutes), model=f"{minutes} ago")
    assert [each.model for each in listed(admin_client)] == ["1 ago", "2 ago", "3 ago"]


def test_a_row_says_how_the_turn_ended_who_carried_it_and_how_long_it_took(admin_client: Client) -> None:
    turn()
    shown = page(admin_client)
    assert '<span class="word word-good">completed</span>' in shown
    assert '<td class="field-way">websocket</td>' in shown
    assert "54 ms" in shown
    assert "1.6 s" in shown
    assert "35 / 7 / 12" in shown


def test_a_refused_turn_says_what_its_client_was_told(admin_client: Client) -> None:
    turn(outcome="refused", status=503, code="gateway_full", account_name="")
    shown = page(admin_client)
    assert '<span class="word word-warning">refused</span> <span class="quiet">503 gateway_full</span>' in shown


def test_a_turn_without_an_outcome_is_running(admin_client: Client) -> None:
    turn(outcome="", settled_ms=None)
    assert '<span class="word word-busy">running</span>' in page(admin_client)


def test_a_turn_says_which_accounts_were_considered_and_why_each_was_passed_over(admin_client: Client) -> None:
    made = turn(
        attempts=[
            {"account": "bo", "transport": "http", "chosen_from": "2 accounts: 2 usable", "passed_over": {},
             "cause": "usage_limit", "move": "another account"},
            {"account": "ada", "transport": "websocket", "chosen_from": "2 accounts: 1 usable",
             "passed_over": {"bo": "limited until 14:05"}},
        ]
    )  # fmt: skip
    shown = page(admin_client, f"{made.pk}/change/")
    assert '<strong>bo</strong> over http <span class="quiet">of 2 accounts: 2 usable</span>' in shown
    assert "Bo has reached its usage limit; next: another account." in shown
    assert "<strong>bo</strong> limited until 14:05" in shown


def test_the_page_of_a_turn_answers_with_a_sentence_and_a_picture(admin_client: Client) -> None:
    made = turn(outcome="upstream_lost", cause="liveness", code="upstream_websocket_liveness_timeout", status=503)
    shown = page(admin_client, f"{made.pk}/change/")
    assert "It failed because the WebSocket to ada stopped answering pings; the client was told 503" in shown
    assert shown.count('class="gantt"') == 4
    assert "Save" not in shown


def test_a_list_does_not_read_the_attempts(admin_client: Client) -> None:
    turn()
    assert "attempts" in listed(admin_client)[0].get_deferred_fields()


def test_what_a_client_sent_cannot_become_markup(admin_client: Client) -> None:
    made = turn(model="<script>alert(1)</script>", attempts=[{"account": "<b>x</b>", "passed_over": {"<i>y</i>": "z"}}])
    for path in ("", f"{made.pk}/change/"):
        shown = page(admin_client, path)
        assert "<script>alert" not in shown
        assert "<b>x" not in shown
        assert "<i>y" not in shown


def test_nobody_adds_changes_or_deletes_a_turn(admin_client: Client) -> None:
    made = turn()
    assert admin_client.get(f"{LIST}add/").status_code == 403
    assert admin_client.post(f"{LIST}{made.pk}/change/", {"outcome": "failed"}).status_code == 403
    assert admin_client.post(f"{LIST}{made.pk}/delete/", {"post": "yes"}).status_code == 403
    admin_client.post(LIST, {"action": "delete_selected", "_selected_action": [str(made.pk)], "post": "yes"})
    assert Turn.objects.get().outcome == "completed"


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ({"outcome": "failed"}, ["failed"]),
        ({"outcome": "running"}, [""]),
        ({"longer": "60"}, ["failed"]),
        ({"received": "1h"}, ["", "failed", "completed"]),
        ({"received": "before-24h"}, []),
        ({"received": "before-nonsense"}, ["", "failed", "completed"]),
        ({"outcome": "nonsense"}, ["", "failed", "completed"]),
        ({"longer": "nonsense"}, ["", "failed", "completed"]),
        ({"account": "nonsense"}, ["", "failed", "completed"]),
    ],
)
def test_filters_find_what_they_say_and_ignore_what_they_do_not_offer(
    admin_client: Client, query: dict[str, str], found: list[str]
) -> None:
    now = datetime.now(UTC)
    turn(received_at=now - timedelta(minutes=3))
    turn(received_at=now - timedelta(minutes=2), outcome="failed", settled_ms=61_000)
    turn(received_at=now - timedelta(minutes=1), outcome="", settled_ms=None)
    assert [each.outcome for each in listed(admin_client, **query)] == found


def test_turns_of_one_account_can_be_listed(admin_client: Client) -> None:
    ada = account("ada")
    turn(account_id=ada.pk, model="hers"), turn(account_id=ada.pk + 1, model="another's")
    assert [each.model for each in listed(admin_client, account=str(ada.pk))] == ["hers"]
    assert Account.objects.count() == 1


def test_a_turn_is_found_by_its_own_id_and_by_that_of_its_response(admin_client: Client) -> None:
    made = turn(response_id="resp_1")
    turn(response_id="resp_12")
    assert listed(admin_client, q=str(made.pk)) == [made]
    assert listed(admin_client, q=" resp_1 ") == [made]
    assert listed(admin_client, q="resp") == []


def test_the_list_counts_no_further_than_its_bound(admin_client: Client) -> None:
    turn()
    with CaptureQueriesContext(connection) as queries:
        admin_client.get(LIST)
    counts = [query["sql"] for query in queries if "COUNT(" in query["sql"] and "gateway_turn" in query["sql"]]
    assert len(counts) == 1
    assert f"LIMIT {MOST_ROWS}" in counts[0]


def test_a_turn_leads_to_its_conversation_and_that_to_all_its_turns(admin_client: Client) -> None:
    name = f"thread-id:{'ab' * 32}"
    conversation = Session.objects.create(
        client=7, kind="thread-id", digest="ab" * 32, account_id=1, strength="soft", used_at=datetime.now(UTC),
        replica=REPLICA,
    )  # fmt: skip
    turns = [turn(session=name, key_id=7) for _ in range(2)]
    turn(session=f"thread-id:{'cd' * 32}", key_id=7)
    at = f"/admin/gateway/session/{conversation.pk}/change/"
    assert f'<a href="{at}">thread-id abababababab</a>' in page(admin_client, f"{turns[0].pk}/change/")
    shown = admin_client.get(at).content.decode()
    (path,) = re.findall(r'href="([^"]+)">All turns of this conversation', shown)
    answer = admin_client.get(path)
    assert set(answer.context["cl"].result_list) == set(turns)
    assert "Session: <strong>thread-id abababababab</strong>" in answer.content.decode()


def test_a_conversation_that_is_forgotten_is_named_all_the_same(admin_client: Client) -> None:
    made = turn(session=f"thread-id:{'ab' * 32}", key_id=7)
    assert "thread-id abababababab, forgotten since" in page(admin_client, f"{made.pk}/change/")


def test_every_outcome_has_a_colour() -> None:
    assert OUTCOME_TONES.keys() == set(Outcome)

"""Stored responses, as the API shows them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.simulator.archive import Archive, Kept
from gateway.simulator.envelope import event
from gateway.simulator.refusal import Refused
from gateway.simulator.values import Json

ITEMS: list[Json] = [{"type": "message", "content": str(number)} for number in range(3)]


def archive(*, background: bool = True) -> Archive:
    """One response of ada's that ends at the time 10."""
    begun: Json = {"id": "resp_1", "status": "queued", "background": background}
    made = Archive()
    made.keep("ada", "resp_1", Kept(begun, {**begun, "status": "completed"}, ITEMS, 10))
    return made


def call(made: Archive, path: str, method: str = "GET", now: float = 5, account: str = "ada", **query: str) -> Any:
    return made.call(account, method, path, query, now)


def refused(made: Archive, *arguments: Any, **options: Any) -> int:
    with pytest.raises(Refused) as error:
        call(made, *arguments, **options)
    return error.value.refusal.status


def test_a_response_ends_at_its_time() -> None:
    made = archive()
    assert [call(made, "resp_1", now=now)["status"] for now in (5, 10)] == ["in_progress", "completed"]


def test_it_can_be_cancelled_until_then_and_only_in_the_background() -> None:
    made = archive()
    assert call(made, "resp_1/cancel", "POST")["status"] == "cancelled"
    assert call(made, "resp_1/cancel", "POST", now=20)["status"] == "cancelled"
    assert call(made, "resp_1", now=20)["status"] == "cancelled"
    assert refused(archive(), "resp_1/cancel", "POST", now=20) == 400
    assert refused(archive(background=False), "resp_1/cancel", "POST") == 400


def test_it_is_gone_once_deleted_and_was_never_there_for_others() -> None:
    made = archive()
    assert refused(made, "resp_1", account="bo") == 404
    assert call(made, "resp_1", "DELETE")["deleted"] is True
    assert refused(made, "resp_1") == 404


def test_its_input_comes_in_pages() -> None:
    made = archive()
    newest = call(made, "resp_1/input_items", limit="2")
    assert ([item["content"] for item in newest["data"]], newest["has_more"]) == (["2", "1"], True)
    rest = call(made, "resp_1/input_items", limit="2", after=newest["last_id"])
    assert ([item["content"] for item in rest["data"]], rest["has_more"]) == (["0"], False)
    assert call(made, "resp_1/input_items", order="asc")["data"][0]["content"] == "0"
    assert refused(made, "resp_1/input_items", limit="0") == 400


def test_there_is_nothing_else() -> None:
    assert refused(archive(), "resp_1/other") == 404
    assert refused(archive(), "resp_1", "POST") == 404


def listened(made: Archive, now: float, **query: str) -> list[tuple[float, int]]:
    """In how many seconds each event comes, and its number."""
    timed = made.stream("ada", "resp_1", query, now)
    return [(each.seconds, json.loads(each.payload)["sequence_number"]) for each in timed]


def test_its_events_come_each_at_its_time_and_those_that_are_over_at_once() -> None:
    made = Archive()
    three = tuple(event("response.output_text.delta", delta=str(number)) for number in range(3))
    made.keep("ada", "resp_1", Kept({}, {}, ITEMS, 10, events=three, interval=2))
    assert listened(made, 5) == [(1, 0), (3, 1), (5, 2)]
    assert listened(made, 9) == [(0, 0), (0, 1), (1, 2)]
    assert listened(made, 11, starting_after="1") == [(0, 2)]
    assert listened(made, 11, starting_after="7") == []


@pytest.mark.parametrize(("account", "after", "status"), [("bo", "0", 404), ("ada", "x", 400)])
def test_events_of_others_and_behind_no_number_are_refused(account: str, after: str, status: int) -> None:
    with pytest.raises(Refused) as error:
        archive().stream(account, "resp_1", {"starting_after": after}, 5)
    assert error.value.refusal.status == status

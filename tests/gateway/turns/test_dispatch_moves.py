"""Which failures a turn moves on from, where it goes, and what becomes of the account it left."""

from __future__ import annotations

import random
import socket
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from structlog.testing import capture_logs

from accounts.credentials import CodexCredentials
from accounts.registry import AccountSnapshot
from accounts.tokens import Refreshed, Result
from gateway.clock import Clock
from gateway.conf import Tunables
from tests.support.frames import converse, response_id, sse_events, text_of, types
from tests.support.inprocess import World, world
from tests.support.records import HELLO

TRANSPORTS = ("http", "websocket")
# It names state that only its own account has.
BOUND = {**HELLO, "conversation": "conv_1"}


class Chance(random.Random):
    """Remembers between which bounds it was asked, and always says the lower one."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[tuple[float, float]] = []

    def uniform(self, a: float, b: float) -> float:
        self.asked.append((a, b))
        return a


@pytest.fixture
def closed_url() -> Iterator[str]:
    """An address where nothing listens, as long as the test runs."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{holder.getsockname()[1]}/backend-api/codex"


def account_of(w: World, number: int) -> AccountSnapshot:
    account = w.runtime.registry.get(number)
    assert account is not None
    return account


async def move_account(w: World, number: int, base_url: str) -> None:
    """Give an account another address, as its operator may."""
    w.store.accounts[number] = replace(w.store.accounts[number], base_url=base_url, revision=2)
    await w.runtime.registry.refresh()


async def only_turn(w: World) -> dict[str, Any]:
    (turn,) = await w.settled()
    return turn


def causes(turn: dict[str, Any]) -> list[tuple[str, str | None]]:
    """Which accounts were tried, and what came of each."""
    return [(attempt["account"], attempt.get("cause")) for attempt in turn["attempts"]]


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_an_account_that_cannot_be_reached_is_tried_three_times_with_growing_jitter(
    transport: str, closed_url: str
) -> None:
    chance = Chance()
    async with world(transport=transport, base_url=closed_url, clock=Clock(random=chance)) as w:
        answer = await w.post(dict(HELLO))
        turn = await only_turn(w)
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "2")
    assert answer.json()["error"]["code"] == "upstream_connect_failed"
    assert causes(turn) == [("ada", "connect_failed")] * 3
    assert chance.asked == [(0, 0.5), (0, 1.0)]


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_the_next_attempt_to_connect_goes_to_an_account_that_was_not_tried_yet(
    transport: str, closed_url: str
) -> None:
    async with world("ada", "bo", transport=transport, clock=Clock(random=Chance())) as w:
        await move_account(w, 1, closed_url)
        answer = await w.post(dict(HELLO))
        turn = await only_turn(w)
        assert account_of(w, 1).state == "active", "an unreachable host is not the account's fault"
    assert "Hello from bo" in answer.text
    assert causes(turn) == [("ada", "connect_failed"), ("bo", None)]


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_bound_body_waits_for_its_own_account(transport: str, closed_url: str) -> None:
    async with world("ada", "bo", transport=transport, clock=Clock(random=Chance())) as w:
        await move_account(w, 1, closed_url)
        assert (await w.post(BOUND)).status_code == 503
        turn = await only_turn(w)
    assert causes(turn) == [("ada", "connect_failed")] * 3


@pytest.mark.parametrize(
    ("transport", "fault", "code"),
    [
        ("http", "reset_before_created", "upstream_connection_lost"),
        ("websocket", "reset_before_created", "upstream_connection_lost"),
        ("http", "eof/start", "upstream_connection_lost"),
        ("websocket", "close:1011", "upstream_connection_lost"),
        ("http", "http:500", "upstream_busy"),
        ("http", "error_frame:500", "upstream_busy"),
        ("websocket", "error_frame:500", "upstream_busy"),
    ],
)
async def test_what_failed_after_it_was_sent_is_never_sent_again(transport: str, fault: str, code: str) -> None:
    async with world("ada", "bo", transport=transport, faults=(f"{fault}@ada",)) as w:
        answer = await w.post(dict(HELLO))
        turn = await only_turn(w)
        assert [request.account for request in w.upstream.observed.requests] == ["ada"]
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "2")
    assert answer.json()["error"]["code"] == code
    assert turn["outcome"] == "upstream_lost"
    assert causes(turn) == [("ada", "upstream_lost")]


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_nothing_is_replayed_once_the_stream_has_begun(transport: str) -> None:
    async with world("ada", "bo", transport=transport, faults=("reset/5",)) as w:
        answer = await w.post(dict(HELLO))
        turn = await only_turn(w)
        assert len(w.upstream.observed.requests) == 1
    assert answer.status_code == 200
    events = sse_events(answer.text)
    assert types(events)[-1] == "response.failed"
    assert types(events).count("response.created") == 1
    assert events[-1]["response"]["error"]["code"] == "upstream_connection_lost"
    assert turn["outcome"] == "upstream_lost"


async def test_a_broken_stream_on_a_websocket_ends_with_a_close_and_no_made_up_event() -> None:
    async with world(faults=("reset/5",)) as w:
        socket = await w.websocket()
        with pytest.raises(Exception, match="1011"):
            await converse(socket)
        assert len(w.upstream.observed.requests) == 1
        assert (await only_turn(w))["outcome"] == "upstream_lost"


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_an_account_whose_credentials_are_refused_needs_a_login_and_is_left(transport: str) -> None:
    async with world("ada", "bo", transport=transport, faults=("unauthorized@ada",)) as w:

        async def refuse(account: int, refused: str | None = None) -> Refreshed:
            return Refreshed(Result.NEEDS_LOGIN)

        w.refresher.answer = refuse
        assert "Hello from bo" in (await w.post(dict(HELLO))).text
        turn = await only_turn(w)
        assert account_of(w, 1).state == "needs_login"
    assert causes(turn) == [("ada", "unauthorized"), ("bo", None)]


@pytest.mark.parametrize(("transport", "fault"), [("http", "http:403"), ("websocket", "handshake:403")])
async def test_an_account_that_is_forbidden_is_left_and_stays_in_the_pool(transport: str, fault: str) -> None:
    async with world("ada", "bo", transport=transport, faults=(f"{fault}@ada",)) as w:
        assert "Hello from bo" in (await w.post(dict(HELLO))).text
        turn = await only_turn(w)
        assert account_of(w, 1).state == "active"
    assert causes(turn) == [("ada", "forbidden"), ("bo", None)]


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize(("fault", "rest"), [("rate_limit", 10), ("rate_limit:120", 120), ("rate_limit:9999", 300)])
async def test_an_account_that_asks_to_slow_down_rests_as_long_as_it_asked_within_reason(
    fault: str, rest: float, transport: str
) -> None:
    async with world("ada", "bo", transport=transport, faults=(f"{fault}@ada",)) as w:
        assert "Hello from bo" in (await w.post(dict(HELLO))).text
        turn = await only_turn(w)
        ada = account_of(w, 1)
        assert ada.state == "limited"
        assert (ada.state_until or 0) - time.time() == pytest.approx(rest, abs=5)
    assert causes(turn) == [("ada", "rate_limit"), ("bo", None)]


@pytest.mark.parametrize(
    ("transport", "fault"),
    [("http", "overloaded"), ("websocket", "overloaded"), ("http", "http:503:3"), ("websocket", "handshake:503:3")],
)
async def test_an_account_that_is_busy_is_left_without_a_stain(transport: str, fault: str) -> None:
    async with world("ada", "bo", transport=transport, faults=(f"{fault}@ada",)) as w:
        assert "Hello from bo" in (await w.post(dict(HELLO))).text
        turn = await only_turn(w)
        assert account_of(w, 1).state == "active"
    assert causes(turn) == [("ada", "upstream_busy"), ("bo", None)]


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_when_every_account_is_busy_the_client_is_told_to_come_back(transport: str) -> None:
    async with world("ada", "bo", transport=transport, faults=("overloaded",)) as w:
        answer = await w.post(dict(HELLO))
        turn = await only_turn(w)
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "upstream_busy")
    assert int(answer.headers["retry-after"]) >= 1
    assert causes(turn) == [("ada", "upstream_busy"), ("bo", "upstream_busy")]


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_when_every_account_is_limited_the_client_learns_the_earliest_reset(transport: str) -> None:
    faults = ("usage_limit:7200@ada", "usage_limit:3600@bo")
    async with world("ada", "bo", transport=transport, faults=faults) as w:
        answer = await w.post(dict(HELLO))
        turn = await only_turn(w)
        again = await w.post(dict(HELLO))
        assert len(w.upstream.observed.requests) == 2, "a limited account was asked again"
    for limited in (answer, again):
        error = limited.json()["error"]
        assert (limited.status_code, error["type"]) == (429, "usage_limit_reached")
        assert error["resets_at"] - time.time() == pytest.approx(3600, abs=10)
    assert causes(turn) == [("ada", "usage_limit"), ("bo", "usage_limit")]


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize(
    ("fault", "status", "cause"),
    [("usage_limit", 429, "usage_limit"), ("rate_limit", 429, "rate_limit"), ("overloaded", 503, "upstream_busy")],
)
async def test_a_bound_body_is_never_shown_to_another_account(
    fault: str, status: int, cause: str, transport: str
) -> None:
    async with world("ada", "bo", transport=transport, faults=(f"{fault}@ada",)) as w:
        answer = await w.post(BOUND)
        turn = await only_turn(w)
        assert {request.account for request in w.upstream.observed.requests} == {"ada"}
    assert answer.status_code == status
    assert causes(turn) == [("ada", cause)]


async def test_a_continuation_whose_account_is_limited_is_asked_for_in_full_when_another_can_take_it() -> None:
    async with world("ada", "bo") as w:
        socket = await w.websocket()
        last = response_id(await converse(socket))
        w.upstream.faults.add("usage_limit@ada")
        (told,) = await converse(socket, previous_response_id=last)
        assert (told["status"], told["error"]["code"]) == (400, "previous_response_not_found")
        assert text_of(await converse(socket)).startswith("Hello from bo")
        assert account_of(w, 1).state == "limited"


async def test_a_continuation_whose_account_is_limited_meets_the_limit_when_nobody_else_can_take_it() -> None:
    async with world("ada") as w:
        socket = await w.websocket()
        last = response_id(await converse(socket))
        w.upstream.faults.add("usage_limit:3600@ada")
        (told,) = await converse(socket, previous_response_id=last)
    assert (told["status"], told["error"]["type"]) == (429, "usage_limit_reached")
    assert told["error"]["resets_at"] - time.time() == pytest.approx(3600, abs=10)


async def test_an_unknown_previous_response_of_the_upstream_is_passed_on_unchanged() -> None:
    async with world("ada", "bo") as w:
        socket = await w.websocket()
        last = response_id(await converse(socket))
        w.upstream.faults.add("previous_not_found")
        (told,) = await converse(socket, previous_response_id=last)
        assert len(w.upstream.observed.requests) == 2
    assert told["error"] == {
        "message": f"Previous response with id '{last}' not found.",
        "type": "invalid_request_error",
        "code": "previous_response_not_found",
        "param": "previous_response_id",
    }


async def test_a_full_request_on_a_connection_past_its_hour_gets_a_new_one_unseen() -> None:
    async with world() as w:
        socket = await w.websocket()
        await converse(socket)
        w.upstream.faults.add("connection_limit#1")
        assert types(await converse(socket))[-1] == "response.completed"
        turn = (await w.settled())[-1]
        connections = [request.connection for request in w.upstream.observed.requests]
    assert causes(turn) == [("ada", "connection_limit"), ("ada", None)]
    assert connections[0] == connections[1] != connections[2]


async def test_a_second_connection_limit_in_one_turn_is_told() -> None:
    async with world(faults=("connection_limit#2",)) as w:
        (told,) = await converse(await w.websocket())
        assert len(w.upstream.observed.requests) == 2
    assert told["error"]["code"] == "websocket_connection_limit_reached"


async def test_a_continuation_on_a_connection_past_its_hour_is_told_unchanged() -> None:
    async with world() as w:
        socket = await w.websocket()
        last = response_id(await converse(socket))
        w.upstream.faults.add("connection_limit#1")
        (told,) = await converse(socket, previous_response_id=last)
        assert len(w.upstream.observed.requests) == 2
    assert told["status"] == 400
    assert told["error"]["code"] == "websocket_connection_limit_reached"


async def test_a_turn_that_waits_for_a_stream_is_told_which_limit_when_none_gets_free() -> None:
    tunables = Tunables(admission_wait=0.2)
    async with world(streams=1, tunables=tunables, faults=("silent_after_created",)) as w:
        blocker = await w.websocket()
        await blocker.send('{"type":"response.create","model":"gpt-5.5","input":[]}')
        await w.upstream.until(lambda observed: observed.running == 1)
        answer = await w.post(dict(HELLO))
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "account_streams_busy")
    assert int(answer.headers["retry-after"]) >= 1


async def test_connecting_and_moving_leaves_a_trace_of_every_attempt() -> None:
    with capture_logs() as logs:
        async with world("ada", "bo", transport="http", faults=("usage_limit@ada",)) as w:
            await w.post(dict(HELLO))
            await w.settled()
    attempts = [(event["account"], event["attempt"]) for event in logs if event["event"] == "connect_attempt"]
    assert attempts == [("ada", 1), ("bo", 2)]


async def test_every_account_that_a_turn_tries_may_have_its_token_renewed_once() -> None:
    """Tokens of one pool often expire together; the first turn afterwards must not cost all but one their login."""
    async with world("ada", "bo", transport="http") as w:
        expired = CodexCredentials("expired", "refresh")
        for number in (1, 2):
            w.store.accounts[number] = replace(w.store.accounts[number], credentials=expired, revision=2)
        await w.runtime.registry.refresh()

        async def refresh(number: int, refused: str | None = None) -> Refreshed:
            if number == 1:
                return Refreshed(Result.NEEDS_LOGIN)
            renewed = CodexCredentials("sim-bo", "refresh-2")
            w.store.accounts[2] = replace(w.store.accounts[2], credentials=renewed, revision=3)
            return Refreshed(Result.REFRESHED, renewed)

        w.refresher.answer = refresh
        assert "Hello from bo" in (await w.post(dict(HELLO))).text
        assert [account.state for account in w.runtime.registry.accounts] == ["needs_login", "active"]

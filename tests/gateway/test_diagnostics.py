"""What is told of the way upstream: every attempt with one ending, every failure with its stage, and no secret."""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import socket
from collections import Counter, defaultdict

import httpx
import pytest
from structlog.testing import capture_logs
from structlog.typing import EventDict

from accounts.credentials import OpenAICredentials
from accounts.states import Kind
from gateway.clock import Clock
from gateway.conf import Tunables
from gateway.diagnostics import MAX_CHAIN, Trace, address, chain
from gateway.errors import ConnectFailed
from gateway.logs import QUIET
from tests.support.frames import converse
from tests.support.inprocess import World, world
from tests.support.records import HELLO

ENDINGS = {"stream_opened", "connect_failed", "connect_cancelled"}
TRANSPORTS = ("http", "websocket")


class Ticking:
    """A clock's hand that moves half a second at every look."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        self.now += 0.5
        return self.now


def trace() -> Trace:
    return Trace("turn-1", "replica-1", "ada", 2, Clock(monotonic=Ticking()))


def told(logs: list[EventDict], *names: str) -> list[EventDict]:
    return [event for event in logs if event["event"] in names]


def test_an_opened_connection_is_told_with_its_peer_its_status_and_its_time() -> None:
    with capture_logs() as logs, trace().connecting("http://host/responses") as connecting:
        connecting.peer_address, connecting.status = "10.0.0.1:443", 200
    attempt, opened = logs
    common = {"turn": "turn-1", "replica": "replica-1", "account": "ada", "attempt": 2, "hop": "gateway_to_upstream"}
    assert attempt.items() >= {**common, "event": "connect_attempt", "url": "http://host/responses"}.items()
    facts = {"event": "stream_opened", "elapsed_ms": 500.0, "peer_address": "10.0.0.1:443", "status": 200}
    assert opened.items() >= {**common, **facts}.items()


def test_a_failed_attempt_is_told_and_its_exception_comes_through() -> None:
    with capture_logs() as logs, pytest.raises(ConnectFailed), trace().connecting("http://host/"):
        raise ConnectFailed("x") from ConnectionRefusedError(errno.ECONNREFUSED, "nobody there")
    assert [event["event"] for event in logs] == ["connect_attempt", "connect_failed"]
    assert logs[1]["error"] == "ConnectFailed < ConnectionRefusedError [ECONNREFUSED]"


def test_a_cancelled_attempt_is_told_as_that() -> None:
    with capture_logs() as logs, pytest.raises(asyncio.CancelledError), trace().connecting("http://host/"):
        raise asyncio.CancelledError
    assert [event["event"] for event in logs] == ["connect_attempt", "connect_cancelled"]


def test_a_url_is_told_without_user_info_query_and_fragment() -> None:
    with capture_logs() as logs, trace().connecting("wss://user:pass@[::1]:8443/v1/responses?key=secret#part"):
        pass
    assert {event["url"] for event in logs} == {"wss://[::1]:8443/v1/responses"}


def test_a_chain_names_types_and_system_errors_and_quotes_nothing() -> None:
    def fail() -> None:
        try:
            raise OSError(errno.ENETUNREACH, "secret")
        except OSError as error:
            raise httpx.ConnectError("secret") from error

    with pytest.raises(httpx.ConnectError) as caught:
        fail()
    assert chain(caught.value) == "httpx.ConnectError < OSError [ENETUNREACH]"


def test_a_chain_follows_what_was_being_handled_when_no_cause_is_given() -> None:
    error = ValueError("x")
    error.__context__ = KeyError("y")
    assert chain(error) == "ValueError < KeyError"


def test_a_chain_has_an_end() -> None:
    first = error = ValueError()
    for _ in range(100):
        error.__cause__ = ValueError()
        error = error.__cause__
    assert chain(first).count("ValueError") == MAX_CHAIN
    assert chain(None) == ""


@pytest.mark.parametrize(
    ("peer", "text"),
    [(("10.0.0.1", 443), "10.0.0.1:443"), (("::1", 443, 0, 0), "::1:443"), ("/run/socket", None), (None, None)],
)
def test_a_peers_address_is_told_where_there_is_one(peer: object, text: str | None) -> None:
    assert address(peer) == text


def assert_paired(logs: list[EventDict], *endings: str) -> None:
    """Every attempt has exactly one ending; in all they are `endings`."""
    events: defaultdict[tuple[str, int], list[str]] = defaultdict(list)
    for event in told(logs, "connect_attempt", *ENDINGS):
        events[event["turn"], event["attempt"]].append(event["event"])
    assert all(each[0] == "connect_attempt" and len(each) == 2 for each in events.values()), dict(events)
    assert Counter(each[1] for each in events.values()) == Counter(endings)


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize(
    ("fault", "endings"),
    [
        (None, ["stream_opened"]),
        ("reset/5", ["stream_opened"]),
        ("usage_limit/start", ["stream_opened"]),
        ("hang_handshake", ["connect_failed"] * 3),
        ("handshake:500", ["connect_failed"] * 3),
        ("handshake:403", ["connect_failed"]),
    ],
)
async def test_every_attempt_has_one_ending(transport: str, fault: str | None, endings: list[str]) -> None:
    if transport == "http":
        endings = ["stream_opened"]  # over HTTP there is no handshake that could fail
    clock, tunables = Clock(random=NoJitter()), Tunables(handshake_timeout=0.1)
    with capture_logs() as logs:
        async with world(transport=transport, faults=(fault,) if fault else (), clock=clock, tunables=tunables) as w:
            await w.post(dict(HELLO))
            await w.settled()
    assert_paired(logs, *endings)


class NoJitter(Clock().random.__class__):
    """Waits as short as can be."""

    def uniform(self, a: float, b: float) -> float:
        return a


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_attempts_at_a_refused_port_are_told_one_by_one(transport: str) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{holder.getsockname()[1]}/backend-api/codex"
        with capture_logs() as logs:
            async with world(transport=transport, base_url=url, clock=Clock(random=NoJitter())) as w:
                await w.post(dict(HELLO))
    assert_paired(logs, *["connect_failed"] * 3)
    assert all(event["error"].endswith("[ECONNREFUSED]") for event in told(logs, "connect_failed"))
    (failed,) = told(logs, "dispatch_failed")
    assert (failed["cause"], failed["code"], failed["events"]) == ("connect_failed", "upstream_connect_failed", 0)


@pytest.mark.parametrize(("transport", "fault"), [("http", "silent"), ("websocket", "hang_handshake")])
async def test_an_attempt_that_its_client_gave_up_is_told_as_cancelled(transport: str, fault: str) -> None:
    with capture_logs() as logs:
        async with world(transport=transport, faults=(fault,)) as w:
            with pytest.raises(httpx.ReadTimeout):
                await w.client.post(f"{w.url}/backend-api/codex/responses", json=dict(HELLO), timeout=0.2)
            await w.settled()
    assert_paired(logs, "connect_cancelled")
    (failed,) = told(logs, "dispatch_failed")
    assert (failed["cause"], failed["hop"]) == ("client_gone", "client_to_gateway")


async def test_a_lane_that_is_used_again_is_no_new_attempt() -> None:
    with capture_logs() as logs:
        async with world() as w:
            socket = await w.websocket()
            for _ in range(3):
                await converse(socket)
    assert_paired(logs, "stream_opened")


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize(
    ("fault", "stage", "events"),
    [("reset_before_created", "sent", 0), ("reset/5", "streaming", 5), ("usage_limit", "admitted", 0)],
)
async def test_a_failed_turn_is_told_with_its_stage_and_how_many_events_had_come(
    transport: str, fault: str, stage: str, events: int
) -> None:
    with capture_logs() as logs:
        async with world(transport=transport, faults=(fault,)) as w:
            await w.post(dict(HELLO))
            (turn,) = await w.settled()
    (failed,) = told(logs, "dispatch_failed")
    assert failed["turn"] == str(turn["id"])
    assert (failed["stage"], failed["events"]) == (stage, turn["events"])
    assert failed["events"] >= events


async def test_a_turn_that_ends_well_tells_of_no_failure() -> None:
    with capture_logs() as logs:
        async with world() as w:
            await w.post(dict(HELLO))
            await w.settled()
    assert not told(logs, "dispatch_failed")


TOKEN, BODY, HEADER, QUERY, SESSION = (f"planted-{name}" for name in ("token", "body", "header", "query", "session"))


@pytest.fixture
def loud(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    """Everything that is logged anywhere, with the loggers that the gateway quiets as quiet as it makes them."""
    caplog.set_level(logging.DEBUG)
    for name in QUIET:
        caplog.set_level(logging.CRITICAL, logger=name)
    return caplog


async def go_through_everything(w: World) -> None:
    """Successes, refusals and losses with secrets wherever a client or an operator can put one."""
    body = {**HELLO, "instructions": BODY, "metadata": {"note": BODY}}
    headers = {"x-planted": HEADER, "session-id": SESSION}
    faults = (None, "reset/5", "reset_before_created", "eof/start", "handshake:403", "unauthorized#1", "usage_limit")
    for fault in faults:
        w.upstream.faults.clear()
        if fault is not None:
            w.upstream.faults.add(fault)
        for path in ("/backend-api/codex/responses", "/v1/responses"):
            await w.post(body, path=f"{path}?key={QUERY}", **headers)
    await w.client.post(f"{w.url}/v1/responses", content=f'{{"model": "{BODY}"'.encode(), headers=headers)
    await w.client.post(f"{w.url}/v1/responses", json=body, headers={"authorization": f"Bearer {TOKEN}"})
    w.upstream.faults.clear()
    connection = await w.websocket(f"/backend-api/codex/responses?key={QUERY}")
    await connection.send(BODY)
    await connection.recv()
    await converse(connection, instructions=BODY)


@pytest.mark.parametrize("kind", Kind)
async def test_nothing_that_is_logged_holds_a_secret(kind: Kind, loud: pytest.LogCaptureFixture) -> None:
    """An account of either kind: one is reached by WebSocket, the other over HTTP where a client allows it."""
    with capture_logs() as logs:
        async with world("ada", "bo", "cy", kind=kind, credentials=OpenAICredentials(f"sim-{TOKEN}")) as w:
            accounts = w.upstream.backend.accounts
            assert accounts is not None
            w.upstream.backend.accounts = {f"sim-{TOKEN}": accounts["sim-ada"]}
            await go_through_everything(w)
            await w.settled()
            key = w.key.text
    everything = json.dumps(logs, default=str) + loud.text
    assert {"connect_attempt", "connect_failed", "stream_opened", "dispatch_failed"} <= {
        event["event"] for event in logs
    }
    for secret in (TOKEN, BODY, HEADER, QUERY, SESSION, key, key.split("_", 2)[2]):
        assert secret not in everything


async def test_the_same_facts_are_events_of_the_turns_span() -> None:
    pytest.importorskip("opentelemetry.sdk", reason="the SDK of OpenTelemetry is not installed")
    from opentelemetry import trace as otel
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    otel.set_tracer_provider(provider)
    async with world(faults=("error_frame:400:planted#1", "reset/5")) as w:
        for _ in range(2):
            await w.post(dict(HELLO))
        turns = await w.settled()
    spans = {span.attributes["turn"]: span for span in exporter.get_finished_spans()}
    for turn in turns:
        events = spans[str(turn["id"])].events
        assert [event.name for event in events] == ["connect_attempt", "stream_opened", "dispatch_failed"]
        assert events[0].attributes["account"] == "ada"
    assert "fault was asked for" not in "".join(span.to_json() for span in spans.values())

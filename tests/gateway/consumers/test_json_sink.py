"""One JSON document for a client that did not ask for a stream."""

from __future__ import annotations

import json

import pytest

from gateway.clock import Clock
from gateway.conf import Tunables
from gateway.consumers.json_sink import JsonSink
from gateway.consumers.native import NativeDocument
from gateway.consumers.wire import ClientWire
from gateway.protocol.events import Event, read_event
from gateway.turns.answers import Answer
from tests.gateway.consumers.asgi import Server


def event(**members: object) -> Event:
    return read_event(json.dumps(members).encode())


CREATED = event(type="response.created", response={"id": "resp_1"})
ITEM = event(type="response.output_item.done", item={"type": "message", "id": "msg_1"})


def completed(**response: object) -> Event:
    return event(type="response.completed", response={"id": "resp_1", "status": "completed", **response})


@pytest.fixture
async def server() -> Server:
    return Server()


@pytest.fixture
async def sink(server: Server) -> JsonSink:
    return JsonSink(ClientWire(server.send, Tunables(), server.buffered), NativeDocument(), Clock())


def document(server: Server) -> dict[str, object]:
    return dict(json.loads(b"".join(server.pieces)))


async def test_nothing_is_sent_before_the_end(sink: JsonSink, server: Server):
    await sink.deliver([CREATED])
    await sink.deliver([ITEM])
    assert server.sent == []


async def test_the_document_is_the_response_of_the_terminal_event(sink: JsonSink, server: Server):
    sink.upstream_headers({"x-request-id": "r", "set-cookie": "secret"})
    await sink.deliver([CREATED, completed(output=[{"type": "message", "id": "whole"}])])
    assert server.status == 200
    assert document(server) == {"id": "resp_1", "status": "completed", "output": [{"type": "message", "id": "whole"}]}
    assert server.headers["x-request-id"] == "r"
    assert "set-cookie" not in server.headers
    assert server.complete


async def test_an_output_that_came_empty_is_filled_from_the_items(sink: JsonSink, server: Server):
    await sink.deliver([ITEM])
    await sink.deliver([completed(output=[])])
    assert document(server)["output"] == [{"type": "message", "id": "msg_1"}]


@pytest.mark.parametrize("kind", ["response.failed", "response.incomplete"])
async def test_a_response_that_failed_or_stopped_early_is_a_delivered_result(sink: JsonSink, server: Server, kind: str):
    await sink.deliver([CREATED])
    await sink.deliver([event(type=kind, response={"id": "resp_1", "output": []})])
    assert server.status == 200
    assert document(server)["id"] == "resp_1"


async def test_an_error_in_the_middle_is_a_502_with_the_upstreams_error(sink: JsonSink, server: Server):
    await sink.deliver([CREATED, event(type="error", error={"code": "server_error", "message": "Broken."})])
    assert server.status == 502
    assert document(server)["error"] == {"code": "server_error", "message": "Broken."}


async def test_the_platforms_own_error_event_is_an_error_document_too(sink: JsonSink, server: Server):
    """There, code and message stand beside the event's type, not inside an `error`."""
    await sink.deliver([event(type="error", code="server_error", message="Broken.", sequence_number=1)])
    error = document(server)["error"]
    assert isinstance(error, dict)
    assert (error["code"], error["message"]) == ("server_error", "Broken.")


async def test_a_refusal_is_its_own_status(sink: JsonSink, server: Server):
    await sink.refuse(Answer(503, "server_error", "gateway_full", "Full.", headers={"retry-after": "3"}))
    assert (server.status, server.headers["retry-after"]) == (503, "3")
    assert document(server)["error"]["code"] == "gateway_full"


async def test_a_document_has_no_silence_to_break(sink: JsonSink, server: Server):
    assert sink.tick(1e9) > 0
    await sink.end_silence()
    assert server.sent == []

import json

import h11
import pytest

from gateway.simulator.plan import Send
from gateway.simulator.refusal import Refusal, overloaded
from gateway.simulator.sse import JsonCarrier, SseCarrier
from gateway.simulator.wire import Receiver, Wire

EVENT = Send("response.created", '{"text":"é"}'.encode())


class RecordingHttp:
    """Notes what a carrier sends."""

    def __init__(self) -> None:
        self.wire = ClosableWire()
        self.sent: list[h11.Response | h11.Data | h11.EndOfMessage] = []
        self.answers: list[tuple[int, bytes]] = []

    @property
    def chunks(self) -> list[bytes]:
        return [bytes(event.data) for event in self.sent if isinstance(event, h11.Data)]

    def send(self, event: h11.Response | h11.Data | h11.EndOfMessage) -> None:
        self.sent.append(event)

    def respond(self, status: int, body: bytes, headers: object) -> None:
        self.answers.append((status, body))

    def refuse(self, refusal: Refusal) -> None:
        self.respond(refusal.status, refusal.body(), refusal.headers)


class ClosableWire(Wire):
    closed = False

    def __init__(self) -> None:
        super().__init__(_never, lambda wire: None)

    def close(self) -> None:
        self.closed = True


def _never(wire: Wire) -> Receiver:
    raise AssertionError("This wire is never opened.")


def test_an_event_is_a_block_of_two_lines_and_counted() -> None:
    http, sent = RecordingHttp(), []
    carrier = SseCarrier(http, {"x-codex-turn-state": "s"}, lambda: sent.append(1))

    carrier.begin()
    carrier.send(EVENT)
    carrier.end()

    head, data, end = http.sent
    assert isinstance(head, h11.Response)
    assert (b"content-type", b"text/event-stream") in list(head.headers)
    assert (b"x-codex-turn-state", b"s") in list(head.headers)
    assert isinstance(data, h11.Data)
    assert data.data == 'event: response.created\ndata: {"text":"é"}\n\n'.encode()
    assert isinstance(end, h11.EndOfMessage)
    assert sent == [1]


@pytest.mark.parametrize("size", [1, 3, 7])
def test_small_chunks_cut_events_anywhere_also_inside_a_character(size: int) -> None:
    http = RecordingHttp()
    carrier = SseCarrier(http, {}, lambda: None)

    carrier.split_chunks(size)
    carrier.send(EVENT)

    assert {len(chunk) for chunk in http.chunks[:-1]} == {size}
    assert b"".join(http.chunks) == 'event: response.created\ndata: {"text":"é"}\n\n'.encode()


def test_a_refusal_is_a_whole_answer() -> None:
    http = RecordingHttp()
    carrier = SseCarrier(http, {}, lambda: None)

    carrier.refuse(overloaded())
    carrier.end()

    assert [status for status, _ in http.answers] == [503]
    assert http.sent == []


def test_without_a_stream_the_last_response_is_the_answer() -> None:
    http = RecordingHttp()
    carrier = JsonCarrier(http, {}, lambda: None)

    carrier.begin()
    carrier.send(EVENT)
    carrier.send(Send("response.completed", b'{"type":"response.completed","response":{"id":"resp_1"}}'))
    carrier.end()

    ((status, body),) = http.answers
    assert (status, json.loads(body)) == (200, {"id": "resp_1"})
    assert http.sent == []


def test_without_a_stream_a_cut_answer_is_a_closed_connection() -> None:
    http = RecordingHttp()
    carrier = JsonCarrier(http, {}, lambda: None)

    carrier.send(EVENT)
    carrier.end()

    assert http.wire.closed
    assert http.answers == []


def test_what_only_a_websocket_can_do_is_an_error() -> None:
    carrier = SseCarrier(RecordingHttp(), {}, lambda: None)

    for wrong in (carrier.accept, lambda: carrier.close(1000), carrier.mute_pongs):
        with pytest.raises(ValueError, match="HTTP"):
            wrong()

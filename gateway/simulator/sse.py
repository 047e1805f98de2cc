"""An answer over HTTP: a stream of server-sent events, or one JSON object when no stream was asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

import h11

from gateway.simulator.plan import Send
from gateway.simulator.refusal import Refusal
from gateway.simulator.values import decode_object, encode
from gateway.simulator.wire import Wire


class Speaker(Protocol):
    """The HTTP connection that carries the answer."""

    wire: Wire

    def send(self, event: h11.Response | h11.Data | h11.EndOfMessage) -> None: ...
    def respond(self, status: int, body: bytes, headers: Mapping[str, str]) -> None: ...
    def refuse(self, refusal: Refusal) -> None: ...


class SseCarrier:
    """Says the steps of a plan as server-sent events. `sent` is called after each event."""

    def __init__(self, http: Speaker, headers: Mapping[str, str], sent: Callable[[], None]) -> None:
        self.wire = http.wire
        self._http = http
        self._headers = headers
        self._sent = sent
        self._piece = 0
        self._refused = False

    def begin(self) -> None:
        headers = {"content-type": "text/event-stream", "cache-control": "no-cache", **self._headers}
        # Without a length h11 sends chunks.
        self._http.send(h11.Response(status_code=200, headers=list(headers.items())))

    def send(self, event: Send) -> None:
        data = b"event: %b\ndata: %b\n\n" % (event.type.encode(), event.payload)
        piece = self._piece or len(data)
        for start in range(0, len(data), piece):
            self._http.send(h11.Data(data=data[start : start + piece]))
        self._sent()

    def refuse(self, refusal: Refusal) -> None:
        self._refused = True
        self._http.refuse(refusal)

    def split_chunks(self, size: int) -> None:
        self._piece = size

    def end(self) -> None:
        if not self._refused:
            self._http.send(h11.EndOfMessage())

    def accept(self) -> None:
        raise ValueError("An HTTP request has no handshake to accept.")

    def close(self, code: int) -> None:
        raise ValueError(f"HTTP has no close frame to carry the code {code}.")

    def mute_pongs(self) -> None:
        raise ValueError("HTTP has no pings.")


class JsonCarrier(SseCarrier):
    """Waits for the last event and answers with the response object in it."""

    _last = b""

    def begin(self) -> None:
        pass

    def send(self, event: Send) -> None:
        self._last = event.payload
        self._sent()

    def end(self) -> None:
        if self._refused:
            return
        response = decode_object(self._last).get("response")
        if isinstance(response, dict):
            self._http.respond(200, encode(response), self._headers)
        else:
            # The answer was cut before it had a response to show.
            self.wire.close()

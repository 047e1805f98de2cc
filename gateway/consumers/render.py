"""Answers as bytes: a JSON document, a WebSocket error frame, or a `response.failed` event."""

from __future__ import annotations

import msgspec

from gateway.protocol.events import Event, error_object, read_error
from gateway.protocol.wire import error_body, error_frame, failed_event
from gateway.turns.answers import SERVER, USAGE_LIMIT, Answer


def document(answer: Answer) -> bytes:
    """The body of an HTTP error response."""
    if answer.error is not None:
        return b'{"error":' + answer.error + b"}"
    return error_body(answer.message, answer.type, answer.code, answer.param, **answer.extra)


def frame(answer: Answer) -> bytes:
    """A WebSocket error frame; the clients read its `headers` as they read HTTP's."""
    status = answer.frame_status or answer.status
    if answer.error is not None:
        headers = msgspec.json.encode(dict(answer.headers))
        return b'{"type":"error","status":%d,"error":%b,"headers":%b}' % (status, answer.error, headers)
    return error_frame(status, answer.message, answer.type, answer.code, answer.headers, answer.param, **answer.extra)


def broken_off(event: Event, now: float) -> Answer:
    """An upstream's `error` event in the middle of a response, for clients that do not get it as it came."""
    refusal = read_error(event, now)
    error = error_object(refusal.body)
    return Answer(502, refusal.type or SERVER, refusal.code, refusal.message, error=error)


def failed(answer: Answer, response_id: str | None, now: float) -> Event:
    """The terminal event for a stream that has begun.

    A usage limit gets an ordinary code: the client tries again, and then meets the limit as a status it understands.
    """
    code = "account_limited" if answer.type == USAGE_LIMIT else answer.code or answer.type
    return failed_event(code, answer.message, response_id, int(now))

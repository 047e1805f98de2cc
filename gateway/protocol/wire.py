"""Errors as clients get them: JSON of an HTTP answer, a WebSocket error frame, `error` and `response.failed`."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from gateway.protocol.events import Event, read_event


def error_body(message: str, type: str, code: str | None, param: str | None = None, **extra: object) -> bytes:
    """The body of an HTTP error answer. `extra` members follow in the same object, such as `resets_at`."""
    error = {"message": message, "type": type, "code": code, "param": param, **extra}
    return msgspec.json.encode({"error": error})


def error_frame(
    status: int,
    message: str,
    type: str,
    code: str | None,
    headers: Mapping[str, str] | None = None,
    param: str | None = None,
    **extra: object,
) -> bytes:
    """The text of a WebSocket error frame; `headers` are what an HTTP answer would have had.

    `extra` members follow in the same object, such as `resets_at`. A `param` or `headers` of none is left out.
    Raises ValueError for a status that is not an error's: the client would pass over the frame and wait on.
    """
    if not 300 <= status <= 599:
        raise ValueError(f"An error frame needs an HTTP error status, not {status}.")
    error: dict[str, object] = {"type": type, "code": code, "message": message}
    if param is not None:
        error["param"] = param
    frame: dict[str, object] = {"type": "error", "status": status, "error": {**error, **extra}}
    if headers:
        frame["headers"] = headers
    return msgspec.json.encode(frame)


def error_event(code: str, message: str, param: str | None = None) -> Event:
    """An `error` event: the stream ends here, and nothing is said of the response. Its number is not known."""
    error = {"type": "error", "code": code, "message": message, "param": param, "sequence_number": None}
    return read_event(msgspec.json.encode(error))


def failed_event(code: str, message: str, response_id: str | None, created_at: float) -> Event:
    """A `response.failed` event for a response its upstream did not end; it must be the last of its turn.

    `response_id` is the upstream's, or None if it had told none: an id is never made up, as the client might
    continue from it. `created_at` is unix time.
    """
    response: dict[str, object] = {
        "id": response_id,
        "object": "response",
        "created_at": int(created_at),
        "status": "failed",
        "error": {"code": code, "message": message},
        "incomplete_details": None,
        "output": [],
    }
    return read_event(msgspec.json.encode({"type": "response.failed", "response": response}))

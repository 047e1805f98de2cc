"""A client's side of a conversation on a WebSocket, and of a stream of server-sent events."""

from __future__ import annotations

import json
from typing import Any

from websockets.asyncio.client import ClientConnection

from tests.support.records import HELLO

ENDS = frozenset(
    {"response.completed", "response.failed", "response.incomplete", "response.cancelled", "response.done"}
)

Event = dict[str, Any]


async def converse(socket: ClientConnection, **fields: object) -> list[Event]:
    """Send one `response.create` and read to the end of its answer: a terminal event or an error frame."""
    await socket.send(json.dumps({"type": "response.create", **HELLO, **fields}))
    events: list[Event] = []
    while not events or events[-1]["type"] not in ENDS | {"error"}:
        events.append(json.loads(await socket.recv()))
    return events


def response_id(events: list[Event]) -> str:
    """The id of the response that `events` ended with."""
    assert events[-1]["type"] == "response.completed", events[-1]
    found: str = events[-1]["response"]["id"]
    return found


def sse_events(body: str) -> list[Event]:
    """The events of a whole stream."""
    return [json.loads(line[6:]) for line in body.splitlines() if line.startswith("data: ")]


def types(events: list[Event]) -> list[str]:
    return [event["type"] for event in events]


def text_of(events: list[Event]) -> str:
    """The text that the events' deltas say."""
    return "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta")

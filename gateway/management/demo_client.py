"""The clients of the demo: one turn over server-sent events, one over a WebSocket, told as it streams."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import httpx
import websockets

TURN_LIMIT = 60.0


class TurnFailed(Exception):
    """A turn was refused or broke off. The message holds what the client was told."""


@dataclass(slots=True)
class Told:
    """What a client has received: seconds until the first event and until the last, and how many there were."""

    first_event: float = 0.0
    seconds: float = 0.0
    events: int = 0
    _began: float = field(default_factory=time.monotonic)

    def take(self, data: str, tell: Callable[[str], None]) -> bool:
        """Take in one event; whether it was the last. Raises `TurnFailed` for one that says so."""
        event = json.loads(data)
        self.seconds = time.monotonic() - self._began
        if not self.events:
            self.first_event = self.seconds
        self.events += 1
        match event.get("type"):
            case "response.output_text.delta":
                tell(event["delta"])
            case "response.completed":
                return True
            case "error" | "response.failed" | "response.incomplete":
                raise TurnFailed(f"The turn failed: {data}")
        return False


class DemoClient:
    """Sends turns to the gateway at `url` with `key`; `tell` gets each piece of the answer as it arrives.

    Turns over SSE are one conversation, turns over a WebSocket another.
    """

    def __init__(self, url: str, key: str, tell: Callable[[str], None]) -> None:
        self._url = url
        self._key = key
        self._tell = tell

    async def ask_over_sse(self, answer: str) -> Told:
        """One turn as an OpenAI SDK sends it; the simulated model says `answer`. Raises `TurnFailed`."""
        told = Told()
        with failures_told():
            async with (
                httpx.AsyncClient(trust_env=False, timeout=TURN_LIMIT, headers=self._headers("sse")) as client,
                client.stream("POST", f"{self._url}/v1/responses", json=body(answer)) as response,
            ):
                if response.status_code != httpx.codes.OK:
                    refusal = (await response.aread()).decode(errors="replace")
                    raise TurnFailed(f"The gateway answered {response.status_code}: {refusal}")
                async for line in response.aiter_lines():
                    if line.startswith("data: ") and told.take(line.removeprefix("data: "), self._tell):
                        return told
        raise TurnFailed("The stream ended before the answer did.")

    async def ask_over_websocket(self, answer: str) -> Told:
        """One turn as Codex sends it; the simulated model says `answer`. Raises `TurnFailed`."""
        url = self._url.replace("http", "ws", 1) + "/backend-api/codex/responses"
        headers = self._headers("websocket")
        told = Told()
        with failures_told():
            async with websockets.connect(url, additional_headers=headers, proxy=None) as connection:
                await connection.send(json.dumps({"type": "response.create", **body(answer)}))
                async for message in connection:
                    if told.take(str(message), self._tell):
                        return told
        raise TurnFailed("The WebSocket was closed before the answer ended.")

    def _headers(self, session: str) -> dict[str, str]:
        return {"authorization": f"Bearer {self._key}", "session-id": f"demo-{session}"}


@contextmanager
def failures_told() -> Iterator[None]:
    """What the client libraries raise, as `TurnFailed`."""
    try:
        yield
    except (httpx.HTTPError, websockets.WebSocketException, OSError) as error:
        raise TurnFailed(f"The connection to the gateway failed: {error!r}") from error


def body(answer: str) -> dict[str, object]:
    """A request; the simulator reads from its metadata what to say."""
    return {"model": "demo", "input": "Hello", "stream": True, "store": False, "metadata": {"sim_text": answer}}

"""Clients that behave as the Codex CLI does: deltas on a socket, full input after trouble, retries, HTTP in the end."""

from __future__ import annotations

import asyncio
from random import Random
from typing import TYPE_CHECKING

from tests.sim.clients.base import CODEX, Answer, Client, Json, Mood, Socket

if TYPE_CHECKING:
    from tests.sim.world import World

RETRIES = 5
TOOLS: list[Json] = [{"type": "function", "name": "shell", "parameters": {"type": "object"}, "strict": False}]
# Turns until a user starts over.
LONGEST = 8


class CodexClient(Client):
    """One thread of a Codex session. `websockets` says whether it tries them at all."""

    def __init__(
        self, world: World, name: str, key: str, key_id: int, random: Random, *, websockets: bool, session: str = ""
    ) -> None:
        super().__init__(world, name, key, key_id, random)
        self._websockets = websockets
        self._session = session
        self._threads = 0
        self._socket: Socket | None = None
        self._start_over()

    def _start_over(self) -> None:
        """A new conversation."""
        self._threads += 1
        self.hang_up()
        self._history: list[Json] = []
        self._turns = 0
        self._fallen_back = not self._websockets
        self._reasons = self.random.random() < 0.4
        self._previous: str | None = None
        self._sent = 0
        self._turn_state: str | None = None

    @property
    def _headers(self) -> dict[str, str]:
        session = self._session or f"{self.name}-{self._threads}"
        return {
            "session-id": session,
            "thread-id": f"{self.name}-{self._threads}",
            "originator": "codex_exec",
            "content-type": "application/json",
        }

    async def turn(self) -> None:
        """One turn of the user: what was said, and the tool calls that come of it."""
        self._turns += 1
        self._turn_state = None
        if self._turns > LONGEST or self.random.random() < 0.02:
            self._start_over()
        text = "run: ls" if self.random.random() < 0.25 else self.random.choice(("hello", "go on", "and then?"))
        self._history.append(_said(text))
        for _ in range(3):
            answer = await self._carry()
            if answer is None:
                self._start_over()
                return
            calls = [item for item in answer.items if item.get("type") == "function_call"]
            self._history += answer.items
            if not calls:
                return
            self._history += [
                {"type": "function_call_output", "call_id": call["call_id"], "output": "Output:\nfile"}
                for call in calls
            ]
            await asyncio.sleep(self.random.expovariate(2.0))

    async def _carry(self) -> Answer | None:
        """One request with the client's own retries; None when it has given up."""
        for attempt in range(RETRIES + 1):
            if not self.world.goes_on:
                return None
            answer = await (self._over_http() if self._fallen_back else self._over_socket())
            if answer.completed:
                self._turn_state = answer.turn_state or self._turn_state
                return answer
            if not await self._may_retry(answer, attempt):
                return None
        return None

    async def _may_retry(self, answer: Answer, attempt: int) -> bool:
        self.hang_up()
        if answer.code in ("previous_response_not_found", "websocket_connection_limit_reached"):
            await asyncio.sleep(0.2)
            return True
        if answer.kind == "usage_limit_reached":
            await asyncio.sleep(self.random.uniform(5, 60))
            return False
        if answer.status == 400 or answer.how == "response.incomplete":
            return False
        if answer.status in (429, 503) and answer.retry_after is not None:
            await asyncio.sleep(answer.retry_after)
            return True
        await asyncio.sleep(0.2 * 2**attempt)
        if attempt == RETRIES - 1:
            self._fallen_back = True
        return True

    async def _over_socket(self) -> Answer:
        if self._socket is None or self._socket.closed:
            self.hang_up()
            self._socket, status = await Socket.dial(self, CODEX, self._headers)
            if self._socket is None:
                self._fallen_back = self._fallen_back or status == 426
                return Answer(how="denied", status=status)
            if self.random.random() < 0.5:
                await self._prewarm(self._socket)
        if self._socket is None:
            return Answer(how="closed")
        return await self._ask(self._socket)

    async def _prewarm(self, socket: Socket) -> None:
        """Let the upstream know the beginning; what goes wrong here is silent."""
        asked = self.ask("websocket", socket.replica)
        socket.send(
            asked, self._body(asked.mark, [_said("instructions")]) | {"type": "response.create", "generate": False}
        )
        answer = await socket.answer()
        if answer.completed:
            self._previous, self._sent = answer.response_id, 0
        else:
            self.hang_up()

    async def _ask(self, socket: Socket) -> Answer:
        asked = self.ask("websocket", socket.replica, self._previous)
        items = self._history if self._previous is None else self._history[self._sent :]
        body = self._body(asked.mark, items) | {"type": "response.create"}
        if self._previous is not None:
            body["previous_response_id"] = self._previous
        socket.send(asked, body)
        answer = await socket.answer(Mood.draw(self.random, self.rude))
        if answer.completed:
            self._previous, self._sent = answer.response_id, len(self._history) + len(answer.items)
        return answer

    async def _over_http(self) -> Answer:
        asked = self.ask("sse", "")
        headers = self._headers
        if self._turn_state is not None:
            headers["x-codex-turn-state"] = self._turn_state
        body = self._body(asked.mark, self._history)
        return await self.post(CODEX, body, headers, Mood.draw(self.random, self.rude), asked)

    def _body(self, mark: str, items: list[Json]) -> Json:
        random = self.random
        metadata = {
            "sim_events": str(random.choice((1, 1, 2, 3))),
            "sim_interval": str(random.choice((0, 0, 0.05, 0.5))),
            "sim_reasoning": "1" if self._reasons else "0",
        }
        if self._turn_state is not None and not self._fallen_back:
            metadata["x-codex-turn-state"] = self._turn_state
        return {
            "model": "gpt-5.5",
            "stream": True,
            "input": items,
            "tools": TOOLS,
            "store": False,
            "include": ["reasoning.encrypted_content"],
            "prompt_cache_key": self._headers["session-id"],
            "metadata": {"mark": mark},
            "client_metadata": metadata,
        }

    def hang_up(self) -> None:
        if self._socket is not None:
            self._socket.end()
        self._socket = None
        self._previous = None
        self._sent = 0


def _said(text: str) -> Json:
    return {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}

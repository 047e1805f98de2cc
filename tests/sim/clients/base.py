"""What all simulated clients share: connections, one request over HTTP, one WebSocket, and what they make of events."""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Any

import msgspec

from tests.sim.book import Asked
from tests.sim.downstream import Downstream

if TYPE_CHECKING:
    from tests.sim.world import World

CODEX = "/backend-api/codex/responses"
V1 = "/v1/responses"
# Nobody waits for ever; a slow account would take a quarter of an hour for a long answer.
LONGEST_WAIT = 300.0
TERMINALS = frozenset({"response.completed", "response.failed", "response.incomplete", "response.cancelled"})
_TYPE = re.compile(rb'\s*\{\s*"type"\s*:\s*"([^"]*)"')
_DECODE = msgspec.json.Decoder(dict[str, Any]).decode

Json = dict[str, Any]


@dataclass(slots=True)
class Answer:
    """What a client has got for one request. `how` names its end: a terminal event, a status, a close, or `left`."""

    how: str = ""
    status: int = 0
    code: str = ""
    kind: str = ""
    retry_after: float | None = None
    response_id: str = ""
    items: list[Json] = field(default_factory=list)
    turn_state: str | None = None

    @property
    def completed(self) -> bool:
        return self.how == "response.completed"


@dataclass(slots=True)
class Mood:
    """What a client does besides waiting for its answer; times are seconds after it has asked.

    `stalls` is when it stops to read, and for how long. Without `leaves` it does so after `LONGEST_WAIT`.
    """

    leaves: float | None = None
    vanishes: float | None = None
    stalls: tuple[float, float] | None = None

    @staticmethod
    def draw(random: Random, rude: float) -> Mood:
        drawn = random.random()
        if drawn < rude:
            return Mood(leaves=random.expovariate(2.0))
        if drawn < rude * 1.3:
            return Mood(vanishes=random.expovariate(1.0))
        if drawn < rude * 1.8:
            return Mood.stalling(random, (1.0, 8.0, 60.0))
        return Mood(leaves=random.uniform(8, 60) if random.random() < 0.5 else None)

    @staticmethod
    def stalling(random: Random, lengths: Sequence[float]) -> Mood:
        """Reads nothing from the beginning or from some moment on; some have left by the end of it."""
        begin = random.choice((0.0, random.expovariate(4.0)))
        length = random.choice(lengths)
        return Mood(leaves=begin + random.uniform(0, length) if random.random() < 0.3 else None, stalls=(begin, length))


class Client:
    """One client with a key of its own. `live` is its whole life."""

    rude = 0.08

    def __init__(self, world: World, name: str, key: str, key_id: int, random: Random) -> None:
        self.world = world
        self.name = name
        self.key = key
        self.key_id = key_id
        self.random = random
        self._asked = 0

    async def live(self) -> None:
        """Ask until the world has had its turns."""
        await asyncio.sleep(self.random.uniform(0, 5))
        while self.world.goes_on:
            await self.turn()
            await asyncio.sleep(self.random.expovariate(1 / self.world.options.think))
        self.hang_up()

    def hang_up(self) -> None:
        """Leave no connection open."""

    async def turn(self) -> None:
        raise NotImplementedError

    def ask(self, transport: str, replica: str, previous: str | None = None) -> Asked:
        self._asked += 1
        mark = f"{self.name}.{self._asked}"
        return self.world.asked(Asked(mark, self.name, replica, transport, self.world.now, previous))

    def ended(self, asked: Asked, how: str) -> None:
        self.world.ended(asked, how)

    async def connect(
        self, kind: str, path: str, headers: Mapping[str, str], key: str | None = None
    ) -> Downstream | None:
        """A connection to some replica, or None when none takes it."""
        pairs = {"authorization": f"Bearer {self.key if key is None else key}", **headers}
        scope: Json = {
            "type": kind,
            "path": path,
            "method": "POST",
            "headers": [(name.encode(), value.encode()) for name, value in pairs.items()],
        }
        await asyncio.sleep(self.random.uniform(0.0005, 0.02))
        replica = self.world.balance(self.random, headers.get("session-id"))
        if replica is None:
            return None
        self.replica = replica.name
        return replica.connect(scope, self.random)

    def act_out(self, mood: Mood, connection: Downstream, asked: Sequence[Asked]) -> list[asyncio.TimerHandle]:
        """Set the timers of a mood; cancel what is returned when the request is over."""
        loop = asyncio.get_running_loop()
        timers: list[asyncio.TimerHandle] = []
        leaves = LONGEST_WAIT if mood.leaves is None else mood.leaves
        timers.append(loop.call_later(leaves, self._leave, connection.leave, asked))
        if mood.vanishes is not None:
            timers.append(loop.call_later(mood.vanishes, self._leave, connection.vanish, asked))
        if mood.stalls is not None:
            begin, length = mood.stalls
            timers.append(loop.call_later(begin, connection.pause))
            timers.append(loop.call_later(begin + length, connection.resume))
        return timers

    def _leave(self, go: Any, asked: Sequence[Asked]) -> None:
        for each in asked:
            each.left = True
        go()

    def read(self, data: bytes, asked: Asked, answer: Answer) -> bool:
        """Take one event; whether it was the last one of the request."""
        found = _TYPE.match(data)
        kind = "" if found is None else found[1].decode()
        world = self.world
        if kind == "response.created" or kind in TERMINALS:
            response = _DECODE(data)["response"]
            mark = (response.get("metadata") or {}).get("mark")
            if mark is not None and mark != asked.mark:
                world.violated("no foreign events", f"{asked.mark} got an event of {mark}", asked)
            answer.response_id = str(response.get("id") or "")
            if kind in TERMINALS:
                error = response.get("error") or {}
                answer.how, answer.code = kind, str(error.get("code") or "")
                return True
        elif kind == "response.output_item.done":
            answer.items.append(_DECODE(data)["item"])
        elif kind == "response.metadata":
            state = (_DECODE(data).get("headers") or {}).get("x-codex-turn-state")
            answer.turn_state = state or answer.turn_state
        elif kind == "error":
            return self._read_error(_DECODE(data), answer)
        return False

    def _read_error(self, frame: Json, answer: Answer) -> bool:
        error = frame.get("error") or {}
        answer.how, answer.status = "error", int(frame.get("status") or 0)
        answer.code, answer.kind = str(error.get("code") or ""), str(error.get("type") or "")
        after = (frame.get("headers") or {}).get("retry-after")
        answer.retry_after = None if after is None else float(after)
        return True

    async def post(self, path: str, body: Json, headers: Mapping[str, str], mood: Mood, asked: Asked) -> Answer:
        """One request over HTTP to its end; `Answer.how` is empty when no replica was there."""
        answer = Answer()
        connection = await self.connect("http", path, headers)
        if connection is None:
            self.ended(asked, "refused")
            return answer
        asked.replica = self.replica
        timers = self.act_out(mood, connection, [asked])
        self._send_body(connection, msgspec.json.encode(body))
        await self._read_response(connection, asked, answer)
        for timer in timers:
            timer.cancel()
        self.ended(asked, "left" if asked.left and not answer.how else answer.how or "cut off")
        connection.leave()
        return answer

    def _send_body(self, connection: Downstream, raw: bytes) -> None:
        at = self.random.randrange(len(raw)) if self.random.random() < 0.3 else 0
        if at:
            connection.say({"type": "http.request", "body": raw[:at], "more_body": True})
        connection.say({"type": "http.request", "body": raw[at:], "more_body": False})

    async def _read_response(self, connection: Downstream, asked: Asked, answer: Answer) -> None:
        buffer = bytearray()
        events = False
        complete = False
        while (message := await connection.next()) is not None:
            if message["type"] == "http.response.start":
                answer.status = message["status"]
                head = {name.decode().lower(): value.decode("latin-1") for name, value in message["headers"]}
                events = head.get("content-type", "").startswith("text/event-stream")
                answer.turn_state = head.get("x-codex-turn-state")
                answer.retry_after = float(head["retry-after"]) if "retry-after" in head else None
                self.world.told(asked, answer.status, message["headers"])
                continue
            if complete:
                self.world.violated("one terminal or a close", f"{asked.mark} got bytes after its end", asked)
            buffer += message["body"]
            self.world.heard(asked, message["body"])
            if events:
                self._read_events(buffer, asked, answer)
            complete = not message["more_body"]
        if complete and not events:
            self._read_document(bytes(buffer), asked, answer)
        elif complete and not answer.how:
            answer.how = "end without terminal"

    def _read_events(self, buffer: bytearray, asked: Asked, answer: Answer) -> None:
        while (end := buffer.find(b"\n\n")) >= 0:
            block = bytes(buffer[:end])
            del buffer[: end + 2]
            data = b"\n".join(line[5:].lstrip() for line in block.split(b"\n") if line.startswith(b"data:"))
            if not data:
                continue
            if answer.how:
                self.world.violated("one terminal or a close", f"{asked.mark} got an event after its terminal", asked)
            self.read(data, asked, answer)

    def _read_document(self, raw: bytes, asked: Asked, answer: Answer) -> None:
        document = _DECODE(raw)
        if answer.status == 200:
            mark = (document.get("metadata") or {}).get("mark")
            if mark != asked.mark:
                self.world.violated("no foreign events", f"{asked.mark} got the response of {mark}", asked)
            answer.how = f"response.{document.get('status')}"
            answer.response_id = str(document.get("id"))
            answer.items = list(document.get("output") or [])
        else:
            error = document.get("error") or {}
            answer.how, answer.code = str(answer.status), str(error.get("code") or "")
            answer.kind = str(error.get("type") or "")


class Socket:
    """A client's WebSocket: frames out, and their answers in order."""

    def __init__(self, client: Client, connection: Downstream, replica: str) -> None:
        self.client = client
        self.replica = replica
        self._connection = connection
        self._open: deque[Asked] = deque()

    @staticmethod
    async def dial(client: Client, path: str, headers: Mapping[str, str]) -> tuple[Socket | None, int]:
        """An accepted socket, or None and the status that it was denied with (0: nobody was there)."""
        connection = await client.connect("websocket", path, headers)
        if connection is None:
            return None, 0
        message = await connection.next()
        if message is not None and message["type"] == "websocket.accept":
            return Socket(client, connection, client.replica), 101
        connection.leave()
        return None, 0 if message is None else int(message.get("status", 403))

    @property
    def closed(self) -> bool:
        return self._connection.over or self._connection.gone

    def send(self, asked: Asked, body: Json) -> None:
        self._open.append(asked)
        self._connection.say({"type": "websocket.receive", "text": msgspec.json.encode(body).decode()})

    def send_raw(self, message: Json) -> None:
        self._connection.say({"type": "websocket.receive", **message})

    async def answer(self, mood: Mood | None = None) -> Answer:
        """The answer to the oldest frame that has none."""
        answer = Answer()
        asked = self._open[0]
        timers = [] if mood is None else self.client.act_out(mood, self._connection, list(self._open))
        while not answer.how:
            message = await self._connection.next()
            if message is None or message["type"] == "websocket.close":
                answer.how = "closed" if message is None else f"close {message['code']}"
                self.end("left" if asked.left and message is None else answer.how)
                break
            data = message["text"].encode()
            self.client.world.heard(asked, data)
            if self.client.read(data, asked, answer) and answer.code != "too_many_frames":
                self._open.popleft()
                self.client.ended(asked, answer.how)
        for timer in timers:
            timer.cancel()
        self._connection.resume()
        return answer

    def end(self, how: str = "left") -> None:
        """Leave, or note that the server has."""
        for asked in self._open:
            asked.left = asked.left or how == "left"
            self.client.ended(asked, how)
        self._open.clear()
        self._connection.leave()

    def silent(self) -> bool:
        """Whether nothing came since the last answer."""
        return not self._connection._inbox

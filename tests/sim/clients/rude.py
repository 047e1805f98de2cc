"""Clients that leave, stall, flood and send nonsense."""

from __future__ import annotations

import asyncio

from tests.sim.clients.base import CODEX, V1, Client, Json, Mood, Socket

NONSENSE: tuple[bytes, ...] = (b"", b"{", b"[]", b'{"model": 3}', b'{"type":"response.create","input":[', b"\xff\xfe")


class RudeClient(Client):
    """Does something else each time."""

    rude = 0.5

    async def turn(self) -> None:
        deeds = (
            self._flood,
            self._flood,
            self._nonsense,
            self._half_a_body,
            self._too_much,
            self._wrong_key,
            self._slow,
            self._slow,
            self._unread,
            self._unread,
            self._change_mind,
        )
        await self.random.choice(deeds)()

    def _body(self, mark: str, events: int = 3, size: int = 0, notes: int | None = None) -> Json:
        """`Client.read` needs the mark; the rest of the metadata is what makes the first event large, or does not."""
        count = self.random.choice((0, 0, 2, 10)) if notes is None else notes
        padding = {f"note-{number}": "n" * 500 for number in range(count)}
        return {
            "type": "response.create",
            "model": "gpt-5.5",
            "stream": True,
            "store": False,
            "input": [{"type": "message", "role": "user", "content": "hello"}],
            "metadata": {"mark": mark, "sim_events": str(events), "sim_bytes": str(size), **padding},
        }

    async def _flood(self) -> None:
        """Many frames at once, more than may wait; their answers may find those before them unread."""
        random = self.random
        socket, _ = await Socket.dial(self, CODEX, {})
        if socket is None:
            return
        asked = [self.ask("websocket", socket.replica) for _ in range(random.randint(2, 14))]
        # The smallest answer just fits into what a client that reads nothing can leave unread.
        events, size = random.choice(((1, 0), (1, 0), (3, 100), (3, 2000)))
        for each in asked:
            socket.send(each, self._body(each.mark, events, size))
        reads = random.random() < 0.4
        while socket._open and not socket.closed:
            await socket.answer(Mood.draw(random, 0.1) if reads else Mood.stalling(random, (8.0, 30.0)))
        socket.end()

    async def _nonsense(self) -> None:
        """Frames that are no requests; the socket must live on."""
        socket, _ = await Socket.dial(self, self.random.choice((CODEX, V1)), {})
        if socket is None:
            return
        raw = self.random.choice(NONSENSE)
        socket.send_raw({"bytes": raw} if self.random.random() < 0.3 else {"text": raw.decode("latin-1")})
        asked = self.ask("websocket", socket.replica)
        socket.send(asked, self._body(asked.mark))
        message = await socket._connection.next()
        if message is not None and message["type"] == "websocket.send":
            await socket.answer(Mood.draw(self.random, self.rude))
        socket.end()

    async def _change_mind(self) -> None:
        """The same question again and again, each time given up while it is being answered."""
        headers = {"session-id": self.name, "thread-id": f"{self.name}-{self._asked}"}
        for _ in range(self.random.randint(2, 8)):
            asked = self.ask("sse", "")
            body = {name: value for name, value in self._body(asked.mark, 200).items() if name != "type"}
            await self.post(CODEX, body, headers, Mood(leaves=self.random.uniform(0.05, 0.5)), asked)

    async def _half_a_body(self) -> None:
        """A request that is never finished."""
        connection = await self.connect("http", CODEX, {"content-length": "5000"})
        if connection is not None:
            connection.say({"type": "http.request", "body": b'{"model":', "more_body": True})
            await asyncio.sleep(self.random.choice((self.random.expovariate(1.0), 30.0)))
            connection.leave()

    async def _too_much(self) -> None:
        """A body over the limit."""
        limit = self.world.tunables.max_body_bytes
        connection = await self.connect("http", CODEX, {})
        if connection is None:
            return
        connection.say({"type": "http.request", "body": b" " * (limit + 1), "more_body": True})
        message = await connection.next()
        if message is not None and message.get("status") not in (400, 503):
            self.world.violated("body too large is refused", f"{self.name} was answered {message}", None)
        connection.leave()

    async def _wrong_key(self) -> None:
        connection = await self.connect("http", V1, {}, key="pm_none_none")
        if connection is None:
            return
        connection.say({"type": "http.request", "body": b"{}", "more_body": False})
        message = await connection.next()
        if message is not None and message.get("status") != 401:
            self.world.violated("a wrong key gets 401", f"{self.name} was answered {message}", None)
        connection.leave()

    async def _unread(self) -> None:
        """Not even the first event is read, and it is too large to be left unread; the answer may be a failure."""
        random = self.random
        asked = self.ask("sse", "")
        body = {name: value for name, value in self._body(asked.mark, 1, notes=10).items() if name != "type"}
        if random.random() < 0.5:
            body["metadata"]["meets"] = "response_failed:server_error"
        mood = Mood(leaves=random.uniform(0.5, 5) if random.random() < 0.5 else None, stalls=(0.0, 20.0))
        await self.post(random.choice((CODEX, V1)), body, {}, mood, asked)

    async def _slow(self) -> None:
        """Much is asked for and little is read."""
        random = self.random
        events, size = random.choice(((3, 0), (200, 1000), (40, 40_000)))
        mood = Mood.stalling(random, (2.0, 30.0, 90.0)) if random.random() < 0.7 else Mood.draw(random, self.rude)
        if random.random() < 0.5:
            asked = self.ask("sse", "")
            body = {name: value for name, value in self._body(asked.mark, events, size).items() if name != "type"}
            await self.post(random.choice((CODEX, V1)), body, {}, mood, asked)
            return
        socket, _ = await Socket.dial(self, random.choice((CODEX, V1)), {})
        if socket is None:
            return
        asked = self.ask("websocket", socket.replica)
        socket.send(asked, self._body(asked.mark, events, size))
        await socket.answer(mood)
        socket.end()

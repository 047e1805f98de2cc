"""Clients of the platform API: streams and documents over HTTP, and continuations of stored responses."""

from __future__ import annotations

import asyncio

from tests.sim.clients.base import V1, Client, Json, Mood


class SdkClient(Client):
    """Asks once and again, each time on its own or continuing what it got."""

    _last: str | None = None

    async def turn(self) -> None:
        random = self.random
        streams = random.random() < 0.6
        previous = self._last if random.random() < 0.5 else None
        asked = self.ask("sse" if streams else "json", "", previous)
        body: Json = {
            "model": "gpt-5.5",
            "input": random.choice(("hello", "what next?")),
            "stream": streams,
            "metadata": {"mark": asked.mark, "sim_events": random.choice(("1", "2", "40")), "sim_interval": "0.02"},
        }
        if previous is not None:
            body["previous_response_id"] = previous
        elif random.random() < 0.3:
            body["prompt_cache_key"] = self.name
        answer = await self.post(V1, body, {"content-type": "application/json"}, Mood.draw(random, self.rude), asked)
        self._last = answer.response_id if answer.completed else None
        if answer.retry_after is not None:
            await asyncio.sleep(answer.retry_after)
        elif answer.kind == "usage_limit_reached":
            await asyncio.sleep(random.uniform(5, 60))

"""The upstream of a world: the simulator's own code on the simulated network, with faults drawn for each request."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Collection, Mapping
from random import Random
from typing import Any

from accounts.credentials import OpenAICredentials
from accounts.tokens import Refreshed, Result
from gateway.clock import Clock
from gateway.simulator import SimulatedAccount, Simulator
from gateway.simulator.backend import Answer, Backend, Request
from gateway.simulator.observed import Observed, RequestRecord
from gateway.simulator.options import Options
from gateway.simulator.plan import Outcome, Step
from gateway.simulator.server import Faults
from tests.sim.store import SimStore

PORT = 80
WISH = re.compile(rb'"meets": ?"([^"]+)"')

# What can be drawn for one request, by the name it is switched on and off with: its weight, and how it is written.
REQUEST_FAULTS: Mapping[str, tuple[float, tuple[str, ...]]] = {
    "silence": (
        1.0,
        ("silent", "silent_after_created", "silent_then_close:1:1000", "silent/4", "silent_then_close:16:1011"),
    ),
    "dead-path": (0.7, ("no_pongs silent", "no_pongs slow:5", "no_pongs/2 slow:3", "no_pongs")),
    "close": (1.5, ("close:1000", "close:1011/3", "close:1001/created", "close:1009", "no_terminal")),
    "reset": (1.5, ("reset", "reset_before_created", "reset/4", "eof", "eof/start")),
    "pace": (1.0, ("slow:0.4", "slow:2", "split_chunks:7", "flood:300", "flood:3000")),
    "odd-events": (
        1.0,
        ("big_event:100000", "malformed_event", "extra_after_terminal", "extra_after_terminal", "big_event:300000"),
    ),
    "errors": (1.5, ("error_frame:500", "error_frame:400:invalid_prompt", "error_frame:500/3", "error_frame:403")),
    "failed": (
        2.5,
        ("response_failed:server_error", "response_failed:rate_limit_exceeded", "incomplete:max_output_tokens"),
    ),
    "limits": (0.8, ("usage_limit:8", "usage_limit:8", "usage_limit:90", "rate_limit:2", "rate_limit:2", "rate_limit")),
    "busy": (1.5, ("overloaded", "http:503:2", "http:500", "http:404", "http:403")),
    "unauthorized": (0.7, ("unauthorized", "unauthorized/start")),
    "rotation": (1.0, ("connection_limit", "previous_not_found", "previous_not_found")),
}
HANDSHAKE_FAULTS: Mapping[str, tuple[float, tuple[str, ...]]] = {
    "silence": (1.0, ("hang_handshake", "no_pongs/handshake")),
    "reset": (1.0, ("reset/handshake", "eof/handshake", "close:1011/handshake")),
    "busy": (1.0, ("handshake:503:2", "handshake:500", "handshake:403", "handshake:400", "overloaded/handshake")),
    "limits": (0.5, ("usage_limit:8/handshake", "usage_limit:90/handshake", "rate_limit:2/handshake")),
    "unauthorized": (0.5, ("unauthorized/handshake",)),
    "rotation": (0.05, ("handshake:426",)),
}
IDLE_FAULTS: Mapping[str, tuple[float, tuple[str, ...]]] = {
    "close": (1.0, ("close_idle:1001", "close_idle:1000")),
    "reset": (1.0, ("reset/idle", "eof/idle")),
    "odd-events": (1.0, ("idle_rate_limits",)),
    "dead-path": (0.5, ("no_pongs/idle",)),
}
NAMES = tuple(dict.fromkeys((*REQUEST_FAULTS, *HANDSHAKE_FAULTS, *IDLE_FAULTS)))


class Dice:
    """Draws faults of the names that are switched on, with one chance for all."""

    def __init__(
        self, random: Random, table: Mapping[str, tuple[float, tuple[str, ...]]], names: frozenset[str]
    ) -> None:
        self._random = random
        known = [(weight, texts) for name, (weight, texts) in table.items() if name in names]
        self._texts = [texts for _, texts in known]
        self._weights = [weight for weight, _ in known]

    def knows(self, text: str) -> bool:
        """Whether it can be drawn."""
        return any(text in texts for texts in self._texts)

    def draw(self, chance: float) -> str | None:
        if not self._texts or self._random.random() >= chance:
            return None
        (texts,) = self._random.choices(self._texts, self._weights)
        return self._random.choice(texts)


class WatchedObserved(Observed):
    """Tells of every request that ends."""

    def __init__(self, clock: Clock, over: Callable[[RequestRecord], None]) -> None:
        super().__init__(clock)
        self._over = over

    def ended(self, record: RequestRecord, outcome: Outcome) -> None:
        running = record.running
        super().ended(record, outcome)
        if running:
            self._over(record)


class WatchedBackend(Backend):
    """The simulator's state, with faults drawn for each request and handshake, and a witness of both."""

    def __init__(
        self,
        faults: Faults,
        clock: Clock,
        random: Random,
        names: frozenset[str],
        chance: float,
        arrived: Callable[[Request, RequestRecord], None],
        over: Callable[[RequestRecord], None],
    ) -> None:
        super().__init__({}, faults, Options(), clock)
        self.observed = WatchedObserved(clock, over)
        self.chance = chance
        self._requests = Dice(random, REQUEST_FAULTS, names)
        self._handshakes = Dice(random, HANDSHAKE_FAULTS, names)
        self._arrived = arrived

    def handshake(self, account: SimulatedAccount) -> tuple[Step, ...]:
        fault = self._handshakes.draw(self.chance)
        if fault is not None:
            self._add(fault, account.name)
        return super().handshake(account)

    def answer(self, request: Request, record: RequestRecord) -> Answer:
        fault = self._wish(request) or self._requests.draw(self.chance)
        if fault is not None:
            self._add(fault, request.account.name)
        self._arrived(request, record)
        answer = super().answer(request, record)
        # What did not meet this request would meet a later one, of which nobody would know why.
        self.faults.clear()
        return answer

    def _wish(self, request: Request) -> str | None:
        """The fault that the request itself names, for what is too rare when two things have to be drawn."""
        found = WISH.search(request.raw)
        wish = None if found is None else found[1].decode()
        return wish if wish is not None and self._requests.knows(wish) else None

    def _add(self, faults: str, account: str) -> None:
        for fault in faults.split():
            self.faults.add(_placed(fault, account))


def _placed(fault: str, account: str) -> str:
    """`fault`, once and for `account` alone; the position stays last."""
    text, mark, position = fault.partition("/")
    return f"{text}@{account}#1{mark}{position}"


class Upstream:
    """Accounts at the upstream, their tokens, and the server that knows them."""

    def __init__(self, backend: WatchedBackend, faults: Faults, random: Random) -> None:
        self.backend = backend
        self._random = random
        self._server = Simulator(port=PORT, clock=backend.clock)
        self._server.faults = faults
        self._server.backend = backend
        faults.subscribe(self._server._check_idle)
        self.accounts: dict[str, SimulatedAccount] = {}
        self._tokens: dict[str, str] = {}
        self._issued = 0
        backend.accounts = {}

    async def start(self) -> None:
        await self._server.__aenter__()

    async def stop(self) -> None:
        await self._server.__aexit__(None, None, None)

    def issue(self, name: str) -> str:
        """A new token of the account; the old one works no more."""
        self._issued += 1
        token = f"sim-token-{name}-{self._issued}"
        account = self.accounts.setdefault(name, SimulatedAccount(name))
        tokens: dict[str, SimulatedAccount] = self.backend.accounts  # type: ignore[assignment]
        tokens.pop(self._tokens.get(name, ""), None)
        tokens[token] = account
        self._tokens[name] = token
        return token

    def revoke(self, name: str) -> None:
        """The account's token works no more, and nobody has another one yet."""
        self.backend.accounts.pop(self._tokens.get(name, ""), None)  # type: ignore[union-attr]


class SimRefresher:
    """Renews tokens as an issuer would, once for all who ask at the same time; now and then it is out of reach."""

    def __init__(self, upstream: Upstream, store: SimStore, random: Random) -> None:
        self._upstream = upstream
        self._store = store
        self._random = random
        self._running: dict[int, asyncio.Task[Refreshed]] = {}

    async def refresh(self, account: int, refused: str | None = None) -> Refreshed:
        if account not in self._running:
            task = asyncio.ensure_future(self._refresh(account, refused))
            self._running[account] = task
            task.add_done_callback(lambda _: self._running.pop(account, None))
        return await asyncio.shield(self._running[account])

    async def _refresh(self, account: int, refused: str | None) -> Refreshed:
        await asyncio.sleep(self._random.uniform(0.01, 0.5))
        known = self._store.accounts.get(account)
        if known is None:
            return Refreshed(Result.REFUSED)
        current: Any = known.credentials
        if current is not None and current.bearer != refused:
            return Refreshed(Result.FRESH, current)
        drawn = self._random.random()
        if drawn < 0.1:
            return Refreshed(Result.LATER)
        if drawn < 0.2:
            return Refreshed(Result.NEEDS_LOGIN)
        fresh: Any = OpenAICredentials(self._upstream.issue(known.name))
        self._store.give_credentials(account, fresh)
        return Refreshed(Result.REFRESHED, fresh)

    async def keep(self, proxies: Collection[str]) -> None:
        """There are no connections."""

    async def close(self) -> None:
        await asyncio.gather(*self._running.values(), return_exceptions=True)

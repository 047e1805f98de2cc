"""Defects on purpose: parts of the gateway that do one thing wrong, to see that the simulation notices.

Each is put in the place of a real part when a runtime is assembled; nothing in the gateway knows of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

from accounts.registry import AccountSnapshot
from gateway.conf import Tunables
from gateway.diagnostics import Trace
from gateway.errors import ConnectFailed, GatewayError, OwnerGone, UpstreamLost
from gateway.protocol.events import Event
from gateway.runtime import REAL_PARTS, Parts
from gateway.turns.carriage import Carriage, Opened
from gateway.turns.health import Health, Trial
from gateway.turns.ledger import Ledger
from gateway.turns.permits import Permits
from gateway.turns.record import TurnRecord
from gateway.turns.request import TurnRequest
from gateway.turns.routing import Routed
from gateway.turns.slots import AccountStreams
from gateway.turns.turn import Blame, Cause, Outcome
from gateway.upstream.exchange import PassOn, Target
from gateway.upstream.lane import Lane, LaneExchange, LaneKey, LaneState
from gateway.upstream.peers import PeerAnswer, PeerTransport
from gateway.upstream.pool import LanePool


@dataclass(frozen=True)
class Planted:
    """One defect: what is assembled instead, and the promises of which it breaks one.

    One that shows only where a connection between replicas breaks is looked for where that happens `strain` times as
    often.
    """

    breaks: frozenset[str] = frozenset()
    parts: Parts = REAL_PARTS
    peers: type[PeerTransport] = PeerTransport
    tunables: Callable[[Tunables], Tunables] = lambda tunables: tunables
    strain: float = 1.0


NOTHING = Planted()
PLANTED: dict[str, Planted] = {}


def planted(name: str, *breaks: str, **parts: Any) -> None:
    PLANTED[name] = Planted(frozenset(breaks), replace(REAL_PARTS, **parts))


class _Exchanging(LanePool):
    """A pool whose exchanges are of another class."""

    exchange: type[LaneExchange] = LaneExchange

    async def borrow(self, key: LaneKey, target: Target, prefer: str | None = None) -> LaneExchange:
        return self.exchange((await super().borrow(key, target, prefer)).lane, self)

    async def borrow_owner(self, response_id: str, client: int, session: str) -> LaneExchange:
        return self.exchange((await super().borrow_owner(response_id, client, session)).lane, self)


class _SendsAgain(LaneExchange):
    async def receive(self, pass_on: PassOn | None = None) -> list[Event]:
        try:
            return await super().receive(pass_on)
        except UpstreamLost as error:
            raise ConnectFailed("The lane was lost.", code="lane_closed") from error


class SendsAgainAfterAReset(_Exchanging):
    exchange = _SendsAgain


planted("send again after a reset", "sent once", "pairs that can be", pool=SendsAgainAfterAReset)


class ReleasesBeforeTheClose(LanePool):
    async def give_back(self, lane: Lane, *, clean: bool) -> None:
        if clean or lane.state is LaneState.CLOSED:
            await super().give_back(lane, clean=clean)
        else:
            self._start_close(lane)


planted("release before the close", "capacity is work alive", pool=ReleasesBeforeTheClose)


class PublishesAfterFencing(LanePool):
    def publish(self, lane: Lane, response_id: str) -> bool:
        lane.anchor = response_id
        self._anchors[response_id] = lane
        return True


planted("publish after fencing", "fenced", pool=PublishesAfterFencing)


class DropsAWakeUp(AccountStreams):
    _releases = 0

    def release(self, account_id: int, taken_at: float) -> None:
        self._releases += 1
        if self._releases % 7 == 0:
            self._active[account_id] -= 1
        else:
            super().release(account_id, taken_at)


planted("drop one wake-up", "nothing waits past its timeout", streams=DropsAWakeUp)


class BlamesTheAccountForTheClient(Health):
    def failed(self, trial: Trial, cause: Cause, blame: Blame, error: GatewayError) -> None:
        if cause in (Cause.CLIENT_GONE, Cause.CLIENT_STALLED):
            super().failed(trial, Cause.UPSTREAM_LOST, Blame.EVIDENCE, error)
        else:
            super().failed(trial, cause, blame, error)


planted("blame the account for a client's abort", "fair blame", health=BlamesTheAccountForTheClient)


class ForgetsALaneOnCancellation(LanePool):
    async def _open(self, key: LaneKey, target: Target) -> LaneExchange:
        lane = await self._reserve(key)
        try:
            connection = await self._dial(target)
        except asyncio.CancelledError:
            raise
        except BaseException:
            self.lost(lane)
            raise
        lane.opened(connection, self._clock.monotonic())
        return LaneExchange(lane, self)


planted("forget a lane on cancellation while connecting", "capacity is work alive", pool=ForgetsALaneOnCancellation)


class ForgetsAPermitOnCancellation(Permits):
    async def wait(self, ticket: Any) -> None:
        try:
            await super().wait(ticket)
        except asyncio.CancelledError:
            self._waiters[ticket] = asyncio.get_running_loop().create_future()
            self.lost_tickets = {*getattr(self, "lost_tickets", ()), ticket}
            raise

    def give_back(self, ticket: Any, claim: Any) -> None:
        if ticket not in getattr(self, "lost_tickets", ()):
            super().give_back(ticket, claim)


planted(
    "forget a permit on cancellation while waiting",
    "capacity is work alive",
    "nothing waits past its timeout",
    "no defects",
    permits=ForgetsAPermitOnCancellation,
)


class ContinuesOnAnyLane(LanePool):
    def owner(self, response_id: str, client: int, session: str) -> Lane:
        try:
            return super().owner(response_id, client, session)
        except OwnerGone:
            others = [lane for lane in self if lane.state is LaneState.OPEN and lane.key.client == client]
            if not others:
                raise
            return others[0]


planted("continue on any lane of the client", "continued where it began", pool=ContinuesOnAnyLane)


class SendsBeforeItWrites(Ledger):
    async def open(self, record: TurnRecord) -> None:
        self._opening.append((record, asyncio.get_running_loop().create_future()))
        self._work.set()


planted("send before the ledger has the turn", "nothing lost", ledger=SendsBeforeItWrites)


class LosesAnEnd(Ledger):
    _closes = 0

    def close(self, record: TurnRecord) -> None:
        self._closes += 1
        if self._closes % 100:
            super().close(record)


planted("lose the end of a turn", "settled once", "nothing waits past its timeout", ledger=LosesAnEnd)


class SettlesTwice(Ledger):
    def close(self, record: TurnRecord) -> None:
        super().close(record)
        if record.outcome is Outcome.CLIENT_GONE:
            asyncio.get_running_loop().call_later(1.0, self._again, record)

    def _again(self, record: TurnRecord) -> None:
        record.outcome = Outcome.FAILED
        super().close(record)


planted("settle a turn twice", "settled once", ledger=SettlesTwice)


class TellsTheToken(Carriage):
    async def open(self, request: TurnRequest, routed: Routed, trace: Trace, *, may_continue: bool = True) -> Opened:
        try:
            return await super().open(request, routed, trace, may_continue=may_continue)
        except ConnectFailed as error:
            raise ConnectFailed(f"{error.message} {_bearer(routed.account)}", code=error.code) from error


def _bearer(account: AccountSnapshot) -> str:
    return "" if account.credentials is None else account.credentials.bearer


planted("tell the client the account's token", "nothing leaks", carriage=TellsTheToken)


class _CountsNothing(LaneExchange):
    def watch_backlog(self, grew: Callable[[int], None]) -> None:
        super().watch_backlog(lambda _: None)


class BoundsNothing(_Exchanging):
    exchange = _CountsNothing


planted("let a slow client's backlog grow", "bounded buffers", pool=BoundsNothing)


class CountsAStreamTooFew(AccountStreams):
    _releases = 0

    def release(self, account_id: int, taken_at: float) -> None:
        self._releases += 1
        super().release(account_id, taken_at)
        if self._releases % 50 == 0:
            super().release(account_id, taken_at)


planted("give a stream back twice", "capacity is work alive", "no defects", streams=CountsAStreamTooFew)


class IgnoresTheLimitOfLanes(LanePool):
    async def _reserve(self, key: LaneKey) -> Lane:
        lane = Lane(key, self._generations + 1, self)
        self._generations += 1
        self._lanes[key.account_id].add(lane)
        self._by_key[key].add(lane)
        self._by_session[key.session].add(lane)
        return lane


planted("dial beyond the limit of lanes", "capacity is work alive", pool=IgnoresTheLimitOfLanes)


class ReusesALaneThatFailed(LanePool):
    async def give_back(self, lane: Lane, *, clean: bool) -> None:
        await super().give_back(lane, clean=lane.state is LaneState.BUSY)


planted(
    "use a lane again though its response still runs",
    "no foreign events",
    "capacity is work alive",
    "no mixing of accounts",
    "continued where it began",
    pool=ReusesALaneThatFailed,
)


PLANTED["wait for a handshake without a limit"] = Planted(
    frozenset({"nothing waits past its timeout"}),
    tunables=lambda tunables: replace(tunables, connect_timeout=1e6, handshake_timeout=1e6, response_start_timeout=1e6),
)


class RunsHereWhatAnotherMayRun(PeerTransport):
    @asynccontextmanager
    async def post(self, url: str, headers: Mapping[str, str], body: bytes) -> AsyncIterator[PeerAnswer]:
        try:
            async with super().post(url, headers, body) as told:
                yield told
        except UpstreamLost as error:
            raise ConnectFailed(error.message) from error


PLANTED["carry a turn although another replica may have it"] = Planted(
    frozenset({"sent once", "settled once", "explained"}), peers=RunsHereWhatAnotherMayRun, strain=5
)

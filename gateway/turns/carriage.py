"""Opens what a routed turn borrows: a lane from the pool or an exchange over HTTP."""

from __future__ import annotations

from dataclasses import dataclass, replace

from accounts.states import Transport
from gateway.diagnostics import Trace
from gateway.errors import UpstreamRefused
from gateway.finish import finish_first
from gateway.protocol.chain import new_items
from gateway.protocol.events import Event
from gateway.turns.prepare import Delta, payload, unary_payload
from gateway.turns.request import Downstream, TurnRequest
from gateway.turns.routing import Routed, Router, credential_headers
from gateway.upstream.exchange import Exchange, Target
from gateway.upstream.headers import for_handshake, for_http, for_unary
from gateway.upstream.http import HttpTransport
from gateway.upstream.lane import LaneExchange, LaneKey
from gateway.upstream.pool import LanePool

# What an upstream answers to a WebSocket handshake when it does not know the protocol there.
NO_WEBSOCKET = frozenset({404, 405, 426, 501})


# Idle lanes whose chain is compared with a request; each comparison reads the whole input.
MOST_COMPARED = 4


@dataclass(frozen=True, slots=True)
class Opened:
    """A borrowed exchange (close it), what to send on it, and metadata that came while its lane was idle.

    `implicit` says that the gateway made the full request into a continuation; `lane` names the lane, if it is one.
    """

    exchange: Exchange
    payload: bytes
    idle_events: list[Event]
    implicit: bool = False
    lane: LaneKey | None = None


class Carriage:
    """Opens exchanges for every turn of the process."""

    def __init__(self, router: Router, pool: LanePool, http: HttpTransport) -> None:
        self._router = router
        self._pool = pool
        self._http = http

    async def open(self, request: TurnRequest, routed: Routed, trace: Trace, *, may_continue: bool = True) -> Opened:
        """Borrow or dial; nothing is sent. Raises `UpstreamError`, `OwnerUnavailable` or `Overloaded`.

        With `may_continue` a full request that extends what an idle lane holds is sent as a delta.
        """
        if not routed.on_lane:
            return self._open_http(request, routed, trace)
        try:
            return await self._open_lane(request, routed, trace, may_continue=may_continue)
        except UpstreamRefused as error:
            optional = routed.account.transport is Transport.AUTO and not request.body.is_delta
            if error.refusal.status not in NO_WEBSOCKET or not optional:
                raise
            self._router.without_websocket(routed.account)
            routed.attempt["transport"] = "http"
            return self._open_http(request, replace(routed, on_lane=False), trace)

    def _open_http(self, request: TurnRequest, routed: Routed, trace: Trace) -> Opened:
        account, operation = routed.account, request.operation
        if operation is not None:
            headers = for_unary(request.headers, credential_headers(account), routed.turn_state)
            target = Target(account.id, account.base_url, headers, trace, account.proxy)
            unary = self._http.unary(target, operation.method, operation.url(account.base_url))
            return Opened(unary, unary_payload(routed), [])
        headers = for_http(request.headers, credential_headers(account), routed.turn_state)
        exchange = self._http.exchange(
            Target(account.id, account.base_url, headers, trace, account.proxy),
            runs=request.downstream is Downstream.SSE,
        )
        return Opened(exchange, payload(routed), [])

    async def _open_lane(self, request: TurnRequest, routed: Routed, trace: Trace, *, may_continue: bool) -> Opened:
        previous = request.body.previous_response_id
        delta: Delta | None = None
        if previous is not None:
            exchange = await self._pool.borrow_owner(previous, request.key.id, request.lane_session)
        else:
            key = LaneKey(routed.account.id, request.key.id, request.lane_session)
            delta = self._find_delta(request, key) if may_continue else None
            exchange = await self._borrow(request, routed, trace, key, delta)
            if delta is not None and exchange.lane.anchor != delta.response_id:
                # Another lane had to be taken than the one that was found; it holds nothing of this conversation.
                delta = None
        try:
            events = await exchange.read_idle_events()
        except BaseException:  # whatever ended it, the borrowed lane goes back
            await finish_first(exchange.close(clean=False))
            raise
        return Opened(exchange, payload(routed, delta), events, delta is not None, exchange.lane.key)

    async def _borrow(
        self, request: TurnRequest, routed: Routed, trace: Trace, key: LaneKey, delta: Delta | None
    ) -> LaneExchange:
        account = routed.account
        if request.socket is not None:
            await self._pool.retire_session(request.socket, but=account.id)
        headers = for_handshake(request.headers, credential_headers(account))
        target = Target(account.id, account.base_url, headers, trace, account.proxy)
        return await self._pool.borrow(key, target, prefer=None if delta is None else delta.response_id)

    def _find_delta(self, request: TurnRequest, key: LaneKey) -> Delta | None:
        """The lane that already holds the beginning of this full request, as the delta that continues there."""
        if request.socket is not None:
            return None
        for lane in self._pool.idle(key)[:MOST_COMPARED]:
            if lane.chain is not None and lane.chain.response_id == lane.anchor:
                items = new_items(lane.chain, request.body)
                if items is not None:
                    return Delta(lane.chain.response_id, items)
        return None

"""Finds the replica that owns what a turn continues, and makes the signed request to it."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from gateway.clock import Clock
from gateway.continuity.leases import LeaseKey, Tenure, lease_key
from gateway.errors import LedgerUnavailable, OwnerGone
from gateway.forwarding.envelope import PATH, Envelope, Verifier, digest, pack, sign
from gateway.replicas.store import Peer
from gateway.storage import Store, StoreError
from gateway.turns.request import TurnRequest
from gateway.upstream.pool import LanePool

# An anchor is written a moment after its response has ended: a lookup that finds none looks once more after this.
ANCHOR_DELAY = 0.5


@dataclass(frozen=True, slots=True)
class Parcel:
    """A signed request to another replica."""

    url: str
    headers: Mapping[str, str]
    body: bytes


class Forwarder:
    """Knows where turns of this replica's clients belong."""

    def __init__(
        self,
        replica: uuid.UUID,
        keys: Sequence[bytes],
        store: Store,
        pool: LanePool,
        clock: Clock,
        peers: Callable[[], Sequence[Peer]],
        tenure: Callable[[LeaseKey], Tenure | None],
    ) -> None:
        self.verifier = Verifier(keys, replica)
        self._replica = replica
        self._keys = keys
        self._store = store
        self._pool = pool
        self._clock = clock
        self._peers = peers
        self._tenure = tenure

    async def owner_of(self, request: TurnRequest) -> Peer | None:
        """The other replica on whose lanes the turn goes on; None when it is at home here, or anywhere.

        Raises `LedgerUnavailable` when that cannot be looked up.
        """
        reachable = {peer.id: peer for peer in self._peers() if peer.url}
        if not reachable or not self._keys or request.socket is not None:
            return None
        if request.body.background or request.operation is not None:
            # These run on no lane.
            return None
        try:
            owner = await self._look_up(request)
        except StoreError as error:
            message = "The database cannot be used, so the owner of the conversation is not known; nothing was sent."
            raise LedgerUnavailable(message, retry_after=2) from error
        return None if owner is None else reachable.get(owner)

    async def _look_up(self, request: TurnRequest) -> uuid.UUID | None:
        previous = request.body.previous_response_id
        lease = None if request.session is None else lease_key(self._replica, request.key.id, request.lane_session)
        if previous is not None and self._is_here(request, previous):
            return None
        if previous is None and (lease is None or self._tenure(lease) is not None):
            return None
        owner = None if lease is None else await self._store.owner_of_session(lease)
        if previous is None or owner not in (None, self._replica):
            return owner
        return await self._patiently(lambda: self._store.owner_of_response(request.key.id, previous), request)

    async def _patiently(
        self, ask: Callable[[], Awaitable[uuid.UUID | None]], request: TurnRequest
    ) -> uuid.UUID | None:
        owner = await ask()
        stored = await self._store.find_response(request.key.id, request.body.previous_response_id or "")
        if owner is None and stored is None:
            await asyncio.sleep(ANCHOR_DELAY)
            owner = await ask()
        return owner

    def _is_here(self, request: TurnRequest, response_id: str) -> bool:
        try:
            self._pool.owner(response_id, request.key.id, request.lane_session)
        except OwnerGone:
            return False
        return True

    def parcel(self, request: TurnRequest, body: bytes, peer: Peer) -> Parcel:
        """The client's request, `body` being what it sent, for the replica that owns it."""
        packed = pack(request.headers, body)
        envelope = Envelope(
            origin=self._replica,
            target=peer.id,
            client=request.key.id,
            turn=request.id,
            route=request.route,
            sent_at=self._clock.wall(),
            nonce=self._clock.new_id().hex,
            digest=digest(packed),
        )
        headers = {**sign(self._keys[0], envelope), "content-type": "application/octet-stream"}
        return Parcel(peer.url + PATH, headers, packed)

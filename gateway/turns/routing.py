"""Which account carries a turn, and over which transport. Decides and reserves; opens nothing.

An account is chosen by `accounts.selection` from what is in memory; the stream it will carry is reserved in the same
step, so that two turns never count on the same place.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from math import ceil

from accounts.registry import AccountSnapshot, Registry
from accounts.selection import Candidate, Choice, Reason, SelectionRequest, choose, describe
from accounts.states import Kind, Transport
from gateway.clock import Clock
from gateway.continuity.responses import StoredResponses
from gateway.continuity.rules import Strength
from gateway.continuity.sessions import Session, SessionTable
from gateway.continuity.turn_states import TurnStates
from gateway.errors import AccountsLimited, GatewayError, InvalidBody, NoUsableAccount, Overloaded, OwnerGone
from gateway.protocol.headers import TURN_STATE
from gateway.turns.health import Health
from gateway.turns.record import Attempt
from gateway.turns.request import Downstream, TurnRequest
from gateway.turns.slots import AccountStreams, Offer, Stream
from gateway.turns.turn import BodyKind
from gateway.upstream.connection import MAX_FRAME
from gateway.upstream.pool import LanePool

# Seconds that a client can be asked to wait before it tries again; a longer rest is told as a limit with its end.
SHORT_REST = 60.0


# The account that stores a response of a client (the id of its key), by the ledger; None when it knows none.
FindStored = Callable[[int, str], Awaitable[int | None]]


@dataclass(slots=True)
class Tried:
    """What a turn has learned of accounts: those that refused it, and those that could not be reached."""

    refused: dict[int, str] = field(default_factory=dict)
    unreachable: dict[int, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Routed:
    """A turn's place: the account, the reserved stream (release it), whether it goes on a lane, and why.

    `moved` says that another account had the conversation before; `turn_state` is what this account may be shown.
    """

    account: AccountSnapshot
    stream: Stream
    on_lane: bool
    moved: bool
    turn_state: str | None
    attempt: Attempt


class Router:
    """Chooses for every turn of the process."""

    def __init__(
        self,
        registry: Registry,
        health: Health,
        sessions: SessionTable,
        streams: AccountStreams,
        pool: LanePool,
        clock: Clock,
        find_stored: FindStored,
    ) -> None:
        self._stored = StoredResponses()
        self._turn_states = TurnStates()
        self._find_stored = find_stored
        self._registry = registry
        self._health = health
        self._sessions = sessions
        self._streams = streams
        self._pool = pool
        self._clock = clock
        self._spread = 0
        self._used_accounts: dict[int, float] = {}
        self._without_websocket: set[tuple[int, str]] = set()

    async def route(self, request: TurnRequest, tried: Tried) -> Routed:
        """Choose and reserve, waiting while every account that could take the turn is full.

        Raises `OwnerGone`, `NoUsableAccount`, `AccountsLimited`, `Overloaded` or `InvalidBody`.
        """
        await self._look_up_owner(request)
        wanted = self._wanted(request)
        chosen: list[Choice] = []

        def offer() -> Offer:
            choice = self._choose(wanted, tried)
            chosen.append(choice)
            full = frozenset(passed.id for passed in choice.passed_over if passed.reason is Reason.FULL)
            if not choice.ranked and not full:
                error = self._nobody(choice, request)
                error.considered = considered(choice)
                raise error
            return Offer(choice.ranked, full)

        stream = await self._streams.take(request.key.id, offer)
        try:
            return self._routed(request, stream, chosen[-1], tried)
        except GatewayError:
            stream.release()
            raise

    def bind(self, request: TurnRequest, account_id: int) -> Session | None:
        """The account is about to receive the request: the conversation lives there now.

        Returns the session when it has to be written down together with the turn.
        """
        self._used_accounts[account_id] = self._clock.wall()
        if request.session is None:
            return None
        strength = Strength.SOFT if request.kind is BodyKind.FREE else Strength.HARD
        return self._sessions.bind(request.session, account_id, strength, self._clock.wall())

    def completed(self, request: TurnRequest, account_id: int, response_id: str) -> None:
        """The account stores the response that it has just completed over HTTP, unless it was told not to."""
        if request.body.store is not False:
            self._stored.remember(request.key.id, response_id, account_id)

    def take_used_accounts(self) -> dict[int, float]:
        """When accounts were last used (unix seconds), since this was last asked."""
        used, self._used_accounts = self._used_accounts, {}
        return used

    def without_websocket(self, account: AccountSnapshot) -> None:
        """The account's upstream speaks no WebSocket: from now on `auto` means HTTP for it."""
        self._without_websocket.add((account.id, account.base_url))

    def offers_websocket(self) -> bool:
        """Whether a client's WebSocket could be carried by a lane of any account."""
        accounts = self._registry.accounts
        return not accounts or any(
            account.transport is not Transport.HTTP and (account.id, account.base_url) not in self._without_websocket
            for account in accounts
        )

    def why_nobody(self, request: TurnRequest, tried: Tried) -> GatewayError | None:
        """Why no account is left that could take the turn, or None when there is one, if only after a wait."""
        choice = self._choose(self._wanted(request), tried)
        if choice.ranked or any(passed.reason is Reason.FULL for passed in choice.passed_over):
            return None
        return self._nobody(choice, request)

    def usable_elsewhere(self) -> bool:
        """Whether any account could take a turn now, were it not bound."""
        choice = self._choose(SelectionRequest(), Tried())
        return bool(choice.ranked) or any(passed.reason is Reason.FULL for passed in choice.passed_over)

    def _wanted(self, request: TurnRequest) -> SelectionRequest:
        model = request.body.model
        if request.body.previous_response_id is not None:
            return SelectionRequest(required=self._owner(request), model=model)
        session = None
        if request.session is not None:
            session = self._sessions.find(request.session, self._clock.wall())
        if session is None:
            return SelectionRequest(model=model)
        if request.kind is BodyKind.FREE:
            return SelectionRequest(preferred=session.account_id, model=model)
        return SelectionRequest(required=session.account_id, model=model)

    def _owner(self, request: TurnRequest) -> int:
        """The account of the response that the request continues: its lane's, or the one that stores it."""
        response_id = request.body.previous_response_id or ""
        try:
            return self._pool.owner(response_id, request.key.id, request.lane_session).key.account_id
        except OwnerGone:
            stored = self._stored.owner(request.key.id, response_id)
            if stored is None or request.body.store is False:
                raise
            return stored

    async def _look_up_owner(self, request: TurnRequest) -> None:
        """Ask the ledger, once, for the account of a stored response that this process has not seen."""
        response_id = request.body.previous_response_id
        if response_id is None or request.body.store is False or self._lane_continues(request):
            return
        if self._stored.owner(request.key.id, response_id) is None:
            account_id = await self._find_stored(request.key.id, response_id)
            if account_id is not None:
                self._stored.remember(request.key.id, response_id, account_id)

    def _lane_continues(self, request: TurnRequest) -> bool:
        """Whether the response that the request continues is on an open lane."""
        try:
            self._pool.owner(request.body.previous_response_id or "", request.key.id, request.lane_session)
        except OwnerGone:
            return False
        return True

    def _choose(self, wanted: SelectionRequest, tried: Tried) -> Choice:
        """Leave out accounts that refused; those that were out of reach come last, since others may be fine."""
        self._spread += 1
        for excluded in (tried.refused | tried.unreachable, tried.refused):
            choice = choose(
                [self._candidate(account) for account in self._registry.accounts],
                SelectionRequest(wanted.required, wanted.preferred, excluded, wanted.kind, wanted.model),
                self._clock.wall(),
                spread=self._spread,
            )
            if choice.ranked or not tried.unreachable:
                break
        return choice

    def _candidate(self, account: AccountSnapshot) -> Candidate:
        circuit, quota = self._health.circuits.get(account.id), self._health.quotas.get(account.id)
        return account.candidate(self._streams.active(account.id), 0, circuit, quota)

    def _routed(self, request: TurnRequest, stream: Stream, choice: Choice, tried: Tried) -> Routed:
        account = self._registry.get(stream.account_id)
        if account is None:
            raise NoUsableAccount("The account was removed while the turn waited for it.")
        session = None
        if request.session is not None:
            session = self._sessions.find(request.session, self._clock.wall())
        on_lane = self._on_lane(account, request)
        attempt = considered(choice)
        attempt["account"], attempt["transport"] = account.name, "websocket" if on_lane else "http"
        left = bool(tried.refused or tried.unreachable) or (session is not None and session.account_id != account.id)
        moved = left and request.kind is BodyKind.FREE
        return Routed(account, stream, on_lane, moved, self._turn_state(request, account.id, moved), attempt)

    def _turn_state(self, request: TurnRequest, account_id: int, moved: bool) -> str | None:
        """The request's turn state, unless another account issued it, or may have."""
        if request.turn_state is None:
            return None
        issuer = self._turn_states.issuer(request.turn_state)
        foreign = moved if issuer is None else issuer != account_id
        return None if foreign else request.turn_state

    def heard_turn_state(self, account_id: int, headers: Mapping[str, str]) -> None:
        """The account's headers, or those in an event of it, may hold turn state."""
        turn_state = headers.get(TURN_STATE)
        if turn_state:
            self._turn_states.issued(turn_state, account_id)

    def _on_lane(self, account: AccountSnapshot, request: TurnRequest) -> bool:
        fits = len(request.body.raw) < MAX_FRAME - 1024
        if request.body.is_delta and self._lane_continues(request):
            if not fits:
                raise InvalidBody(
                    "A request that continues a response must fit into a frame of 16 MiB; send the full input.",
                    code="body_too_large",
                )
            return True
        if request.body.is_delta:
            # The lane may have been lost while the turn waited; only a stored response can be continued without it.
            self._owner(request)
            return False
        if account.transport is not Transport.AUTO:
            return account.transport is Transport.WEBSOCKET and fits
        if (account.id, account.base_url) in self._without_websocket or not fits or request.body.background:
            return False
        return account.kind is Kind.CODEX or request.downstream is Downstream.WEBSOCKET

    def _nobody(self, choice: Choice, request: TurnRequest) -> GatewayError:
        """Why no account can take the turn, as the error the client gets."""
        if request.body.is_delta and self.usable_elsewhere():
            return OwnerGone(
                f"The account that owns this conversation cannot take it ({describe(choice)}); send the full input."
            )
        reasons = [passed.reason for passed in choice.passed_over if passed.reason is not Reason.NOT_OWNER]
        if choice.missing_owner is not None:
            return OwnerGone("The account that owns this conversation is no longer in the pool.")
        if Reason.LIMITED in reasons or Reason.MODEL_LIMITED in reasons:
            return self._limited(choice)
        if not reasons:
            return NoUsableAccount("No account yet: the operator adds one with `manage.py add_account`.")
        return NoUsableAccount(
            f"No account can take this request ({describe(choice)}); the operator can see why in the admin."
        )

    def _limited(self, choice: Choice) -> GatewayError:
        """Clients give up on a usage limit, so accounts that only rest for a moment are not called that."""
        resets_at = choice.resets_at
        if resets_at is not None and resets_at - self._clock.wall() <= SHORT_REST:
            return Overloaded(
                f"Every account rests for a moment ({describe(choice)}); no upstream was contacted.",
                code="accounts_resting",
                retry_after=max(1, ceil(resets_at - self._clock.wall())),
            )
        return AccountsLimited(
            f"The usage limit has been reached ({describe(choice)}).",
            resets_at=None if resets_at is None else int(resets_at),
        )


def considered(choice: Choice) -> Attempt:
    """What the ledger keeps of a choice: what it was made from, and the reason against each that was passed over."""
    return Attempt(chosen_from=describe(choice), passed_over={each.name: each.text for each in choice.passed_over})


def credential_headers(account: AccountSnapshot) -> Mapping[str, str]:
    """The headers that identify the account upstream."""
    credentials = account.credentials
    if credentials is None:
        raise NoUsableAccount(f"Account {account.name} has no credentials.")
    headers = {"authorization": f"Bearer {credentials.bearer}"}
    if account.account_id:
        headers["chatgpt-account-id"] = account.account_id
    return headers

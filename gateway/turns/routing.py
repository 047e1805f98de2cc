"""Which account carries a turn, and over which transport. Decides and reserves; opens nothing.

An account is chosen by `accounts.selection` from what is in memory; the stream it will carry is reserved in the same
step, so that two turns never count on the same place.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from math import ceil

import structlog

from accounts.registry import AccountSnapshot, Registry
from accounts.selection import Choice, Reason, SelectionRequest, describe
from accounts.states import Kind, Transport
from gateway.clock import Clock
from gateway.conf import variable
from gateway.continuity.sessions import Session
from gateway.errors import (
    AccountsLimited,
    ConnectFailed,
    ConversationStuck,
    GatewayError,
    InvalidBody,
    NoUsableAccount,
    Overloaded,
    OwnerGone,
)
from gateway.turns.choosing import Chooser, Tried
from gateway.turns.record import Attempt
from gateway.turns.request import Downstream, TurnRequest
from gateway.turns.slots import AccountStreams, Offer, Stream
from gateway.turns.ties import SHORT_REST, Leave, Tie, Ties, Why, without_thoughts
from gateway.turns.turn import BodyKind
from gateway.upstream.connection import MAX_FRAME

log = structlog.get_logger("gateway.turns")

# How often a turn looks again when its conversation was taken elsewhere at the same moment.
MOST_LOOKS = 3


@dataclass(frozen=True, slots=True)
class Routed:
    """A turn's place: the account, the reserved stream (release it), whether it goes on a lane, and why.

    `tie` is what the choice was made by, and holds the body to be sent. `moved` says that another account had the
    conversation before, `spilled` that it stays there nevertheless; `turn_state` is what this account may be shown.
    """

    account: AccountSnapshot
    stream: Stream
    on_lane: bool
    tie: Tie
    moved: bool
    spilled: bool
    turn_state: str | None
    attempt: Attempt


class Router:
    """Chooses for every turn of the process."""

    def __init__(
        self,
        registry: Registry,
        chooser: Chooser,
        ties: Ties,
        streams: AccountStreams,
        clock: Clock,
    ) -> None:
        self.ties = ties
        self._registry = registry
        self._chooser = chooser
        self._streams = streams
        self._clock = clock
        self._used_accounts: dict[int, float] = {}
        self._without_websocket: set[tuple[int, str]] = set()

    async def route(self, request: TurnRequest, tried: Tried) -> Routed:
        """Choose and reserve, waiting while every account that could take the turn is full.

        Raises `OwnerGone`, `OwnersDisagree`, `NoUsableAccount`, `AccountsLimited`, `Overloaded` or `InvalidBody`.
        """
        await self.ties.look_up(request)
        for _ in range(MOST_LOOKS):
            routed = await self._reserve(request, tried)
            leave = routed.tie.leave
            if leave is None:
                return routed
            try:
                left = await self.ties.depart(leave, routed.account.id)
            except BaseException:  # whatever ended it, the reserved stream goes back
                routed.stream.release()
                raise
            if left:
                tried.refused[leave.session.account_id] = f"left: {leave.why}"
                return self._departed(request, routed, leave)
            routed.stream.release()
        raise Overloaded("The conversation is being moved by another request; nothing was sent.", code="owner_changing")

    async def _reserve(self, request: TurnRequest, tried: Tried) -> Routed:
        """Choose by the tie that counts now, and reserve the account's stream."""
        chosen: list[tuple[Tie, Choice]] = []

        def offer() -> Offer:
            tie, choice = self._choose(request, tried)
            chosen.append((tie, choice))
            full = _full(choice)
            if not choice.ranked and not full:
                error = self._nobody(tie, choice, request)
                error.considered = considered(choice)
                raise error
            return Offer(choice.ranked, full)

        try:
            stream = await self._streams.take(request.key.id, offer)
        except Overloaded as error:
            choice = chosen[-1][1]
            message = f"No account became free in time ({describe(choice)}); no upstream was contacted."
            full = Overloaded(message, code=error.code, retry_after=error.retry_after)
            full.considered = considered(choice)
            raise full from error
        try:
            return self._routed(request, stream, *chosen[-1], tried)
        except GatewayError:
            stream.release()
            raise

    def _departed(self, request: TurnRequest, routed: Routed, leave: Leave) -> Routed:
        """The conversation has left its account for this one."""
        owner = self._registry.get(leave.session.account_id)
        name = f"account {leave.session.account_id}" if owner is None else owner.name
        routed.attempt["left"] = f"{name} by {leave.why}{_dropped(leave)}"
        log.warning(
            "conversation_left",
            turn=str(request.id),
            left=name,
            account=routed.account.name,
            why=str(leave.why),
            dropped=len(leave.dropped),
        )
        return routed

    def may_leave(self, request: TurnRequest, tried: Tried) -> bool:
        """Whether a turn whose hard owner has just refused it may take its conversation elsewhere."""
        fallback = self.ties.of(request).fallback
        if fallback is None or fallback.leave is None:
            return False
        choice = self._chosen_by(fallback, request, tried)
        return bool(choice.ranked or _full(choice))

    def bind(self, request: TurnRequest, routed: Routed) -> list[Session]:
        """The account is about to receive the request: the conversation lives there now.

        Returns the sessions that have to be written down together with the turn.
        """
        self._used_accounts[routed.account.id] = self._clock.wall()
        shown = routed.turn_state
        return self.ties.bind(request, routed.tie, routed.account.id, spilled=routed.spilled, shown=shown)

    @property
    def accounts(self) -> tuple[AccountSnapshot, ...]:
        """All accounts of the pool."""
        return self._registry.accounts

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
        tie, choice = self._choose(request, tried)
        return None if choice.ranked or _full(choice) else self._nobody(tie, choice, request)

    def out_of_reach(self, request: TurnRequest, tried: Tried, account_id: int, error: ConnectFailed) -> ConnectFailed:
        """The error for a turn whose last account could not be reached either: why none of the pool took it."""
        refused = {**tried.refused, **tried.unreachable, account_id: str(error.code)}
        choice = self._choose(request, Tried(refused))[1]
        return ConnectFailed(
            f"{error.message} No account can take the request ({describe(choice)}); nothing was sent.",
            code=error.code,
            resets_at=None if choice.resets_at is None else int(choice.resets_at),
        )

    def usable_elsewhere(self, request: TurnRequest) -> bool:
        """Whether any account could take the request now, were it not bound."""
        choice = self._chooser.choose(self._of_anybody(request), Tried())
        return bool(choice.ranked or _full(choice))

    def _of_anybody(self, request: TurnRequest) -> SelectionRequest:
        """What the request asks of whichever account takes it."""
        return SelectionRequest(
            kind=None if request.operation is None else request.operation.kind,
            model=request.body.model,
            allowed=request.key.accounts,
        )

    def _choose(self, request: TurnRequest, tried: Tried) -> tuple[Tie, Choice]:
        """Choose by the request's tie, and by its fallback where the tie's account cannot take the turn."""
        tie = self.ties.of(request)
        choice = self._chosen_by(tie, request, tried)
        if choice.ranked or _full(choice) or tie.fallback is None:
            return tie, choice
        instead = self._chosen_by(tie.fallback, request, tried)
        if tie.fallback.leave is not None and not instead.ranked and not _full(instead):
            return tie, choice
        return tie.fallback, instead

    def _chosen_by(self, tie: Tie, request: TurnRequest, tried: Tried) -> Choice:
        required, preferred = (tie.account, None) if tie.hard else (None, tie.account)
        left = {} if tie.leave is None else {tie.leave.session.account_id: f"left: {tie.leave.why}"}
        wanted = replace(self._of_anybody(request), required=required, preferred=preferred, excluded=left)
        return self._chooser.choose(wanted, tried)

    def _routed(self, request: TurnRequest, stream: Stream, tie: Tie, choice: Choice, tried: Tried) -> Routed:
        account = self._registry.get(stream.account_id)
        if account is None:
            raise NoUsableAccount("The account was removed while the turn waited for it.")
        session = self.ties.session(request)
        on_lane = self._on_lane(account, request)
        attempt = considered(choice)
        attempt["account"], attempt["transport"] = account.name, "websocket" if on_lane else "http"
        left = bool(tried.refused or tried.unreachable) or (session is not None and session.account_id != account.id)
        moved = left and tie.kind is BodyKind.FREE
        return Routed(
            account=account,
            stream=stream,
            on_lane=on_lane,
            tie=tie,
            moved=moved,
            # What reads encrypted content has to be known before the client has any, and other replicas hear of it.
            spilled=not request.body.asks_for_sealed and self._spills(tie, choice, tried, account.id),
            turn_state=self.ties.turn_state(request, account.id),
            attempt=attempt,
        )

    def _spills(self, tie: Tie, choice: Choice, tried: Tried, account_id: int) -> bool:
        """Whether the turn only passes by a conversation's account that is out for a moment: full, or out of reach."""
        if tie.hard or tie.account is None or tie.account == account_id:
            return False
        if tie.account in tried.unreachable:
            return True
        against = next((passed for passed in choice.passed_over if passed.id == tie.account), None)
        if against is None:
            return False
        rests = against.until is not None and against.until <= self._clock.wall() + SHORT_REST
        return against.reason is Reason.FULL or (against.reason is Reason.LIMITED and rests)

    def _on_lane(self, account: AccountSnapshot, request: TurnRequest) -> bool:
        if request.operation is not None:
            return False
        fits = len(request.body.raw) < MAX_FRAME - 1024
        if request.body.is_delta and self.ties.lane_continues(request):
            if not fits:
                raise InvalidBody(
                    "A request that continues a response must fit into a frame of 16 MiB; send the full input.",
                    code="body_too_large",
                )
            return True
        if request.body.is_delta:
            # The lane may have been lost while the turn waited; only a stored response can be continued without it.
            self.ties.response_owner(request)
            return False
        if account.transport is not Transport.AUTO:
            return account.transport is Transport.WEBSOCKET and fits
        if (account.id, account.base_url) in self._without_websocket or not fits or request.body.background:
            return False
        return account.kind is Kind.CODEX or request.downstream is Downstream.WEBSOCKET

    def _nobody(self, tie: Tie, choice: Choice, request: TurnRequest) -> GatewayError:
        """Why no account can take the turn, as the error the client gets."""
        if request.body.is_delta and self.usable_elsewhere(request):
            return OwnerGone(
                f"The account that owns this conversation cannot take it ({describe(choice)}); send the full input."
            )
        if tie.kind is BodyKind.BOUND and tie.account is not None:
            return self._stuck(tie, choice, request)
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

    def _stuck(self, tie: Tie, choice: Choice, request: TurnRequest) -> GatewayError:
        """Why a conversation cannot go on with its account, until when, and what would let it go elsewhere."""
        against = next((passed for passed in choice.passed_over if passed.id == tie.account), None)
        if against is not None and against.until is not None and against.until <= self._clock.wall() + SHORT_REST:
            return self._limited(choice)
        why = "no longer in the pool" if against is None else against.text
        told = f"This conversation is tied to an account that cannot take it ({why}). {self._way_out(tie, request)}"
        if against is not None and against.until is not None:
            until = datetime.fromtimestamp(against.until, UTC)
            return AccountsLimited(
                f"{told} The account is back at {until:%Y-%m-%d %H:%M} UTC.", resets_at=int(against.until)
            )
        return ConversationStuck(told)

    def _way_out(self, tie: Tie, request: TurnRequest) -> str:
        """What the setting for migration has to do with it."""
        setting = variable("migrate_conversations")
        helps = request.session is not None and without_thoughts(tie.body) is not None
        if self.ties.migrates(request):
            return "" if helps else "More than reasoning that only that account can read ties it, so it cannot migrate."
        if helps:
            return f"{setting} is off; on, it would go on with another account, without the model's earlier reasoning."
        return f"{setting} is off; it would not help here, where more than reasoning ties the request to the account."

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


def _full(choice: Choice) -> frozenset[int]:
    return frozenset(passed.id for passed in choice.passed_over if passed.reason is Reason.FULL)


def _dropped(leave: Leave) -> str:
    if leave.why is not Why.MIGRATION:
        return ""
    return f", reasoning dropped ({len(leave.dropped)} items)" if leave.dropped else ", nothing dropped"


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

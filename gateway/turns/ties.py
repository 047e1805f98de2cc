"""Which account a turn belongs to, how strongly, and when it may leave it. Decides and remembers; reserves nothing.

Hard evidence in the request comes first, and all of it must agree: turn state, the response it continues, a stored
conversation, files, encrypted content. Then comes what the conversation is called.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, replace
from enum import StrEnum

from accounts.registry import AccountSnapshot, Registry
from accounts.states import Kind, State
from gateway.clock import Clock
from gateway.continuity.responses import StoredResponses
from gateway.continuity.rules import (
    OwnersDiffer,
    Piece,
    SessionKey,
    SessionKind,
    Strength,
    agreed_owner,
    evidence_keys,
    file_key,
    turn_state_key,
)
from gateway.continuity.sealed import SealedContent
from gateway.continuity.sessions import Departure, Session, SessionTable
from gateway.errors import OwnerGone, OwnersDisagree
from gateway.protocol.body import Body, Bound, parse_body, without_reasoning
from gateway.protocol.goal import restarts_goal
from gateway.turns.request import TurnRequest
from gateway.turns.turn import BodyKind
from gateway.upstream.pool import LanePool

# A limit that ends within so many seconds is waited for, and is no reason to leave.
SHORT_REST = 60.0
# An account that is back within so many seconds keeps its conversations, also where they may migrate.
MIGRATION_PATIENCE = 600.0


class Why(StrEnum):
    """By what authority a conversation leaves a hard owner. It is the request's own and ends with it."""

    GOAL = "goal restart"
    MIGRATION = "migration"


# The store is asked for so many names of one request at most; a request with more of them is odd.
MAX_LOOKUPS = 16


@dataclass(frozen=True, slots=True)
class Leave:
    """Permission for one request to take its conversation, `session`, away from an account that cannot be used.

    `dropped` are the fingerprints of what stays behind; `not_before` is the time (unix seconds) until which the
    account must be out of use for the permission to hold.
    """

    session: Session
    why: Why
    not_before: float
    dropped: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Tie:
    """Where a turn belongs, as things are now.

    `hard`: no other account may take it. `kind` is what may become of it when an attempt fails, and `body` what is
    sent. `fallback` is the tie that counts instead when this one's account cannot take the turn.
    """

    body: Body
    kind: BodyKind
    account: int | None = None
    hard: bool = False
    fallback: Tie | None = None
    leave: Leave | None = None


@dataclass(frozen=True, slots=True)
class Records:
    """What has to be asked of the store. `depart` says whether the departure was still permitted, and so was done."""

    find_response: Callable[[int, str], Awaitable[int | None]]
    find_session: Callable[[SessionKey], Awaitable[Session | None]]
    depart: Callable[[Departure], Awaitable[bool]]


class Ties:
    """Every tie that this process knows."""

    def __init__(
        self, sessions: SessionTable, registry: Registry, pool: LanePool, clock: Clock, records: Records, migrate: bool
    ) -> None:
        self._sessions = sessions
        self._registry = registry
        self._pool = pool
        self._clock = clock
        self._records = records
        self._migrate = migrate
        self._stored = StoredResponses()
        self._sealed = SealedContent()

    async def look_up(self, request: TurnRequest) -> None:
        """Ask the store for what this process has not seen: the account of a stored response, or of a conversation."""
        await self._look_up_sessions(request)
        response_id = request.body.previous_response_id
        if response_id is None or request.body.store is False or self.lane_continues(request):
            return
        if self._stored.owner(request.key.id, response_id) is None:
            account_id = await self._records.find_response(request.key.id, response_id)
            if account_id is not None:
                self._stored.remember(request.key.id, response_id, account_id)

    async def _look_up_sessions(self, request: TurnRequest) -> None:
        """Another process may have had the conversation, or its turn, a moment ago; what is bound is that account's."""
        for key in self._unseen(request)[:MAX_LOOKUPS]:
            if (found := await self._records.find_session(key)) is not None:
                self._sessions.learn([found])

    def _unseen(self, request: TurnRequest) -> list[SessionKey]:
        """What the store may know better than this process, which hears once a second of what others have carried.

        A conversation that is known here has been elsewhere when it brings encrypted content that nobody sent here. A
        prewarm says nothing of what its conversation needs, and the delta after it goes wherever the prewarm went.
        """
        client, body, session = request.key.id, request.body, self.session(request)
        if body.generate and not body.bound and request.turn_state is None:
            return []
        now = self._clock.wall()
        left = frozenset() if session is None else session.left_behind
        sealed = {value for kind, value in body.references if kind is Bound.ENCRYPTED_CONTENT} - left
        strange = any(self._sealed.maker(client, value) is None for value in sealed)
        hard = session is not None and session.strength is Strength.HARD
        unsure = session is None or strange or not (body.generate or hard)
        unseen = [request.session] if request.session is not None and unsure else []
        evidence = evidence_keys(client, request.turn_state, body)
        return unseen + [key for key in evidence if self._sessions.find(key, now) is None]

    def began(self, request: TurnRequest, account_id: int, response_id: str) -> None:
        """The account runs this response in the background, and stores it from its beginning."""
        self._stored.remember(request.key.id, response_id, account_id)

    def storing_account(self, client: int, response_id: str) -> int | None:
        """The account that stores a response of this client, as far as this process has seen it."""
        return self._stored.owner(client, response_id)

    def of(self, request: TurnRequest) -> Tie:
        """The tie of a request; raises `OwnersDisagree`, or `OwnerGone` for a continuation whose lane is no more."""
        session = self.session(request)
        body = _without_left(request.body, session)
        state = self._turn_state_piece(request)
        held = self._pieces(request, body)
        tied = None if session is None else session.account_id
        is_hard = session is not None and session.strength is Strength.HARD
        if body.is_delta:
            held.insert(0, Piece("previous_response_id", self.response_owner(request)))
            return Tie(body, BodyKind.DELTA, _agreed([*held, *state], None), hard=True)
        owner = _agreed([*held, *state], tied if is_hard else None)
        if held:
            owner = tied if owner is None else owner
            tie = Tie(body, BodyKind.BOUND, owner, hard=owner is not None)
            return self._with_way_out(request, tie, session)
        if self._is_gone(tied):
            # What nobody can be asked for any more is needed by no request that brings everything.
            session, tied, is_hard = None, None, False
        soft = Tie(body, BodyKind.FREE, None if is_hard else tied)
        if state and (is_hard or request.session is None):
            return self._with_way_out(request, Tie(body, BodyKind.BOUND, owner, hard=True), None)
        if state:
            return Tie(body, BodyKind.FREE, owner, hard=True, fallback=soft)
        if is_hard:
            return self._with_way_out(request, Tie(body, BodyKind.BOUND, tied, hard=True), session)
        return soft

    def session(self, request: TurnRequest) -> Session | None:
        """What is known of the conversation that the request names."""
        return None if request.session is None else self._sessions.find(request.session, self._clock.wall())

    def migrates(self, request: TurnRequest) -> bool:
        """Whether the client's conversations may migrate: as its key says, else as the setting does."""
        return self._migrate if request.key.migrates is None else request.key.migrates

    def turn_state(self, request: TurnRequest, account_id: int) -> str | None:
        """The request's turn state, if this account is known to have issued it: nothing in the request needs it.

        Who has issued it may not be written down yet, so that it stays where the conversation is says nothing: its turn
        may have been spilled.
        """
        if request.turn_state is None:
            return None
        known = self._sessions.find(turn_state_key(request.key.id, request.turn_state), self._clock.wall())
        return request.turn_state if known is not None and known.account_id == account_id else None

    async def depart(self, leave: Leave, account_id: int) -> bool:
        """Take the conversation to `account_id`, if nothing has changed that speaks against it; whether it went.

        If it did not, what is stored now is known here afterwards.
        """
        before = leave.session
        left = before.left_behind | leave.dropped
        after = Session(before.key, account_id, Strength.SOFT, self._clock.wall(), left)
        done = await self._records.depart(Departure(before, after, leave.not_before))
        current = after if done else await self._records.find_session(before.key)
        if current is None:
            self._sessions.forget([before.key])
        else:
            self._sessions.replace(current)
        return done

    def bind(
        self, request: TurnRequest, tie: Tie, account_id: int, *, spilled: bool, shown: str | None
    ) -> list[Session]:
        """The account is about to receive the request: what is bound in it is the account's from now on.

        Returns the sessions that have to be written down together with the turn. A turn that was `spilled` leaves
        its conversation where it is. `shown` is the turn state that the account gets to see.
        """
        now, client, before = self._clock.wall(), request.key.id, self.session(request)
        changed: list[Session | None] = []
        if request.session is not None and not spilled:
            self._pool.replace(client, request.lane_session, account_id)
            needs = tie.body.bound - {Bound.PREVIOUS_RESPONSE}
            strength = Strength.HARD if needs else Strength.SOFT
            changed.append(self._sessions.bind(request.session, account_id, strength, now))
        for key in evidence_keys(client, request.turn_state, tie.body):
            known = self._sessions.find(key, now)
            if key.kind is SessionKind.TURN_STATE and shown is None:
                # Its issuer, or who had the conversation when nobody here has heard who issued it, keeps it.
                issuer = known or before
                if issuer is not None and issuer.account_id != account_id:
                    changed.append(self._sessions.bind(key, issuer.account_id, Strength.LEFT, now))
            else:
                changed.append(self._sessions.bind(key, account_id, Strength.HARD, now))
        for kind, value in tie.body.references:
            if kind is Bound.ENCRYPTED_CONTENT and self._sealed.maker(client, value) is None:
                self._sealed.made(client, value, account_id)
        return [session for session in changed if session is not None]

    def heard_turn_state(self, request: TurnRequest, account_id: int, turn_state: str) -> Session | None:
        """The account has issued this turn state; the session to be written down for it, if any."""
        key = turn_state_key(request.key.id, turn_state)
        return self._sessions.bind(key, account_id, Strength.HARD, self._clock.wall())

    def heard_file(self, request: TurnRequest, account_id: int, file: str) -> Session | None:
        """The account has this file, which it was given or has told about."""
        key = file_key(request.key.id, file)
        return self._sessions.bind(key, account_id, Strength.HARD, self._clock.wall())

    def heard_item(self, request: TurnRequest, account_id: int, sealed: str | None) -> Session | None:
        """The account has made an item that no other account can read, with a fingerprint if it is sealed content."""
        if sealed is not None:
            self._sealed.made(request.key.id, sealed, account_id)
        if request.session is None:
            return None
        return self._sessions.bind(request.session, account_id, Strength.HARD, self._clock.wall())

    def completed(self, request: TurnRequest, account_id: int, response_id: str) -> None:
        """The account stores the response that it has just completed over HTTP, unless it was told not to."""
        if self._stores(request, account_id):
            self._stored.remember(request.key.id, response_id, account_id)

    def response_owner(self, request: TurnRequest) -> int:
        """The account of the response that the request continues: its lane's, or the one that stores it."""
        response_id = request.body.previous_response_id or ""
        try:
            return self._pool.owner(response_id, request.key.id, request.lane_session).key.account_id
        except OwnerGone:
            stored = self._stored.owner(request.key.id, response_id)
            if stored is None or not self._stores(request, stored):
                raise
            return stored

    def _stores(self, request: TurnRequest, account_id: int) -> bool:
        """Whether the account keeps its responses to such a request; a sign-in keeps none that does not ask for it."""
        account, store = self._registry.get(account_id), request.body.store
        return store if store is not None else account is None or account.kind is not Kind.CODEX

    def lane_continues(self, request: TurnRequest) -> bool:
        """Whether the response that the request continues is on an open lane."""
        try:
            self._pool.owner(request.body.previous_response_id or "", request.key.id, request.lane_session)
        except OwnerGone:
            return False
        return True

    def _turn_state_piece(self, request: TurnRequest) -> list[Piece]:
        """Turn state whose issuer is known, unless its turn has gone on elsewhere."""
        if request.turn_state is None:
            return []
        known = self._sessions.find(turn_state_key(request.key.id, request.turn_state), self._clock.wall())
        issued = known is not None and known.strength is Strength.HARD
        return [Piece("turn state", known.account_id)] if known is not None and issued else []

    def _pieces(self, request: TurnRequest, body: Body) -> list[Piece]:
        """What binds the body, apart from the response that it continues, with the owner where one is known."""
        client, now = request.key.id, self._clock.wall()
        known: dict[SessionKey, Session | None] = {
            key: self._sessions.find(key, now) for key in evidence_keys(client, None, body)
        }
        pieces = [Piece(key.kind, None if each is None else each.account_id) for key, each in known.items()]
        sealed = [value for kind, value in body.references if kind is Bound.ENCRYPTED_CONTENT]
        pieces += [Piece("encrypted content", self._sealed.maker(client, value)) for value in sealed]
        unnamed = body.bound - {each.kind for each in body.references} - {Bound.PREVIOUS_RESPONSE}
        return pieces + [Piece(reason.value, None) for reason in sorted(unnamed, key=lambda reason: reason.value)]

    def _with_way_out(self, request: TurnRequest, tie: Tie, session: Session | None) -> Tie:
        """The tie, with the fallback that a goal restart or migration gives it."""
        scope = request.key.accounts
        outside = scope is not None and tie.account not in scope
        if session is None or tie.account != session.account_id or outside or self._turn_state_piece(request):
            return tie
        now = self._clock.wall()
        if self.is_usable_by(tie.account, now + SHORT_REST):
            return tie
        if restarts_goal(tie.body):
            leave = Leave(session, Why.GOAL, now + SHORT_REST)
            return replace(tie, fallback=Tie(tie.body, BodyKind.FREE, leave=leave))
        if not self.migrates(request) or self.is_usable_by(tie.account, now + MIGRATION_PATIENCE):
            return tie
        moved = without_thoughts(tie.body)
        if moved is None:
            return tie
        body, dropped = moved
        leave = Leave(session, Why.MIGRATION, now + MIGRATION_PATIENCE, dropped)
        return replace(tie, fallback=Tie(body, BodyKind.FREE, leave=leave))

    def is_usable_by(self, account_id: int | None, moment: float) -> bool:
        """Whether the account can be used at `moment` (unix seconds), as far as is known now."""
        account = self._account(account_id)
        return account is not None and account.state_at(moment) is State.ACTIVE

    def _is_gone(self, account_id: int | None) -> bool:
        return account_id is not None and self._account(account_id) is None

    def _account(self, account_id: int | None) -> AccountSnapshot | None:
        return None if account_id is None else self._registry.get(account_id)


def without_thoughts(body: Body) -> tuple[Body, frozenset[str]] | None:
    """The body without its reasoning, if nothing else in it is bound, and the fingerprints of what was dropped."""
    if body.is_delta:
        return None
    if not body.is_bound:
        return body, frozenset()
    text, dropped = without_reasoning(body)
    rest = parse_body(text)
    return None if rest.is_bound else (rest, dropped)


def _without_left(body: Body, session: Session | None) -> Body:
    """The body without reasoning that was left behind with an earlier account of the conversation."""
    if session is None or not session.left_behind or body.is_delta:
        return body
    sealed = {each.value for each in body.references if each.kind is Bound.ENCRYPTED_CONTENT}
    if not sealed & session.left_behind:
        return body
    text, _ = without_reasoning(body, session.left_behind)
    return parse_body(text)


def _agreed(pieces: Iterable[Piece], tied: int | None) -> int | None:
    try:
        return agreed_owner(pieces, tied)
    except OwnersDiffer as error:
        raise OwnersDisagree(
            "Parts of this request belong to different accounts, and no account can read another's "
            f"({error}); send it without one of them, or start a new conversation."
        ) from None

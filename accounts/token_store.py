"""Leases on the refreshing of tokens, and its results, in the database: synchronous functions.

A refresh token works once. So one task at a time, of whatever process or machine, may send it: the one that holds
the account's lease. The lease is claimed by a conditional update and lasts by the database's clock, the one clock
that all share. What the issuer gave is stored if the account still holds the refresh token that was sent, and
credentials that came from elsewhere in the meantime are left alone and used.

Between the issuer's answer and the write the only copy of the new refresh token is in memory. A process that dies
then leaves an old token behind that works no more: the next refresh is told so, and the account needs a login. The
lease that was never given back is what tells this case from others, and the reason of the state says it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TypeAlias

from django.db import transaction
from django.db.models import Q
from django.db.models.functions import Now

from accounts.auth_json import token_expiry
from accounts.credentials import BrokenCredentials, CodexCredentials, WrongTokenKey, proxy_of, seal, unseal
from accounts.models import Account, TokenLease
from accounts.registry import MARKABLE, StateChange
from accounts.states import Kind, State
from accounts.store import ATTEMPTS, REASON_LENGTH, change_state

# Who changes a state when a refresh has shown it.
REFRESHING = "token refresh"
# Seconds that a lease lasts, longer than any exchange with the issuer: who comes after that finds it free.
LEASE_TIME = 90.0
# Seconds before its expiry at which an access token is refreshed.
AHEAD = 300.0
# Seconds after which a token is refreshed that does not say when it expires.
UNTOLD_AGE = 8 * 24 * 3600.0
# A token that is refused so many seconds after it was made is refused for good.
JUST_REFRESHED = 600.0
# Seconds before the second try, doubled with each further one.
FIRST_PAUSE = 10.0
LONGEST_PAUSE = 1800.0


@dataclass(frozen=True, slots=True)
class Wanted:
    """A refresh that somebody wants at `now` (unix seconds).

    `refused` is the access token that the upstream has just refused; without it the refresh is for one that is
    about to expire, or with `forced` for one that somebody wants to see replaced, and that at once.
    """

    account: int
    now: float
    refused: str | None = field(default=None, repr=False)
    forced: bool = False

    def is_due(self, credentials: CodexCredentials) -> bool:
        """Whether `credentials` have to be refreshed; if not they are good, for all that is known."""
        if self.forced:
            return True
        if self.refused is not None:
            return credentials.access_token == self.refused
        expiry = token_expiry(credentials.access_token)
        if expiry is not None:
            return expiry - self.now <= AHEAD
        return _age(credentials, self.now) >= UNTOLD_AGE

    def is_hopeless(self, credentials: CodexCredentials) -> bool:
        """Whether the upstream has refused a token that was made just now, so that another one is no help."""
        return self.refused == credentials.access_token and 0 <= _age(credentials, self.now) < JUST_REFRESHED


@dataclass(frozen=True, slots=True)
class Held:
    """The lease is ours: send `credentials.refresh_token` once, and give the result to one of the functions below.

    `abandoned` tells that the last holder did not give it back; by `proxy` alone, if there is one, it is sent.
    """

    account: int
    owner: str
    credentials: CodexCredentials
    abandoned: bool
    proxy: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Fresh:
    """There is nothing to refresh: the account has these."""

    credentials: CodexCredentials


@dataclass(frozen=True, slots=True)
class Busy:
    """Somebody else is refreshing: look again in a moment."""


@dataclass(frozen=True, slots=True)
class Refused:
    """The account cannot be refreshed, at least not before `retry_at` (unix seconds), if that is given."""

    why: str
    retry_at: float | None = None


Claim: TypeAlias = Held | Fresh | Busy | Refused


def claim(wanted: Wanted, owner: str, keys: Sequence[str]) -> Claim:
    """Take the lease if a refresh is due, allowed, and nobody else is at it. `owner` must be new for each claim."""
    found = _look(wanted, keys)
    if not isinstance(found, _SignIn):
        return found
    lease, _ = TokenLease.objects.get_or_create(account_id=wanted.account)
    if not wanted.forced and lease.next_try_at is not None and lease.next_try_at.timestamp() > wanted.now:
        return Refused(f"The last try failed: {lease.last_error}", lease.next_try_at.timestamp())
    free = TokenLease.objects.filter(Q(owner="") | Q(until__lte=Now()), account_id=wanted.account)
    if free.update(owner=owner, until=Now() + timedelta(seconds=LEASE_TIME)) == 0:
        return Busy()
    # Only now nobody else can change the tokens; whoever held the lease a moment ago may have done it.
    found = _look(wanted, keys)
    if not isinstance(found, _SignIn):
        _release(wanted.account, owner)
        return found
    held = Held(wanted.account, owner, found.credentials, abandoned=lease.owner != "", proxy=found.proxy)
    if not wanted.is_hopeless(found.credentials):
        return held
    why = "The upstream refuses a token that was made just now."
    newer = give_up(held, why, keys)
    return Refused(why) if newer is None else Fresh(newer)


@dataclass(frozen=True, slots=True)
class _SignIn:
    credentials: CodexCredentials
    proxy: str | None


def _look(wanted: Wanted, keys: Sequence[str]) -> _SignIn | Fresh | Refused:
    """The credentials to refresh and the way to do it, or why that is not to be done."""
    account = Account.objects.filter(id=wanted.account).first()
    if account is None:
        return Refused("The account is gone.")
    if State(account.state) not in MARKABLE:
        return Refused(f"The account is {account.get_state_display()}.")
    credentials = sign_in_of(account, keys)
    if credentials is None:
        return Refused("The account has no sign-in that could be refreshed.")
    if not wanted.is_due(credentials):
        return Fresh(credentials)
    try:
        return _SignIn(credentials, proxy_of(account, keys))
    except WrongTokenKey as error:
        return Refused(str(error))


def sign_in_of(account: Account, keys: Sequence[str]) -> CodexCredentials | None:
    """The stored sign-in of `account`; None when there is none, or it cannot be opened."""
    try:
        credentials = unseal(account.credentials, keys)
    except (WrongTokenKey, BrokenCredentials):
        return None  # the registry reports it, and shows the account as one that needs a login
    return credentials if isinstance(credentials, CodexCredentials) else None


def store(held: Held, fresh: CodexCredentials, keys: Sequence[str]) -> CodexCredentials:
    """Keep what the issuer gave, and give the lease back; returns what the account has now.

    That is something else when new credentials were stored in the meantime: they are kept, and `fresh` is not. An
    account that was taken for one that needs a login, by a refresh that came between, is active again.
    """
    for _ in range(ATTEMPTS):
        account = Account.objects.filter(id=held.account).first()
        stored = None if account is None else sign_in_of(account, keys)
        if account is None or stored is None or not _same(stored, held.credentials):
            _release(held.account, held.owner)
            return stored or fresh
        with transaction.atomic():
            unchanged = Account.objects.filter(id=account.id, credentials=account.credentials)
            if unchanged.update(credentials=seal(fresh, keys)) == 0:
                continue  # sealed anew with another key; the tokens are the same
            if account.state == State.NEEDS_LOGIN:
                change_state(StateChange(account.id, State.NEEDS_LOGIN, State.ACTIVE, "", by=REFRESHING))
            TokenLease.objects.filter(account_id=account.id).update(
                refreshed_at=Now(), failures=0, next_try_at=None, last_error=""
            )
            _release(held.account, held.owner)
        return fresh
    raise _restless(held)


def give_up(held: Held, why: str, keys: Sequence[str]) -> CodexCredentials | None:
    """The refresh token works no more: the account needs a login. Returns credentials that came from elsewhere.

    A token that was used by another one is no proof against an account that has newer ones.
    """
    for _ in range(ATTEMPTS):
        account = Account.objects.filter(id=held.account).first()
        stored = None if account is None else sign_in_of(account, keys)
        if stored is not None and not _same(stored, held.credentials):
            _release(held.account, held.owner)
            return stored
        if account is None or State(account.state) not in MARKABLE or _needs_login(account, why):
            _release(held.account, held.owner, last_error=why[:REASON_LENGTH])
            return None
    raise _restless(held)


def _needs_login(account: Account, why: str) -> bool:
    change = StateChange(account.id, State(account.state), State.NEEDS_LOGIN, why, by=REFRESHING)
    return change_state(change, only=Q(credentials=account.credentials))


def _restless(held: Held) -> RuntimeError:
    return RuntimeError(f"The credentials of account {held.account} change all the time; stop what changes them.")


def back_off(held: Held, why: str, now: float) -> float:
    """The try came to nothing, and the token may still be good. Returns when to try again, in unix seconds."""
    before = TokenLease.objects.filter(account_id=held.account).values_list("failures", flat=True).first()
    failures = 1 + (before or 0)
    retry_at = now + min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** min(failures - 1, 20))
    _release(
        held.account,
        held.owner,
        failures=failures,
        next_try_at=datetime.fromtimestamp(retry_at, UTC),
        last_error=why[:REASON_LENGTH],
    )
    return retry_at


def _release(account: int, owner: str, **values: object) -> None:
    """Give the lease back; without effect when it is another's by now."""
    TokenLease.objects.filter(account_id=account, owner=owner).update(owner="", until=None, **values)


def due(now: float, keys: Sequence[str]) -> list[Account]:
    """The accounts whose tokens have to be refreshed by `now`, without those that wait for their next try."""
    waiting = Q(token_lease__next_try_at__gt=datetime.fromtimestamp(now, UTC))
    accounts = Account.objects.filter(kind=Kind.CODEX, state__in=MARKABLE).exclude(waiting)
    return [
        account
        for account in accounts
        if (credentials := sign_in_of(account, keys)) is not None and Wanted(account.id, now).is_due(credentials)
    ]


def _same(one: CodexCredentials, other: CodexCredentials) -> bool:
    return one.refresh_token == other.refresh_token and one.access_token == other.access_token


def _age(credentials: CodexCredentials, now: float) -> float:
    made = credentials.last_refresh
    return UNTOLD_AGE if made is None else now - made.timestamp()

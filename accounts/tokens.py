"""Refreshing the tokens of sign-ins, each once however many ask for it.

A refresh is due five minutes before the access token expires, and when the upstream refuses it. The request is that
of the Codex CLI 0.171: a JSON object with `client_id`, `grant_type`, `refresh_reason` and `refresh_token`; the answer
has the tokens that change. HTTP 401 and the codes in `DEAD_TOKEN` say that the refresh token works no more, and the
account needs a login; anything else may pass, and is tried again later, with growing pauses.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import ParamSpec, Protocol, TypeVar

import structlog
from asgiref.sync import sync_to_async
from django.db import DatabaseError

from accounts import token_store
from accounts.credentials import BrokenCredentials, CodexCredentials
from accounts.issuer import Answer, Issuer, Post, Unreachable
from accounts.token_store import LEASE_TIME, Fresh, Held, Refused, Wanted

P = ParamSpec("P")
R = TypeVar("R")

DEAD_TOKEN = frozenset({"refresh_token_expired", "refresh_token_reused", "refresh_token_invalidated", "token_revoked"})
# The database may fail for a moment just when new tokens are to be stored: seconds before each further try.
STORING_PAUSES = (0.1, 0.5, 2.0, 5.0)

log: structlog.typing.FilteringBoundLogger = structlog.get_logger("accounts")


class Run(Protocol):
    """Runs synchronous database work off the event loop and returns its result; its exceptions come through."""

    async def __call__(self, work: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R: ...


async def run_in_caller(work: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
    """The `Run` for commands and tasks, which call `async_to_sync`: the work runs in their own thread."""
    return await sync_to_async(work, thread_sensitive=True)(*args, **kwargs)


@dataclass(frozen=True, slots=True)
class Waiting:
    """Time as an argument. `look_again` is seconds between two looks at a lease that another one holds."""

    look_again: float = 0.25
    wall: Callable[[], float] = time.time
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep


class Result(StrEnum):
    """What came of a refresh."""

    REFRESHED = "refreshed"
    FRESH = "fresh"  # there was nothing to do, or another one has done it
    LATER = "later"
    NEEDS_LOGIN = "needs login"
    REFUSED = "refused"  # the account is of no kind, or in no state, to be refreshed


@dataclass(frozen=True, slots=True)
class Refreshed:
    """What came of a refresh. `credentials` are to be used from now on, and are None unless fresh or refreshed.

    `retry_at` (unix seconds) is set for `LATER`: before that time another try does nothing.
    """

    result: Result
    credentials: CodexCredentials | None = None
    why: str = ""
    retry_at: float | None = None


@dataclass(slots=True)
class _Unstored:
    """New tokens that the database would not take, the only copy there is."""

    held: Held
    fresh: CodexCredentials = field(repr=False)


class Refresher:
    """Refreshes accounts for one event loop. Await `close` at the end: it waits for what is under way.

    `run` does the database work, `keys` seal the credentials.
    """

    def __init__(
        self, post: Post, run: Run, issuer: Issuer, keys: Sequence[str], waiting: Waiting | None = None
    ) -> None:
        self._post = post
        self._run = run
        self._issuer = issuer
        self._keys = keys
        self._waiting = waiting or Waiting()
        self._running: dict[int, asyncio.Task[Refreshed]] = {}
        self._unstored: dict[int, _Unstored] = {}

    async def refresh(self, account: int, refused: str | None = None, *, forced: bool = False) -> Refreshed:
        """Return good credentials of `account`, refreshed if that is due, or whatever they are if `forced`.

        `refused` is the access token that the upstream has answered with 401; without it the expiry decides. A
        refresh goes on when its callers are cancelled, since a token that was sent has to be replaced. What the
        database raises comes through.
        """
        while True:
            running = self._running.get(account)
            if running is None:
                return await asyncio.shield(self._start(account, refused, forced))
            joined = await asyncio.shield(running)
            if refused is None or joined.credentials is None or joined.credentials.access_token != refused:
                return joined
            # The one that was under way did not know that this token is refused.

    async def close(self) -> None:
        """Wait for the refreshes under way, and store what could not be stored before; never raises."""
        await asyncio.gather(*self._running.values(), return_exceptions=True)
        for account, unstored in list(self._unstored.items()):
            await self._store(account, unstored)

    def _start(self, account: int, refused: str | None, forced: bool) -> asyncio.Task[Refreshed]:
        task = asyncio.ensure_future(self._refresh(account, refused, forced))
        self._running[account] = task
        task.add_done_callback(lambda _: self._running.pop(account))
        return task

    async def _refresh(self, account: int, refused: str | None, forced: bool) -> Refreshed:
        unstored = self._unstored.get(account)
        if unstored is not None:
            stored = await self._store(account, unstored)
            if account in self._unstored:
                # What the database holds works no more, so nothing may be asked of it.
                return Refreshed(Result.FRESH, stored)
        looks = int(LEASE_TIME / self._waiting.look_again)
        for _ in range(looks):
            wanted = Wanted(account, self._waiting.wall(), refused, forced)
            claim = await self._run(token_store.claim, wanted, uuid.uuid4().hex, self._keys)
            if isinstance(claim, Held):
                return await self._exchange(claim, wanted)
            if isinstance(claim, Fresh):
                return Refreshed(Result.FRESH, claim.credentials)
            if isinstance(claim, Refused):
                result = Result.REFUSED if claim.retry_at is None else Result.LATER
                return Refreshed(result, why=claim.why, retry_at=claim.retry_at)
            await self._waiting.sleep(self._waiting.look_again)
        return Refreshed(
            Result.LATER, why="Another process is refreshing all the time.", retry_at=self._waiting.wall() + LEASE_TIME
        )

    async def _exchange(self, held: Held, wanted: Wanted) -> Refreshed:
        fields = {
            "client_id": self._issuer.client_id,
            "grant_type": "refresh_token",
            "refresh_reason": "proactive_expiry" if wanted.refused is None else "unauthorized_recovery",
            "refresh_token": held.credentials.refresh_token,
        }
        try:
            answer = await self._post(self._issuer.token_url, fields, proxy=held.proxy)
            dead = dead_token(answer)
            if dead is not None:
                return await self._give_up(held, dead)
            fresh = renewed(held.credentials, answer, self._waiting.wall())
        except (Unreachable, BrokenCredentials) as error:
            return await self._back_off(held, str(error))
        unstored = _Unstored(held, fresh)
        self._unstored[held.account] = unstored
        return Refreshed(Result.REFRESHED, await self._store(held.account, unstored))

    async def _store(self, account: int, unstored: _Unstored) -> CodexCredentials:
        """Store new tokens, if need be after a while; those that cannot be stored are good in memory alone."""
        for pause in (*STORING_PAUSES, None):
            try:
                stored = await self._run(token_store.store, unstored.held, unstored.fresh, self._keys)
            except DatabaseError as error:
                log.error("tokens_not_stored", account=account, error=type(error).__name__)
                if pause is not None:
                    await self._waiting.sleep(pause)
            else:
                self._unstored.pop(account, None)
                return stored
        return unstored.fresh

    async def _give_up(self, held: Held, dead: str) -> Refreshed:
        why = f"The issuer refuses the refresh token ({dead})."
        if held.abandoned:
            why += " A process that was refreshing it ended before it could store the new one."
        newer = await self._run(token_store.give_up, held, why, self._keys)
        if newer is not None:
            return Refreshed(Result.FRESH, newer)
        log.warning("account_needs_login", account=held.account, error=dead)
        return Refreshed(Result.NEEDS_LOGIN, why=why)

    async def _back_off(self, held: Held, why: str) -> Refreshed:
        log.warning("tokens_not_refreshed", account=held.account, error=why)
        retry_at = await self._run(token_store.back_off, held, why, self._waiting.wall())
        return Refreshed(Result.LATER, why=why, retry_at=retry_at)


def dead_token(answer: Answer) -> str | None:
    """What the issuer calls it when the refresh token works no more; None for every other answer."""
    error = answer.body.get("error")
    inner = error if isinstance(error, Mapping) else {}
    for word in (inner.get("code"), error, answer.body.get("code")):
        if isinstance(word, str) and word in DEAD_TOKEN:
            return word
    return "HTTP 401" if answer.status == 401 else None


def renewed(old: CodexCredentials, answer: Answer, now: float) -> CodexCredentials:
    """The credentials after a refresh: what the issuer did not send stays as it was.

    Raises `BrokenCredentials` when the answer is none, or has tokens that no header could carry.
    """
    if answer.status != 200 or not answer.text("access_token"):
        raise BrokenCredentials(f"The issuer answered with status {answer.status} and no access token.")
    return replace(
        old,
        access_token=answer.text("access_token"),
        refresh_token=answer.text("refresh_token") or old.refresh_token,
        id_token=answer.text("id_token") or old.id_token,
        last_refresh=datetime.fromtimestamp(now, UTC),
    )

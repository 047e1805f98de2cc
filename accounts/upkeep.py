"""What keeps the pool in good order without anybody's doing, each as a function that says in a sentence what it did.

The running gateway, Celery tasks and commands call them. They may be called by several processes at once: tokens are
refreshed under a lease, and every other write is conditional.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TypeVar

import structlog
from django.db import transaction

from accounts import token_store
from accounts.base_url import DEFAULT_BASE_URLS, usage_url
from accounts.credentials import CodexCredentials
from accounts.issuer import Answer, Fetch, Unreachable
from accounts.models import Account
from accounts.readings import Usage, read_usage
from accounts.registry import MARKABLE, StateChange
from accounts.states import Kind, State, What
from accounts.store import change_state, note_event, save_quota
from accounts.tokens import Refresher, Result, Run

UPKEEP = "upkeep"
# So many accounts are worked on at once, and for so many seconds in all.
AT_ONCE = 8
BUDGET = 120.0
# Two ends of a limit that are no further apart, in seconds, are one.
SAME_END = 60.0

T = TypeVar("T")
R = TypeVar("R")

log: structlog.typing.FilteringBoundLogger = structlog.get_logger("accounts")


def recover_limited(now: float) -> str:
    """Make accounts active whose limit is over at `now` (unix seconds), each with its event.

    They take turns again from that moment anyway; this writes it down.
    """
    over = Account.objects.filter(state=State.LIMITED, state_until__lte=datetime.fromtimestamp(now, UTC))
    names = [
        account.name
        for account in over.only("name", "revision")
        if change_state(StateChange(account.id, State.LIMITED, State.ACTIVE, "", revision=account.revision, by=UPKEEP))
    ]
    return f"The limit is over of {_counted(names)}." if names else "No limit has ended."


async def refresh_tokens(
    refresher: Refresher, run: Run, keys: Sequence[str], now: float, *, budget: float = BUDGET
) -> str:
    """Refresh the tokens that are about to expire at `now` (unix seconds).

    What is not done after `budget` seconds is left; a refresh that has begun goes on in `refresher`.
    """
    accounts = await run(token_store.due, now, keys)
    if not accounts:
        return "No token is about to expire."
    results = await _each(lambda account: refresher.refresh(account.id), accounts, budget)
    names: dict[Result | None, list[str]] = {}
    for account, refreshed in zip(accounts, results, strict=True):
        names.setdefault(None if refreshed is None else refreshed.result, []).append(account.name)
    words = {
        Result.REFRESHED: "refreshed",
        Result.FRESH: "fresh already",
        Result.LATER: "to be tried later",
        Result.NEEDS_LOGIN: "in need of a login",
        Result.REFUSED: "not to be refreshed any more",
        None: "not done",
    }
    told = "; ".join(f"{word}: {_counted(names[result])}" for result, word in words.items() if result in names)
    return f"Tokens of {_accounts(len(accounts))} were about to expire; {told}."


async def poll_usage(
    fetch: Fetch, refresher: Refresher, run: Run, keys: Sequence[str], now: float, *, budget: float = BUDGET
) -> str:
    """Ask the usage endpoint of every sign-in, at `now` (unix seconds), and keep what it says.

    A limit that the endpoint tells, or says to be over, becomes the account's state. Who has not told anything after
    `budget` seconds is left for the next time.
    """
    accounts = await run(_sign_ins, keys)
    if not accounts:
        return "There is no sign-in whose usage could be asked for."

    async def ask(account: _SignIn) -> str:
        answer = await _ask(account, fetch, refresher, run)
        if isinstance(answer, str):
            return answer
        if answer.status != 200:
            return f"status {answer.status}"
        await run(_keep_usage, account, read_usage(answer.body, now))
        return ""

    results = await _each(ask, accounts, budget)
    failures = [
        f"{account.name}: {'not done' if why is None else why.rstrip('.')}"
        for account, why in zip(accounts, results, strict=True)
        if why != ""
    ]
    told = len(accounts) - len(failures)
    rest = f"; {len(failures)} did not ({', '.join(failures)})" if failures else ""
    return f"Asked {_accounts(len(accounts))} for the usage: {told} told it{rest}."


@dataclass(frozen=True, slots=True)
class _SignIn:
    """An account to be asked, as it was before it was asked."""

    id: int
    name: str
    url: str
    state: State
    state_until: datetime | None
    plan_type: str
    revision: int
    credentials: CodexCredentials


def _sign_ins(keys: Sequence[str]) -> list[_SignIn]:
    return [
        _SignIn(
            id=account.id,
            name=account.name,
            url=usage_url(account.base_url or DEFAULT_BASE_URLS[Kind.CODEX]),
            state=State(account.state),
            state_until=account.state_until,
            plan_type=account.plan_type,
            revision=account.revision,
            credentials=credentials,
        )
        for account in Account.objects.filter(kind=Kind.CODEX, state__in=MARKABLE)
        if (credentials := token_store.sign_in_of(account, keys)) is not None
    ]


async def _ask(account: _SignIn, fetch: Fetch, refresher: Refresher, run: Run) -> Answer | str:
    """The endpoint's answer, asked once more with new tokens when it refuses the old ones; or why there is none."""
    try:
        answer = await fetch(account.url, _headers(account.credentials))
        if answer.status != 401:
            return answer
        refreshed = await refresher.refresh(account.id, refused=account.credentials.access_token)
        if refreshed.credentials is None:
            return refreshed.why
        return await fetch(account.url, _headers(refreshed.credentials))
    except Unreachable as error:
        return str(error)


def _headers(credentials: CodexCredentials) -> dict[str, str]:
    headers = {"authorization": f"Bearer {credentials.bearer}"}
    if credentials.account_id:
        headers["chatgpt-account-id"] = credentials.account_id
    return headers


def _keep_usage(account: _SignIn, usage: Usage) -> None:
    _keep_limit(account, usage)
    plan = usage.quota.plan
    if plan is not None and plan.name != account.plan_type:
        with transaction.atomic():
            if Account.objects.filter(id=account.id, plan_type=account.plan_type).update(plan_type=plan.name):
                note_event(
                    account.id, What.PLAN_CHANGED, f"from {account.plan_type or 'unknown'} to {plan.name}", UPKEEP
                )
    save_quota(account.id, usage.quota)


def _keep_limit(account: _SignIn, usage: Usage) -> None:
    """Make what the endpoint says the account's state, unless that has changed since: traffic knows better then."""
    if usage.until is not None:
        known = account.state_until.timestamp() if account.state_until is not None else 0.0
        if abs(known - usage.until) > SAME_END:
            reason = "the usage endpoint says so"
            _change(account, State.LIMITED, reason, usage.until)
    elif usage.limited is False and account.state is State.LIMITED:
        _change(account, State.ACTIVE, "", None)


def _change(account: _SignIn, to: State, reason: str, until: float | None) -> None:
    change_state(StateChange(account.id, account.state, to, reason, until, revision=account.revision, by=UPKEEP))


async def _each(work: Callable[[T], Awaitable[R]], items: Sequence[T], budget: float) -> list[R | None]:
    """Do `work` for each item, some at once; None for one that failed by a defect or was not done in time."""
    gate = asyncio.Semaphore(AT_ONCE)

    async def one(item: T) -> R:
        async with gate:
            return await work(item)

    tasks = [asyncio.ensure_future(one(item)) for item in items]
    _, late = await asyncio.wait(tasks, timeout=budget)
    for task in late:
        task.cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    for result in results:
        if isinstance(result, Exception):
            # One account must not keep the others from being looked after.
            log.error("account_upkeep_failed", exc_info=result)
    return [None if isinstance(result, BaseException) else result for result in results]


def _accounts(number: int) -> str:
    return f"{number} account{'' if number == 1 else 's'}"


def _counted(names: Iterable[str]) -> str:
    ordered = sorted(names)
    return f"{_accounts(len(ordered))} ({', '.join(ordered)})"

"""Asking the upstream of an account something that costs nothing: its usage, or its models."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TypeVar

import structlog
from django.db.models import Q

from accounts.base_url import DEFAULT_BASE_URLS
from accounts.credentials import BrokenCredentials, CodexCredentials, Credentials, WrongTokenKey, proxy_of, unseal
from accounts.issuer import Answer, Fetch, Unreachable
from accounts.models import Account
from accounts.registry import MARKABLE
from accounts.states import Kind, State
from accounts.tokens import Refresher, Run

# So many accounts are worked on at once, and for so many seconds in all.
AT_ONCE = 8
BUDGET = 120.0

T = TypeVar("T")
R = TypeVar("R")

log: structlog.typing.FilteringBoundLogger = structlog.get_logger("accounts")


@dataclass(frozen=True, slots=True)
class Asker:
    """What is needed to ask: the network, new tokens for those that are refused, and the database."""

    fetch: Fetch
    refresher: Refresher
    run: Run
    keys: Sequence[str]


@dataclass(frozen=True, slots=True)
class Asked:
    """An account to be asked, as it was before it was asked."""

    id: int
    name: str
    kind: Kind
    base_url: str
    state: State
    state_until: datetime | None
    plan_type: str
    revision: int
    credentials: Credentials = field(repr=False)
    proxy: str | None = field(default=None, repr=False)


def to_be_asked(keys: Sequence[str], only: Q) -> list[Asked]:
    """The accounts that could take turns and whose credentials can be opened; `only` is one more condition."""
    accounts = Account.objects.filter(only, state__in=MARKABLE)
    return [asked for account in accounts if (asked := as_asked(account, keys)) is not None]


def as_asked(account: Account, keys: Sequence[str]) -> Asked | None:
    """The account as it can be asked; None when its credentials cannot be opened."""
    try:
        credentials = unseal(account.credentials, keys)
        proxy = proxy_of(account, keys)
    except (WrongTokenKey, BrokenCredentials):
        return None  # the registry reports it, and shows the account as one that needs a login
    return Asked(
        id=account.id,
        name=account.name,
        kind=Kind(account.kind),
        base_url=account.base_url or DEFAULT_BASE_URLS[Kind(account.kind)],
        state=State(account.state),
        state_until=account.state_until,
        plan_type=account.plan_type,
        revision=account.revision,
        credentials=credentials,
        proxy=proxy,
    )


async def ask(account: Asked, url: str, asker: Asker) -> Answer | str:
    """The answer, asked for once more with new tokens when the old ones are refused; or why there is none."""
    try:
        answer = await asker.fetch(url, _headers(account.credentials), account.proxy)
        if answer.status != 401 or not isinstance(account.credentials, CodexCredentials):
            return answer
        refreshed = await asker.refresher.refresh(account.id, refused=account.credentials.access_token)
        if refreshed.credentials is None:
            return refreshed.why
        return await asker.fetch(url, _headers(refreshed.credentials), account.proxy)
    except Unreachable as error:
        return str(error)


def _headers(credentials: Credentials) -> dict[str, str]:
    headers = {"authorization": f"Bearer {credentials.bearer}"}
    if isinstance(credentials, CodexCredentials) and credentials.account_id:
        headers["chatgpt-account-id"] = credentials.account_id
    return headers


async def each(work: Callable[[T], Awaitable[R]], items: Sequence[T], budget: float) -> list[R | None]:
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


def accounts_in_words(number: int) -> str:
    return f"{number} account{'' if number == 1 else 's'}"


def counted(names: Iterable[str]) -> str:
    ordered = sorted(names)
    return f"{accounts_in_words(len(ordered))} ({', '.join(ordered)})"

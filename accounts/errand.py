"""Asking upstreams from synchronous code, in an event loop and with connections that last as long as the errand."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from typing import TypeVar

from asgiref.sync import async_to_sync
from django.conf import settings

from accounts.asking import Asker
from accounts.control import Happened
from accounts.issuer import read_issuer
from accounts.models import Account
from accounts.states import What
from accounts.store import note_event
from accounts.tokens import Refresher, Result, run_in_caller
from accounts.web import Web

R = TypeVar("R")


def with_asker(errand: Callable[[Asker], Awaitable[R]]) -> R:
    """Run `errand` to its end, and any refresh that it has begun; for tasks, commands and pages."""

    async def run() -> R:
        async with Web() as web:
            refresher = Refresher(web.post, run_in_caller, read_issuer(os.environ), settings.TOKEN_KEYS)
            try:
                return await errand(Asker(web.fetch, refresher, run_in_caller, settings.TOKEN_KEYS))
            finally:
                await refresher.close()

    return async_to_sync(run)()


async def refresh_account(asker: Asker, account_id: int, by: str) -> Happened:
    """Replace the account's tokens now, although nothing asks for it, for the operator `by`."""
    account = await asker.run(Account.objects.filter(id=account_id).only("name").first)
    if account is None:
        return Happened(False, f"There is no account {account_id} any more.")
    refreshed = await asker.refresher.refresh(account_id, forced=True)
    if refreshed.result is not Result.REFRESHED:
        return Happened(False, f"The token of {account.name} was not refreshed: {refreshed.why or refreshed.result}")
    await asker.run(note_event, account_id, What.REFRESHED, "", by)
    return Happened(True, f"Refreshed the token of {account.name}.")

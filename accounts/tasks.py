"""The upkeep of the pool as Celery tasks, for installations that have workers. Each returns what the function says."""

from __future__ import annotations

import os
import time

from asgiref.sync import async_to_sync
from celery import shared_task
from django.conf import settings

from accounts import upkeep
from accounts.issuer import read_issuer
from accounts.tokens import Refresher, run_in_caller
from accounts.web import Web

# Seconds after which a worker ends a task. A refresh that was begun must not be cut off, so they are well beyond
# what the functions themselves allow.
SHORT = 60
LONG = 300


@shared_task(name="accounts.recover_limited", time_limit=SHORT)  # type: ignore[untyped-decorator]  # celery has no types
def recover_limited() -> str:
    return upkeep.recover_limited(time.time())


@shared_task(name="accounts.refresh_tokens", time_limit=LONG)  # type: ignore[untyped-decorator]
def refresh_tokens() -> str:
    return async_to_sync(_refresh_tokens)()


@shared_task(name="accounts.poll_usage", time_limit=LONG)  # type: ignore[untyped-decorator]
def poll_usage() -> str:
    return async_to_sync(_poll_usage)()


async def _refresh_tokens() -> str:
    async with Web() as web:
        refresher = _refresher(web)
        try:
            return await upkeep.refresh_tokens(refresher, run_in_caller, settings.TOKEN_KEYS, time.time())
        finally:
            await refresher.close()


async def _poll_usage() -> str:
    async with Web() as web:
        refresher = _refresher(web)
        try:
            return await upkeep.poll_usage(web.fetch, refresher, run_in_caller, settings.TOKEN_KEYS, time.time())
        finally:
            await refresher.close()


def _refresher(web: Web) -> Refresher:
    return Refresher(web.post, run_in_caller, read_issuer(os.environ), settings.TOKEN_KEYS)

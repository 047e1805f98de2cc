"""Signing in by device code: a person enters a short code on the issuer's page while the gateway asks for the result.

The exchange is that of the Codex CLI 0.171: `usercode` gives a code and how often to ask, `token` answers 403 or 404
until the person is done, and then gives an authorization code with its PKCE verifier, which the issuer's token
address turns into tokens. Everything is over within a quarter of an hour, or has to be begun again.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime

from accounts.auth_json import Imported, labelled, signed_in_account
from accounts.credentials import BrokenCredentials, CodexCredentials
from accounts.issuer import Answer, Issuer, Post, Unreachable

# Seconds that a person has to enter the code.
PATIENCE = 15 * 60.0
# Seconds between two questions: what the issuer asks for, within these bounds.
SHORTEST_INTERVAL = 1.0
USUAL_INTERVAL = 5.0
LONGEST_INTERVAL = 60.0
# Answers that mean that the person is not done yet.
PENDING = frozenset({403, 404})


class LoginFailed(Exception):
    """The sign-in came to nothing. The message is one sentence that says what to do."""


@dataclass(frozen=True, slots=True)
class DeviceCode:
    """A sign-in that has begun: show `user_code` and `page`, then `poll` every `interval` seconds."""

    device_auth_id: str = field(repr=False)
    user_code: str = field(repr=False)
    page: str
    interval: float


@dataclass(frozen=True, slots=True)
class Authorized:
    """The person is done: `exchange` this for tokens, at once."""

    code: str = field(repr=False)
    verifier: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Pace:
    """Time as an argument."""

    monotonic: Callable[[], float] = time.monotonic
    wall: Callable[[], float] = time.time
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep


async def start(post: Post, issuer: Issuer) -> DeviceCode:
    """Ask for a code; raises `LoginFailed` or `Unreachable`."""
    answer = await post(issuer.user_code_url, {"client_id": issuer.client_id})
    if answer.status != 200:
        raise LoginFailed(f"The issuer gives no code (status {answer.status}); try again later.")
    return DeviceCode(
        device_auth_id=_needed(answer, "device_auth_id"),
        user_code=_needed(answer, "user_code"),
        page=issuer.page,
        interval=_interval(answer.body.get("interval")),
    )


async def poll(post: Post, issuer: Issuer, code: DeviceCode) -> Authorized | None:
    """Ask once whether the person is done; None when not yet. Raises `LoginFailed` or `Unreachable`."""
    fields = {"device_auth_id": code.device_auth_id, "user_code": code.user_code}
    answer = await post(issuer.device_token_url, fields)
    if answer.status in PENDING:
        return None
    if answer.status != 200:
        raise LoginFailed(f"The issuer has ended the sign-in (status {answer.status}); begin again.")
    return Authorized(_needed(answer, "authorization_code"), _needed(answer, "code_verifier"))


async def exchange(post: Post, issuer: Issuer, authorized: Authorized, now: float) -> Imported:
    """Turn the authorization into tokens, at `now` (unix seconds); raises `LoginFailed` or `Unreachable`."""
    fields = {
        "grant_type": "authorization_code",
        "client_id": issuer.client_id,
        "code": authorized.code,
        "redirect_uri": issuer.redirect_uri,
        "code_verifier": authorized.verifier,
    }
    answer = await post(issuer.token_url, fields, form=True)
    if answer.status != 200:
        raise LoginFailed(f"The issuer gives no tokens (status {answer.status}); begin again.")
    id_token = answer.text("id_token")
    try:
        credentials = CodexCredentials(
            access_token=_needed(answer, "access_token"),
            refresh_token=_needed(answer, "refresh_token"),
            id_token=id_token,
            account_id=signed_in_account(id_token),
            last_refresh=datetime.fromtimestamp(now, UTC),
        )
    except BrokenCredentials as error:
        raise LoginFailed(f"The issuer's tokens cannot be used: {error}") from None
    return labelled(credentials)


async def sign_in(
    post: Post, issuer: Issuer, show: Callable[[DeviceCode], None], progress: Callable[[], None], pace: Pace
) -> Imported:
    """Carry a sign-in from its beginning to its tokens.

    `show` gets the code once, `progress` is called after each question that found nothing. Raises `LoginFailed`, also
    when nobody enters the code in time, and `Unreachable` when the issuer does not answer at the beginning or at the
    end; in between an answer that does not come is asked for again.
    """
    code = await start(post, issuer)
    show(code)
    deadline = pace.monotonic() + PATIENCE
    while pace.monotonic() < deadline:
        await pace.sleep(code.interval)
        try:
            authorized = await poll(post, issuer, code)
        except Unreachable:
            authorized = None
        if authorized is not None:
            return await exchange(post, issuer, authorized, pace.wall())
        progress()
    raise LoginFailed("Nobody has entered the code within a quarter of an hour; begin again.")


def _needed(answer: Answer, name: str) -> str:
    value = answer.text(name)
    if not value:
        raise LoginFailed(f"The issuer's answer has no {name}; it may not offer sign-ins by code to this client.")
    return value


def _interval(told: object) -> float:
    """The issuer tells seconds as a text; anything else is left out."""
    try:
        seconds = float(told) if isinstance(told, str | int | float) else math.nan
    except (ValueError, OverflowError):
        seconds = math.nan
    if not math.isfinite(seconds):
        return USUAL_INTERVAL
    return min(max(seconds, SHORTEST_INTERVAL), LONGEST_INTERVAL)

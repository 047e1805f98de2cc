"""What a key has used and may use, for its holder; and the pool's usage in the words that Codex understands."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from accounts.pooled import Pooled, pooled
from accounts.states import Kind, State
from gateway.consumers.base import Gate, Scope
from gateway.consumers.keyed import keyed
from gateway.consumers.simple import Document, json_document
from gateway.errors import InvalidBody
from gateway.keys import KeySnapshot
from gateway.metering.limits import Unit, Window
from gateway.metering.usage import Counts
from gateway.turns.request import Route

Responder = Callable[[Scope], Awaitable[Document]]
# A plan for clients that ask for one: the pool has as many as it has accounts.
POOL_PLAN = "pro"


def key_usage_of(gate: Callable[[], Gate]) -> Responder:
    """`GET /v1/usage`: the key's limits, and what it has used of them."""

    async def respond(key: KeySnapshot, scope: Scope) -> Document:
        await gate().look_up_usage(key)
        windows = [_window(key, window, counts) for window, counts in gate().meter.used(key).items()]
        running = gate().permits.held_by(key.id)
        content = {
            "object": "usage",
            "key": key.name,
            "windows": windows,
            "turns": {"running": running, "limit": key.limits.turns},
            "models": list(key.models) or None,
        }
        return json_document(200, content)

    return keyed(gate, Route.V1, respond)


def _window(key: KeySnapshot, window: Window, counts: Counts) -> Mapping[str, object]:
    limits = {limit.unit: limit.most for limit in key.limits.windows if limit.span is window.span}
    return {
        "window": window.span,
        "began_at": window.start,
        "resets_at": window.end,
        "requests": {"used": counts.requests, "limit": limits.get(Unit.REQUESTS)},
        "tokens": {"used": counts.tokens, "limit": limits.get(Unit.TOKENS)},
        "cost": {"usd": _dollars(counts), "turns_without_a_price": counts.unpriced},
    }


def _dollars(counts: Counts) -> str | None:
    """What the turns with a price have cost, which is no number to go on with; None where no turn has one."""
    unknown = counts.micros == 0 and counts.unpriced > 0
    return None if unknown else f"{counts.micros / 1_000_000:.6f}"


def pool_usage_of(gate: Callable[[], Gate]) -> Responder:
    """`GET …/usage` as Codex asks the ChatGPT backend: the windows of all accounts that the key may use, as one."""

    async def respond(key: KeySnapshot, scope: Scope) -> Document:
        engine, now = gate().engine, gate().clock.wall()
        accounts = [
            account
            for account in engine.router.accounts
            if account.kind is Kind.CODEX and (key.accounts is None or account.id in key.accounts)
        ]
        usable = [account for account in accounts if account.state_at(now) is State.ACTIVE]
        limited = [account.state_until for account in accounts if account.state_at(now) is State.LIMITED]
        quotas = [engine.health.quotas.get(account.id) for account in accounts]
        return json_document(200, _pool(pooled(quotas, now), bool(usable), bool(limited) and not usable, now))

    return keyed(gate, Route.CODEX, respond)


def _pool(told: Pooled, allowed: bool, reached: bool, now: float) -> Mapping[str, object]:
    windows = {
        f"{slot}_window": {
            "used_percent": round(window.used_percent),
            "limit_window_seconds": window.minutes * 60,
            "reset_after_seconds": max(0, round(window.resets_at - now)),
            "reset_at": round(window.resets_at),
        }
        for slot, window in told.windows.items()
    }
    return {
        "plan_type": told.plan or POOL_PLAN,
        "rate_limit": {
            "allowed": allowed,
            "limit_reached": reached,
            "primary_window": windows.get("primary_window"),
            "secondary_window": windows.get("secondary_window"),
        },
        "credits": {"has_credits": told.has_credits, "unlimited": told.unlimited, "balance": None},
    }


def account_check_of(gate: Callable[[], Gate]) -> Responder:
    """`GET …/accounts/check`: a client that is signed in asks whether its account may be used here; a key may.

    The client wants its own account's id back, so that is what it gets.
    """

    async def respond(key: KeySnapshot, scope: Scope) -> Document:
        account = dict(scope["headers"]).get(b"chatgpt-account-id", b"").decode("latin-1")
        if not account:
            raise InvalidBody("The header chatgpt-account-id is missing.", code="missing_account_id")
        entry = {
            "id": account,
            "name": key.name,
            "plan_type": POOL_PLAN,
            "structure": "personal",
            "profile_picture_url": None,
            "workspace_backend_origin": "NO_CONSTRAINT",
            "account_routing_override": "NO_CONSTRAINT",
        }
        return json_document(200, {"accounts": [entry], "account_ordering": [account], "default_account_id": account})

    return keyed(gate, Route.CODEX, respond)

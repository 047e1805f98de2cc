"""What keeps the pool in good order without anybody's doing, each as a function that says in a sentence what it did.

The running gateway, Celery tasks and commands call them. They may be called by several processes at once: tokens are
refreshed under a lease, and every other write is conditional.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime

from django.db import transaction
from django.db.models import Q

from accounts import token_store
from accounts.asking import BUDGET, Asked, Asker, accounts_in_words, ask, counted, each, to_be_asked
from accounts.base_url import models_url, usage_url
from accounts.issuer import Answer
from accounts.models import Account
from accounts.readings import Usage, read_models, read_usage
from accounts.registry import StateChange
from accounts.states import Kind, State, What
from accounts.store import UPKEEP, change_state, note_event, save_models, save_quota
from accounts.tokens import Result

# Two ends of a limit that are no further apart, in seconds, are one.
SAME_END = 60.0


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
    return f"The limit is over of {counted(names)}." if names else "No limit has ended."


async def refresh_tokens(asker: Asker, now: float, *, budget: float = BUDGET) -> str:
    """Refresh the tokens that are about to expire at `now` (unix seconds).

    What is not done after `budget` seconds is left; a refresh that has begun goes on in the refresher.
    """
    accounts = await asker.run(token_store.due, now, asker.keys)
    if not accounts:
        return "No token is about to expire."
    results = await each(lambda account: asker.refresher.refresh(account.id), accounts, budget)
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
    told = "; ".join(f"{word}: {counted(names[result])}" for result, word in words.items() if result in names)
    return f"Tokens of {accounts_in_words(len(accounts))} were about to expire; {told}."


async def poll_usage(asker: Asker, now: float, *, budget: float = BUDGET) -> str:
    """Ask the usage endpoint of every sign-in, at `now` (unix seconds), and keep what it says.

    A limit that the endpoint tells, or says to be over, becomes the account's state. Who has not told anything after
    `budget` seconds is left for the next time.
    """
    accounts = await asker.run(to_be_asked, asker.keys, Q(kind=Kind.CODEX))
    if not accounts:
        return "There is no sign-in whose usage could be asked for."

    async def keep(account: Asked) -> str:
        return await _kept(
            asker, account, usage_url(account.base_url), lambda answer: _keep_usage(account, answer, now)
        )

    return _told("usage", accounts, await each(keep, accounts, budget))


async def poll_models(asker: Asker, *, unknown_only: bool = False, budget: float = BUDGET) -> str:
    """Ask every account for its own catalogue of models and keep it; with `unknown_only` those that have none yet."""
    only = Q(offered_models__isnull=True) if unknown_only else Q()
    accounts = await asker.run(to_be_asked, asker.keys, only)
    if not accounts:
        return "There is no account whose models could be asked for."

    async def keep(account: Asked) -> str:
        url = models_url(account.base_url, account.kind)
        return await _kept(asker, account, url, lambda answer: _keep_models(account, answer))

    return _told("models", accounts, await each(keep, accounts, budget))


async def _kept(asker: Asker, account: Asked, url: str, keep: Callable[[Answer], str]) -> str:
    """Ask, and give a good answer to `keep` in the database's thread; why that came to nothing, or nothing."""
    answer = await ask(account, url, asker)
    if isinstance(answer, str):
        return answer
    if answer.status != 200:
        return f"status {answer.status}"
    return await asker.run(keep, answer)


def _told(what: str, accounts: Sequence[Asked], whys: Sequence[str | None]) -> str:
    failures = [
        f"{account.name}: {'not done' if why is None else why.rstrip('.')}"
        for account, why in zip(accounts, whys, strict=True)
        if why != ""
    ]
    told = len(accounts) - len(failures)
    rest = f"; {len(failures)} did not ({', '.join(failures)})" if failures else ""
    pronoun = "it" if what == "usage" else "them"
    return f"Asked {accounts_in_words(len(accounts))} for the {what}: {told} told {pronoun}{rest}."


def _keep_models(account: Asked, answer: Answer) -> str:
    models = read_models(answer.body)
    if not models:
        return "a catalogue without models"
    save_models(account.id, account.plan_type, models)
    return ""


def _keep_usage(account: Asked, answer: Answer, now: float) -> str:
    usage = read_usage(answer.body, now)
    _keep_limit(account, usage)
    plan = usage.quota.plan
    if plan is not None and plan.name != account.plan_type:
        with transaction.atomic():
            if Account.objects.filter(id=account.id, plan_type=account.plan_type).update(
                plan_type=plan.name, offered_models=None
            ):
                note_event(
                    account.id, What.PLAN_CHANGED, f"from {account.plan_type or 'unknown'} to {plan.name}", UPKEEP
                )
    save_quota(account.id, usage.quota)
    return ""


def _keep_limit(account: Asked, usage: Usage) -> None:
    """Make what the endpoint says the account's state, unless that has changed since: traffic knows better then."""
    if usage.until is not None:
        known = account.state_until.timestamp() if account.state_until is not None else 0.0
        if abs(known - usage.until) > SAME_END:
            reason = "the usage endpoint says so"
            _change(account, State.LIMITED, reason, usage.until)
    elif usage.limited is False and account.state is State.LIMITED:
        _change(account, State.ACTIVE, "", None)


def _change(account: Asked, to: State, reason: str, until: float | None) -> None:
    change_state(StateChange(account.id, account.state, to, reason, until, revision=account.revision, by=UPKEEP))

"""Accounts in the database: synchronous functions, each short enough for a thread of the caller's pool."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import count, islice
from uuid import UUID

import msgspec
import structlog
from django.core.exceptions import ValidationError
from django.db import transaction
from django.db.models import Q

from accounts.auth_json import Imported
from accounts.base_url import DEFAULT_BASE_URLS
from accounts.circuits import UNTOUCHED
from accounts.credentials import (
    BrokenCredentials,
    CodexCredentials,
    Credentials,
    WrongTokenKey,
    proxy_of,
    seal,
    seal_text,
    unseal,
)
from accounts.identity import is_outdated, same_sign_in, twins
from accounts.models import Account, AccountEvent, TokenLease
from accounts.proxy import shown_proxy
from accounts.quota import NOTHING_KNOWN, Quota, merge
from accounts.registry import MARKABLE, AccountSnapshot, StateChange
from accounts.states import Kind, State, Transport, What, transition

REASON_LENGTH = 200
# Who changes an account by a command.
COMMAND_LINE = "command line"
# Who changes one without anybody's doing.
UPKEEP = "upkeep"
# A write that finds the account changed is tried anew; nobody changes one account so often by chance.
ATTEMPTS = 5
# What traffic finds out about credentials; new ones are taken to be good.
FORGOTTEN = frozenset({State.LIMITED, State.NEEDS_LOGIN})

log: structlog.typing.FilteringBoundLogger = structlog.get_logger("accounts")


class RefusedAccount(Exception):
    """An account cannot be stored like that. The message is one sentence that says what to change."""


class NameTaken(RefusedAccount):
    """There is an account of that name already."""


# Priorities lie between this and its negative, which every database can hold.
MOST_PRIORITY = 999_999_999


@dataclass(frozen=True, slots=True)
class Options:
    """How an account is used; None leaves a stored value, or takes the default for a new account.

    `proxy` is one that `clean_proxy` has returned; an empty one takes the account's proxy away.
    """

    base_url: str | None = None
    transport: Transport | None = None
    priority: int | None = None
    proxy: str | None = field(default=None, repr=False)


def load_snapshots(
    keys: Sequence[str], default_streams: int, known: Sequence[AccountSnapshot] = ()
) -> tuple[AccountSnapshot, ...] | None:
    """Return all accounts in the order of the pool, or None when they are what `known` holds already.

    Only accounts that differ from `known` are read in full and unsealed. One whose credentials are missing or
    cannot be opened is returned as one that needs a login. Raises `InvalidTokenKey` and Django's database
    errors.
    """
    unchanged = {account.id: account for account in known}
    order: list[int] = []
    stale: set[int] = set()
    for account_id, revision in Account.objects.values_list("id", "revision"):
        order.append(account_id)
        if account_id not in unchanged or unchanged[account_id].revision != revision:
            stale.add(account_id)
    if not stale and len(order) == len(known):
        return None
    rows = Account.objects.filter(id__in=stale).select_related("circuit")
    fresh = {row.id: _snapshot(row, keys, default_streams) for row in rows}
    # An account deleted between the two queries is in neither mapping, and so is left out.
    current = {key: unchanged[key] for key in order if key not in stale} | fresh
    return tuple(current[key] for key in order if key in current)


def _snapshot(row: Account, keys: Sequence[str], default_streams: int) -> AccountSnapshot:
    credentials, proxy, trouble = _open(row, keys)
    state, reason, until = State(row.state), row.state_reason, row.state_until
    if credentials is None and state in MARKABLE:
        state, reason, until = State.NEEDS_LOGIN, trouble, None
    return AccountSnapshot(
        id=row.id,
        name=row.name,
        kind=Kind(row.kind),
        base_url=row.base_url or DEFAULT_BASE_URLS[Kind(row.kind)],
        transport=Transport(row.transport),
        priority=row.priority,
        state=state,
        state_reason=reason,
        state_until=None if until is None else until.timestamp(),
        streams=row.max_streams or default_streams,
        credentials=credentials,
        account_id=row.account_id,
        revision=row.revision,
        quota=_quota(row.quota),
        models=_models(row.offered_models),
        proxy=proxy,
        circuit=UNTOUCHED if (circuit := getattr(row, "circuit", None)) is None else circuit.shared(),
    )


def _open(row: Account, keys: Sequence[str]) -> tuple[Credentials | None, str | None, str]:
    """Return the account's credentials and its proxy, or no credentials and why there are none.

    One account that cannot be opened must not hide the changes of all others, so this is no error here.
    """
    if not row.credentials:
        return None, None, "No credentials are stored."
    try:
        credentials, proxy = unseal(row.credentials, keys), proxy_of(row, keys)
    except (WrongTokenKey, BrokenCredentials) as error:
        log.warning("credentials_not_opened", account=row.id, error=type(error).__name__)
        return None, None, str(error)
    if credentials.kind != row.kind:
        return None, None, f"The stored credentials are those of a {credentials.kind} account."
    return credentials, proxy, ""


def _quota(stored: object) -> Quota:
    """What is stored of the usage. It is worth less than the account, which must be loaded whatever it is."""
    try:
        return msgspec.convert(stored, Quota)
    except msgspec.ValidationError as error:
        log.warning("quota_not_read", error=str(error))
        return NOTHING_KNOWN


def _models(stored: object) -> frozenset[str] | None:
    if not isinstance(stored, list):
        return None
    return frozenset(name for name in stored if isinstance(name, str))


def change_state(change: StateChange, *, only: Q | None = None) -> bool:
    """Write `change`, and the event that tells of it, if the account is still as it expects; returns whether it was.

    False means that somebody else was first: read the account again before deciding anew. `only` is one more
    condition. Raises `IllegalTransition` for a change that no account may make.
    """
    named = transition(change.expected, change.state)
    accounts = Account.objects.filter(only or Q(), id=change.account, state=change.expected)
    if change.revision is not None:
        accounts = accounts.filter(revision=change.revision)
    with transaction.atomic():
        written = accounts.update(
            state=change.state,
            state_reason=change.reason[:REASON_LENGTH],
            state_until=None if change.until is None else datetime.fromtimestamp(change.until, UTC),
        )
        return written == 1 and note_event(change.account, change.what or named, change.reason, change.by)


def note_event(account: int, what: What, why: str, by: UUID | str) -> bool:
    """Note what happened to `account`, and which turn found it out or who did it; False when the account is gone.

    `why` is for people and must not contain personal data. Call it in the transaction of what it tells of.
    """
    name = Account.objects.filter(id=account).values_list("name", flat=True).first()
    if name is None:
        return False
    AccountEvent.objects.create(
        account_id=account,
        account_name=name,
        what=what,
        why=why[:REASON_LENGTH],
        by=by if isinstance(by, str) else "",
        turn=by if isinstance(by, UUID) else None,
    )
    return True


def save_quota(account: int, quota: Quota) -> bool:
    """Merge `quota` into what is stored of the account's usage; returns whether that told anything new.

    Others may do the same at the same time: of two words about a window the newer one stays.
    """
    for _ in range(ATTEMPTS):
        row = Account.objects.filter(id=account).values("quota", "revision").first()
        if row is None:
            return False
        stored = _quota(row["quota"])
        merged = merge(stored, quota)
        if merged == stored:
            return False
        unchanged = Account.objects.filter(id=account, revision=row["revision"])
        if unchanged.update(quota=msgspec.to_builtins(merged)) == 1:
            return True
    return False  # what is lost is told again with the next answer of the upstream


def save_models(account: int, plan_type: str, models: Sequence[str]) -> bool:
    """Keep what is in the account's own catalogue, unless its plan has changed since; whether that was news."""
    row = Account.objects.filter(id=account).values("offered_models", "plan_type").first()
    if row is None or row == {"offered_models": list(models), "plan_type": plan_type}:
        return False
    return Account.objects.filter(id=account, plan_type=plan_type).update(offered_models=list(models)) == 1


def mark_used(used: Mapping[int, float]) -> None:
    """Note when accounts last carried a turn (unix seconds); that is no change that a registry must notice."""
    for account_id, moment in used.items():
        Account.objects.filter(id=account_id).update(last_used_at=datetime.fromtimestamp(moment, UTC))


def require_free_name(name: str) -> None:
    """Raise `NameTaken` or `RefusedAccount` when no new account could have `name`."""
    if Account.objects.filter(name=name).exists():
        raise NameTaken(f"There is an account named {name} already; choose another name or replace it.")
    try:
        Account(name=name).clean_fields(exclude={field.name for field in Account._meta.fields} - {"name"})
    except ValidationError as error:
        raise RefusedAccount(" ".join(error.messages)) from None


def add_account(
    name: str, imported: Imported, options: Options, keys: Sequence[str], *, by: str = COMMAND_LINE
) -> Account:
    """Store a new, active account; raises `NameTaken`, `RefusedAccount` or `InvalidTokenKey`.

    A sign-in that is in the pool already is refused: its refresh token works once, so that two accounts would
    take it away from each other.
    """
    require_free_name(name)
    _require_new_identity(imported, keys)
    account = Account(name=name, kind=imported.credentials.kind)
    _fill(account, imported, options, keys)
    with transaction.atomic():
        account.save()
        note_event(account.id, What.ADDED, "", by)
    return account


def add_accounts(
    name: str, found: Sequence[Imported], options: Options, keys: Sequence[str], *, by: str = COMMAND_LINE
) -> list[str]:
    """Store new accounts, all or none, and return their names: `name-1`, `name-2` and so on, numbers in use left out.

    More can be added under the same name later. Raises as `add_account` does.
    """
    same = twins(found)
    if same is not None:
        who = found[same[0] - 1].email or "without an address"
        raise RefusedAccount(
            f"Numbers {same[0]} and {same[1]} of what was given are the same sign-in ({who}), and two accounts would "
            "take its refresh token away from each other; give it once. Nothing was added."
        )
    taken = set(Account.objects.filter(name__startswith=f"{name}-").values_list("name", flat=True))
    free = (numbered for numbered in (f"{name}-{number}" for number in count(1)) if numbered not in taken)
    names = list(islice(free, len(found)))
    with transaction.atomic():
        for numbered, imported in zip(names, found, strict=True):
            add_account(numbered, imported, options, keys, by=by)
    return names


def replace_credentials(
    name: str, imported: Imported, options: Options, keys: Sequence[str], *, by: str = COMMAND_LINE
) -> Account:
    """Give the account `name` new credentials of the same identity.

    What the traffic found out about the old credentials is forgotten: a limited account or one that needs a
    login is active again. What the operator decided, paused or disabled, stays. Raises `RefusedAccount` or
    `InvalidTokenKey`.
    """
    for _ in range(ATTEMPTS):
        account = Account.objects.filter(name=name).first()
        if account is None:
            raise RefusedAccount(f"There is no account named {name}, so nothing can be replaced; add it first.")
        _require_same_identity(account, imported.credentials)
        _require_no_older(account, imported.credentials, keys)
        written = _fill(account, imported, options, keys)
        if account.state in FORGOTTEN:
            account.state, account.state_reason, account.state_until = State.ACTIVE.value, "", None
            written += ["state", "state_reason", "state_until"]
        if _write_unchanged(account, written, by):
            return account
    raise RefusedAccount(f"The account {name} was changed by others all the time; try again.")


def _write_unchanged(account: Account, fields: Sequence[str], by: str) -> bool:
    """Write `fields` if the row is still the one that was read; forget what held for the old credentials."""
    with transaction.atomic():
        unchanged = Account.objects.filter(id=account.id, revision=account.revision)
        if unchanged.update(**{field: getattr(account, field) for field in fields}) == 0:
            return False
        TokenLease.objects.filter(account=account).update(failures=0, next_try_at=None, last_error="")
        return note_event(account.id, What.SIGNED_IN, "", by)


def _require_new_identity(imported: Imported, keys: Sequence[str]) -> None:
    credentials = imported.credentials
    if not isinstance(credentials, CodexCredentials):
        return
    for known in Account.objects.filter(kind=Kind.CODEX.value, account_id=credentials.account_id):
        stored = _stored_sign_in(known, keys) or CodexCredentials("-", "-", account_id=known.account_id)
        if same_sign_in(imported, Imported(stored, known.email)):
            raise RefusedAccount(
                f"This sign-in is in the pool as {known.name} already; use --replace with that name to renew it."
            )


def _require_no_older(account: Account, credentials: Credentials, keys: Sequence[str]) -> None:
    """The token in a file that was given before has been used up since: stored, it would end the account."""
    stored = _stored_sign_in(account, keys)
    if stored is not None and isinstance(credentials, CodexCredentials) and is_outdated(credentials, stored):
        raise RefusedAccount(
            f"{account.name} holds a newer sign-in than this one, whose refresh token has been used since; nothing was "
            f"changed. If it has to be renewed, sign in again with `codex login` or login_account {account.name}."
        )


def _stored_sign_in(account: Account, keys: Sequence[str]) -> CodexCredentials | None:
    """What the account holds; None if there is nothing, nothing that can be opened, or no sign-in."""
    try:
        stored = unseal(account.credentials, keys) if account.credentials else None
    except (WrongTokenKey, BrokenCredentials):
        return None
    return stored if isinstance(stored, CodexCredentials) else None


def _require_same_identity(account: Account, credentials: Credentials) -> None:
    """Conversations are bound to the identity behind an account, so its name must never lead to another."""
    if credentials.kind != account.kind:
        raise RefusedAccount(
            f"The account {account.name} is of kind {account.kind}, the new credentials are of kind "
            f"{credentials.kind}; add them under another name."
        )
    if isinstance(credentials, CodexCredentials) and account.account_id not in ("", credentials.account_id):
        raise RefusedAccount(
            f"The account {account.name} is another ChatGPT account than the new sign-in (their account ids "
            "differ); add the sign-in under another name."
        )


def _fill(account: Account, imported: Imported, options: Options, keys: Sequence[str]) -> list[str]:
    """Set what `imported` and `options` say, validate it, and return the names of the fields set."""
    values: dict[str, str | int | None] = {
        "base_url": options.base_url,
        "transport": options.transport,
        "priority": options.priority,
        "email": imported.email,
        "plan_type": imported.plan_type,
        "credentials": seal(imported.credentials, keys),
        "proxy": None if options.proxy is None else seal_text(options.proxy, keys),
    }
    if isinstance(imported.credentials, CodexCredentials):
        values["account_id"] = imported.credentials.account_id
    given = {name: value for name, value in values.items() if value is not None}
    for name, value in given.items():
        setattr(account, name, value)
    try:
        account.full_clean()
    except ValidationError as error:
        raise RefusedAccount(" ".join(error.messages)) from None
    return list(given)


def set_proxy(name: str, proxy: str, keys: Sequence[str], *, by: str = COMMAND_LINE) -> bool:
    """Give the account `name` a `proxy` of its own, one that `clean_proxy` has returned, or none for an empty one.

    Returns whether that is a change. Raises `RefusedAccount` when there is no such account, and `InvalidTokenKey`.
    """
    account = Account.objects.filter(name=name).only("proxy").first()
    if account is None:
        raise RefusedAccount(f"There is no account named {name}.")
    try:
        if (proxy_of(account, keys) or "") == proxy:
            return False
    except WrongTokenKey:
        pass  # one that cannot be opened is replaced
    with transaction.atomic():
        Account.objects.filter(id=account.id).update(proxy=seal_text(proxy, keys))
        note_event(account.id, What.PROXY_CHANGED, shown_proxy(proxy) if proxy else "none any more", by)
    return True

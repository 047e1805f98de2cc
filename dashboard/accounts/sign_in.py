"""Signing an account in by a code: a page that shows the code and asks the issuer, until the person is done.

A script asks for where to go next (`ASKS`); without scripts the page asks whenever it loads itself. What only the
gateway and the issuer may know waits sealed in the operator's session.
"""

from __future__ import annotations

import os
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import msgspec
from asgiref.sync import async_to_sync
from django.conf import settings
from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils import timezone

from accounts.auth_json import Imported
from accounts.credentials import CredentialsError, proxy_of, seal_text, unseal_text
from accounts.issuer import Issuer, Unreachable, read_issuer, through
from accounts.login import PATIENCE, Authorized, DeviceCode, LoginFailed, exchange, poll, start
from accounts.models import Account
from accounts.states import Kind
from accounts.store import Options, RefusedAccount, add_account, replace_credentials, require_free_name
from accounts.web import Web
from dashboard.accounts.columns import ModelAdmin

SESSION = "pointsman_sign_in"
# With this header the page answers where it would lead, `{"to": "/admin/…"}`, and nothing while it stays.
ASKS = "X-Asks"
# Seconds in which the issuer has to answer while somebody waits for the page.
ANSWER = 10.0


class Pending(msgspec.Struct, frozen=True):
    """A sign-in under way, as it is kept in the session. Times are unix seconds."""

    name: str
    known: bool
    options: Options
    code: DeviceCode
    begun_at: float
    asked_at: float


def begin_sign_in(request: HttpRequest, name: str, options: Options, *, known: bool) -> HttpResponse:
    """Get a code and go to the page that shows it; raises `RefusedAccount` in words for the operator."""
    if known:
        account = Account.objects.filter(name=name).first()
        if account is None or account.kind != Kind.CODEX:
            raise RefusedAccount(f"There is no account named {name} that could be signed in.")
        if options.proxy is None:
            # The way to the issuer is the account's own, if it has one already.
            options = replace(options, proxy=proxy_of(account, settings.TOKEN_KEYS))
    else:
        require_free_name(name)
    try:
        code = async_to_sync(_start)(read_issuer(os.environ), options.proxy or None)
    except (LoginFailed, Unreachable) as error:
        raise RefusedAccount(str(error)) from None
    now = timezone.now().timestamp()
    _keep(request, Pending(name, known, options, code, now, now))
    return redirect(reverse("admin:accounts_account_sign_in"))


def sign_in_page(model_admin: ModelAdmin, request: HttpRequest) -> HttpResponse:
    """Show the code, ask whether the person is done, and store the account once that is so."""
    if not model_admin.has_add_permission(request):
        raise PermissionDenied
    pending = _kept(request)
    if pending is None:
        return redirect(reverse("admin:accounts_account_add"))
    if request.method == "POST":
        return _over(request, "Stopped; nothing was stored.", messages.INFO)
    now = timezone.now().timestamp()
    if now - pending.begun_at > PATIENCE:
        return _over(request, "Nobody has entered the code within a quarter of an hour; begin again.", messages.ERROR)
    if now - pending.asked_at >= pending.code.interval:
        pending = msgspec.structs.replace(pending, asked_at=now)
        _keep(request, pending)
        try:
            imported = async_to_sync(_ask)(read_issuer(os.environ), pending, now)
            if imported is not None:
                return _done(model_admin, request, pending, imported)
        except Unreachable:
            pass  # it is asked again when the page loads the next time
        except (LoginFailed, RefusedAccount, CredentialsError) as error:
            return _over(request, str(error), messages.ERROR)
    return _page(model_admin, request, pending)


async def _start(issuer: Issuer, proxy: str | None) -> DeviceCode:
    async with Web(timeout=ANSWER) as web:
        return await start(through(web.post, proxy), issuer)


async def _ask(issuer: Issuer, pending: Pending, now: float) -> Imported | None:
    async with Web(timeout=ANSWER) as web:
        post = through(web.post, pending.options.proxy or None)
        authorized: Authorized | None = await poll(post, issuer, pending.code)
        return None if authorized is None else await exchange(post, issuer, authorized, now)


def _done(model_admin: ModelAdmin, request: HttpRequest, pending: Pending, imported: Imported) -> HttpResponse:
    store = replace_credentials if pending.known else add_account
    by = request.user.get_username()
    account = store(pending.name, imported, pending.options, settings.TOKEN_KEYS, by=by)
    del request.session[SESSION]
    return added(model_admin, request, account, known=pending.known)


def added(model_admin: ModelAdmin, request: HttpRequest, account: Account, *, known: bool) -> HttpResponse:
    """Say that it is done, note who did it, and go to the account's page."""
    text = f"{'Replaced the credentials of' if known else 'Added'} {account.name}."
    (model_admin.log_change if known else model_admin.log_addition)(request, account, text)
    messages.success(request, text)
    return redirect(reverse("admin:accounts_account_change", args=[account.pk]))


def _over(request: HttpRequest, text: str, level: int) -> HttpResponse:
    del request.session[SESSION]
    messages.add_message(request, level, text)
    return redirect(reverse("admin:accounts_account_add"))


def _keep(request: HttpRequest, pending: Pending) -> None:
    request.session[SESSION] = seal_text(msgspec.json.encode(pending).decode(), settings.TOKEN_KEYS)


def _kept(request: HttpRequest) -> Pending | None:
    try:
        return msgspec.json.decode(unseal_text(request.session.get(SESSION, ""), settings.TOKEN_KEYS), type=Pending)
    except (CredentialsError, msgspec.MsgspecError):
        return None


def _page(model_admin: ModelAdmin, request: HttpRequest, pending: Pending) -> HttpResponse:
    context: dict[str, Any] = {
        **model_admin.admin_site.each_context(request),
        "opts": Account._meta,
        "title": f"Sign {pending.name} in",
        "code": pending.code,
        "again": round(pending.code.interval),
        "until": f"{datetime.fromtimestamp(pending.begun_at + PATIENCE, UTC):%H:%M} UTC",
    }
    return TemplateResponse(request, "dashboard/accounts/sign_in.html", context)

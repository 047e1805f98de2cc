"""Sign an account in by a code that a person enters in a browser."""

from __future__ import annotations

import asyncio
import os
from typing import Unpack

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser

from accounts.auth_json import Imported
from accounts.credentials import CredentialsError, proxy_of
from accounts.issuer import InvalidIssuer, Issuer, Post, Unreachable, read_issuer, through
from accounts.login import DeviceCode, LoginFailed, Pace, sign_in
from accounts.management.options import OptionArguments, add_options, read_options
from accounts.models import Account
from accounts.states import Kind
from accounts.store import RefusedAccount, add_account, replace_credentials, require_free_name
from accounts.web import Web


class Arguments(OptionArguments, total=False):
    """What `handle` reads; Django passes its own options besides."""

    name: str
    post: Post
    pace: Pace


class Command(BaseCommand):
    help = "Sign an account in by a code to enter in a browser: a new account, or one that needs a login."
    stealth_options = ("post", "pace")

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("name", help="a new name, or that of an account to sign in again")
        add_options(parser)

    def handle(self, *args: object, **options: Unpack[Arguments]) -> str:
        name = options["name"]
        wanted = read_options(options)
        try:
            known = _known(name)
            proxy = _proxy(known) if wanted.proxy is None else wanted.proxy
            issuer = read_issuer(os.environ)
            pace = options.get("pace") or Pace()
            imported = asyncio.run(self._sign_in(issuer, proxy or None, options.get("post"), pace))
            store = replace_credentials if known else add_account
            account = store(name, imported, wanted, settings.TOKEN_KEYS)
        except (RefusedAccount, CredentialsError, InvalidIssuer, LoginFailed, Unreachable) as error:
            raise CommandError(str(error)) from None
        except KeyboardInterrupt:
            raise CommandError("Stopped; nothing was stored.") from None
        word = "Signed in" if known else "Added"
        who = f" ({imported.email})" if imported.email else ""
        return f"{word} {account.name}{who}, which is {account.get_state_display()}."

    async def _sign_in(self, issuer: Issuer, proxy: str | None, post: Post | None, pace: Pace) -> Imported:
        async with Web() as web:
            post = through(post or web.post, proxy)
            return await sign_in(post, issuer, self._show, self._progress, pace)

    def _show(self, code: DeviceCode) -> None:
        self.stdout.write(f"Open {code.page}\nand enter the code {code.user_code} within a quarter of an hour.")
        self.stdout.flush()

    def _progress(self) -> None:
        self.stdout.write(".", ending="")
        self.stdout.flush()


def _proxy(account: Account | None) -> str | None:
    """The way to the issuer is the account's own, if it has one already."""
    return None if account is None else proxy_of(account, settings.TOKEN_KEYS)


def _known(name: str) -> Account | None:
    """The account, if it exists. What cannot come to a good end is refused before a person is asked to do anything."""
    account = Account.objects.filter(name=name).only("kind", "proxy").first()
    if account is None:
        require_free_name(name)
    elif account.kind != Kind.CODEX:
        raise RefusedAccount(f"The account {name} is of kind {account.kind}, which has a key and no sign-in.")
    return account

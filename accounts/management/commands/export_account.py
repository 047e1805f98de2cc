"""Write an account's credentials into an auth.json of the Codex client."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TextIO, TypedDict, Unpack

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.utils import timezone

from accounts.auth_json import render_auth_json
from accounts.credentials import Credentials, CredentialsError, unseal
from accounts.models import Account
from accounts.states import What
from accounts.store import COMMAND_LINE, note_event

WARNING = (
    "The file will hold the credentials of {name} unencrypted. A sign-in belongs in one place: whoever refreshes its "
    "tokens first takes them away from the other, so disable the account before using the file elsewhere."
)


class Arguments(TypedDict, total=False):
    """What `handle` reads; Django passes its own options besides."""

    name: str
    file: str
    yes: bool
    stdin: TextIO


class Command(BaseCommand):
    help = "Write an account's credentials into an auth.json of the Codex client, readable by you alone."
    stealth_options = ("stdin",)

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("name", help="the account")
        parser.add_argument("file", help="a file that does not exist yet")
        parser.add_argument("--yes", action="store_true", help="do not ask")

    def handle(self, *args: object, **options: Unpack[Arguments]) -> str:
        account = Account.objects.filter(name=options["name"]).first()
        if account is None:
            raise CommandError(f"There is no account named {options['name']}.")
        credentials = _credentials(account)
        if not options.get("yes"):
            self.stdout.write(WARNING.format(name=account.name))
            self.stdout.write("Write it? (yes/no) ", ending="")
            self.stdout.flush()
            answer = (options.get("stdin") or sys.stdin).readline()
            if answer.strip().lower() != "yes":
                raise CommandError("Nothing was written.")
        # The event comes first: there must be no file that nobody can account for.
        note_event(account.id, What.EXPORTED, "", COMMAND_LINE)
        _write(Path(options["file"]), render_auth_json(credentials, timezone.now()))
        return f"Wrote the credentials of {account.name} to {options['file']}."


def _credentials(account: Account) -> Credentials:
    if not account.credentials:
        raise CommandError(f"{account.name} has no credentials; sign it in first with login_account.")
    try:
        return unseal(account.credentials, settings.TOKEN_KEYS)
    except CredentialsError as error:
        raise CommandError(str(error)) from None


def _write(path: Path, content: bytes) -> None:
    try:
        # O_EXCL: neither another file nor what a link points at is ever overwritten.
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
    except FileExistsError:
        raise CommandError(f"The file {path} exists already; remove it or give another name.") from None
    except OSError as error:
        raise CommandError(f"The file {path} cannot be written ({error.strerror}).") from error

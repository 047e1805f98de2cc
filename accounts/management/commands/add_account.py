"""Add accounts to the pool, or give one new credentials."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO, Unpack

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser

from accounts.auth_json import Imported, UnusableAuthJson, parse_api_key, parse_auth_json
from accounts.credentials import CredentialsError
from accounts.management.options import OptionArguments, add_options, read_options
from accounts.states import Kind
from accounts.store import NameTaken, Options, RefusedAccount, add_account, add_accounts, replace_credentials

MAX_FILE_BYTES = 1024 * 1024


class Arguments(OptionArguments, total=False):
    """What `handle` reads; Django passes its own options besides."""

    name: str
    kind: str
    auth_json: Sequence[str] | None
    api_key_file: str | None
    replace: bool
    stdin: BinaryIO


class Command(BaseCommand):
    help = (
        "Add an account to the pool, or give one new credentials with --replace. Several auth.json files become "
        "accounts named NAME-1, NAME-2 and so on, all of them or none."
    )
    stealth_options = ("stdin",)

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("name", help="letters, digits, '.', '_' and '-'")
        parser.add_argument("--kind", required=True, choices=[kind.value for kind in Kind])
        source = parser.add_mutually_exclusive_group(required=True)
        source.add_argument(
            "--auth-json",
            metavar="FILE",
            nargs="+",
            help="auth.json of `codex login`, - for standard input; the gateway takes the sign-in over, so "
            "do not go on using the file elsewhere: its refresh token works once",
        )
        source.add_argument("--api-key-file", metavar="FILE", help="file with one API key, - for standard input")
        add_options(parser)
        parser.add_argument("--replace", action="store_true", help="the account exists: replace its credentials")

    def handle(self, *args: object, **options: Unpack[Arguments]) -> str:
        found = _imported(options)
        wanted = read_options(options)
        try:
            if len(found) > 1:
                return _add_several(options, found, wanted)
            store = _replace if options.get("replace") else _add
            return store(options["name"], found[0], wanted)
        except (RefusedAccount, CredentialsError) as error:
            raise CommandError(str(error)) from None


def _add_several(options: Arguments, found: Sequence[Imported], wanted: Options) -> str:
    """Add an account for each file."""
    if options.get("replace"):
        raise CommandError("With --replace give one file, for the one account.")
    names = add_accounts(options["name"], found, wanted, settings.TOKEN_KEYS)
    return f"Added {len(names)} {options['kind']} accounts: {', '.join(names)}."


def _add(name: str, imported: Imported, wanted: Options) -> str:
    try:
        account = add_account(name, imported, wanted, settings.TOKEN_KEYS)
    except NameTaken:
        raise CommandError(
            f"There is an account named {name} already; use --replace to give it these credentials."
        ) from None
    return f"Added the {account.kind} account {name} at {account.base_url}.{_validity(imported)}"


def _replace(name: str, imported: Imported, wanted: Options) -> str:
    account = replace_credentials(name, imported, wanted, settings.TOKEN_KEYS)
    return f"Replaced the credentials of {name}, which is {account.get_state_display()}.{_validity(imported)}"


def _validity(imported: Imported) -> str:
    if imported.expires_at is None:
        return ""
    end = datetime.fromtimestamp(imported.expires_at, UTC)
    return f" Its access token is valid until {end:%Y-%m-%d %H:%M} UTC."


def _imported(options: Arguments) -> list[Imported]:
    """Read every file before anything is stored; a `CommandError` names the one that cannot be used."""
    stdin = options.get("stdin") or sys.stdin.buffer
    sources, api_key_file = options.get("auth_json"), options.get("api_key_file")
    if sources is not None:
        found = [_sign_in(source, stdin) for source in sources]
    elif api_key_file is not None:
        found = [_api_key(api_key_file, stdin)]
    else:
        raise CommandError("Give either --auth-json or --api-key-file.")
    for imported in found:
        if imported.credentials.kind != options["kind"]:
            raise CommandError(
                f"The file holds credentials of kind {imported.credentials.kind}; use --kind "
                f"{imported.credentials.kind} or another file."
            )
    return found


def _sign_in(source: str, stdin: BinaryIO) -> Imported:
    content = _read(source, stdin)
    try:
        return parse_auth_json(content)
    except UnusableAuthJson as error:
        raise CommandError(f"{source}: {error}") from None


def _api_key(source: str, stdin: BinaryIO) -> Imported:
    try:
        return parse_api_key(_read(source, stdin))
    except UnusableAuthJson as error:
        raise CommandError(f"{source}: {error}") from None


def _read(source: str, stdin: BinaryIO) -> bytes:
    try:
        if source == "-":
            content = stdin.read(MAX_FILE_BYTES + 1)
        else:
            with Path(source).open("rb") as file:
                content = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise CommandError(f"The file {source} cannot be read ({error.strerror}).") from error
    if len(content) > MAX_FILE_BYTES:
        raise CommandError(f"The file {source} is larger than 1 MiB, so it is no auth.json or key; give another.")
    return content

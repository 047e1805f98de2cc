"""Give an account a proxy of its own, or take it away."""

from __future__ import annotations

from typing import Unpack

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser

from accounts.credentials import CredentialsError
from accounts.management.options import OptionArguments, add_proxy_options, read_proxy
from accounts.proxy import shown_proxy
from accounts.store import RefusedAccount, set_proxy


class Arguments(OptionArguments, total=False):
    """What `handle` reads; Django passes its own options besides."""

    name: str


class Command(BaseCommand):
    help = (
        "Give an account a proxy of its own, or take it away. A running gateway follows within a second; what cannot "
        "go by the proxy does not go at all."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("name", help="the account")
        add_proxy_options(parser.add_mutually_exclusive_group(required=True))

    def handle(self, *args: object, **options: Unpack[Arguments]) -> str:
        name, proxy = options["name"], read_proxy(options) or ""
        try:
            changed = set_proxy(name, proxy, settings.TOKEN_KEYS)
        except (RefusedAccount, CredentialsError) as error:
            raise CommandError(str(error)) from None
        way = f"goes by {shown_proxy(proxy)}" if proxy else "goes by no proxy"
        return f"{name} {way}{'' if changed else ' already'}."

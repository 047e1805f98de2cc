from argparse import ArgumentParser

from django.core.management.base import BaseCommand, CommandError
from django.db import IntegrityError

from gateway.rows import create_key


class Command(BaseCommand):
    help = "Make a key for a client and print it, this once and alone."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("name", help="what the admin and the ledger call the client")

    def handle(self, *, name: str, **options: object) -> str:
        try:
            return create_key(name).text
        except IntegrityError:
            raise CommandError(f"There is a key named {name!r} already; choose another name.") from None

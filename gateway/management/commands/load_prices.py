"""Take token prices from a file."""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from pathlib import Path

from django.core.management.base import BaseCommand, CommandError
from django.db import transaction

from gateway.metering.price_file import UnusablePrices, read_prices
from gateway.models import TokenPrice


class Command(BaseCommand):
    help = (
        "Take token prices, in dollars for a million tokens, from a CSV file with the heading "
        "model,tier,since,input,cached,output or a JSON array of such objects: all of them or none. The columns tier "
        "and cached may be left out. A price for the same model, tier and day takes the place of the stored one; turns "
        "that have ended keep their cost."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("file", help="the file, - for standard input")

    def handle(self, *, file: str, **options: object) -> str:
        try:
            prices = read_prices(_read(file))
        except UnusablePrices as error:
            raise CommandError(f"{file}: {error}") from None
        added = 0
        with transaction.atomic():
            for price in prices:
                values = {"input": price.input, "cached": price.cached, "output": price.output}
                _, new = TokenPrice.objects.update_or_create(
                    model=price.model, tier=price.tier, since=price.since, defaults=values
                )
                added += new
        return f"Took {len(prices)} prices, {added} of them new; running gateways follow within seconds."


def _read(file: str) -> str:
    try:
        return sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8-sig")
    except OSError as error:
        raise CommandError(f"The file {file} cannot be read ({error.strerror}).") from error
    except UnicodeDecodeError:
        raise CommandError(f"The file {file} is not text in UTF-8.") from None

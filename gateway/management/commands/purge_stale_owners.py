from __future__ import annotations

from argparse import ArgumentParser
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from django.conf import settings
from django.core.management.base import BaseCommand

from gateway.continuity.purge import ages, purge
from gateway.management.durations import duration


class Command(BaseCommand):
    help = (
        "Delete sessions that expired and leases of dead replicas, and let go of accounts that nobody can use; a hard "
        "session is marked first."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--dry-run", action="store_true", help="say what would be done, and do nothing")
        parser.add_argument(
            "--older-than",
            type=duration,
            metavar="TIME",
            help="how long a hard session must have been unused, e.g. 6h (default: GATEWAY_STALE_OWNER_AGE)",
        )

    def handle(self, *, dry_run: bool, older_than: timedelta | None, **options: object) -> str:
        usual = ages(settings.GATEWAY)
        wanted = usual if older_than is None else replace(usual, other=older_than)
        done = purge(datetime.now(UTC), wanted, dry_run=dry_run)
        return f"{'Would purge' if dry_run else 'Purged'}: {done}."

"""Seal every stored secret anew with the newest token key."""

from __future__ import annotations

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from accounts.credentials import InvalidTokenKey
from accounts.rotation import Rotation, rotate_keys


class Command(BaseCommand):
    help = (
        "Seal every stored secret anew with the first key of the file token_keys. To change the key, put a new one in "
        "front, restart every gateway, run this, and only then remove the old one. It may be run again at any time."
    )

    def handle(self, *args: object, **options: object) -> str:
        try:
            rotation = rotate_keys(settings.TOKEN_KEYS)
        except InvalidTokenKey as error:
            raise CommandError(str(error)) from None
        told = _told(rotation)
        if rotation.unopened:
            raise CommandError(
                f"{told} No key opens the secrets of {', '.join(rotation.unopened)}: add the missing key, or give "
                "accounts new credentials with add_account --replace and delete authenticators in the admin."
            )
        if rotation.left:
            raise CommandError(f"{told} {rotation.left} changed all the time; run the command again.")
        return f"{told} Older keys are not needed any more."


def _told(rotation: Rotation) -> str:
    return f"Sealed the secrets of {rotation.sealed} records anew; {rotation.newest} had the newest key already."

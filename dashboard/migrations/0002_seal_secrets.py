"""Move authenticators out of django-otp's table, which holds their secrets as they are, and seal them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.apps.registry import Apps
from django.conf import settings
from django.db import migrations
from django.db.backends.base.schema import BaseDatabaseSchemaEditor

from accounts.credentials import seal_text, unseal_text

SAME = (
    "user_id",
    "name",
    "confirmed",
    "throttling_failure_timestamp",
    "throttling_failure_count",
    "last_used_at",
    "step",
    "digits",
    "drift",
    "last_t",
)


def move(source: Any, target: Any, change: Callable[[Any], dict[str, str]]) -> None:
    for row in source.objects.all():
        moved = target.objects.create(**{name: getattr(row, name) for name in SAME}, **change(row))
        target.objects.filter(pk=moved.pk).update(created_at=row.created_at)
    source.objects.all().delete()


def seal(apps: Apps, schema_editor: BaseDatabaseSchemaEditor) -> None:
    if schema_editor.connection.vendor == "sqlite":
        # Otherwise what is deleted stays in the file until something else takes its place.
        schema_editor.execute("PRAGMA secure_delete = ON")
    move(
        apps.get_model("otp_totp", "TOTPDevice"),
        apps.get_model("dashboard", "Authenticator"),
        lambda row: {"sealed_secret": seal_text(row.key, settings.TOKEN_KEYS)},
    )


def unseal(apps: Apps, schema_editor: BaseDatabaseSchemaEditor) -> None:
    move(
        apps.get_model("dashboard", "Authenticator"),
        apps.get_model("otp_totp", "TOTPDevice"),
        lambda row: {"key": unseal_text(row.sealed_secret, settings.TOKEN_KEYS)},
    )


class Migration(migrations.Migration):
    dependencies = [
        ("dashboard", "0001_authenticators"),
        ("otp_totp", "0003_add_timestamps"),
    ]

    operations = [
        migrations.RunPython(seal, unseal),
    ]

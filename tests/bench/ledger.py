"""A ledger of any length, quickly: some turns by hand, then copies of them that the database makes itself."""

from __future__ import annotations

import random
import uuid
from datetime import timedelta

from django.db import connection
from django.utils import timezone

from accounts.models import Account
from gateway.models import ApiKey, Turn

MODELS = ("gpt-5.5", "gpt-5.5-codex", "gpt-5.5-mini")
NAMES = ("ada", "bo", "cy", "dee", "eli", "fay")
# How turns end, and how often.
ENDS = (
    (0.955, "completed", "", "", None),
    (0.015, "client_gone", "client_gone", "client_gone", None),
    (0.012, "refused", "usage_limit", "usage_limit_reached", 429),
    (0.010, "failed", "", "server_error", None),
    (0.008, "upstream_lost", "upstream_lost", "upstream_closed", 503),
)


def base_turns(count: int, span: float) -> tuple[list[int], list[int]]:
    """Turns of the last `span` seconds, six accounts and three keys; the ids of accounts and keys."""
    chance = random.Random(7)
    accounts = [Account.objects.create(name=name, kind="openai", base_url="http://127.0.0.1:9/v1").id for name in NAMES]
    keys = [ApiKey.objects.create(name=name, lookup=name, digest="").id for name in ("laptop", "build", "review")]
    replica, now = uuid.uuid4(), timezone.now()
    turns = []
    for number in range(count):
        _, outcome, cause, code, status = chance.choices(ENDS, [end[0] for end in ENDS])[0]
        account, key = chance.randrange(len(accounts)), chance.randrange(len(keys))
        received = now - timedelta(seconds=span * number / count)
        first, took = int(chance.lognormvariate(6.8, 0.6)), int(chance.lognormvariate(8.8, 0.9))
        turns.append(
            Turn(
                replica=replica,
                received_at=received,
                settled_at=received + timedelta(milliseconds=took),
                key_id=keys[key],
                key_name="a key",
                account_id=accounts[account],
                account_name=NAMES[account],
                session=f"thread-id:{number // 20:064x}",
                route="codex",
                downstream="websocket",
                upstream="websocket",
                model=chance.choice(MODELS),
                response_id=f"resp_{number}_0",
                admitted_ms=0,
                routed_ms=1,
                sent_ms=4,
                started_ms=first,
                streaming_ms=first + 2,
                settled_ms=took,
                outcome=outcome,
                cause=cause,
                code=code,
                status=status,
                attempts=[{"account": NAMES[account], "transport": "websocket", "chosen_from": "6 accounts"}],
                input_tokens=chance.randrange(50_000),
                cached_tokens=chance.randrange(20_000),
                output_tokens=chance.randrange(2_000),
                cost_micros=chance.randrange(90_000),
            )
        )
    Turn.objects.bulk_create(turns, batch_size=500)
    return accounts, keys


def copies(count: int, span: float) -> None:
    """Copy the turns that are there `count` times, each copy `span` seconds older than the one before."""
    quoted = {field.column: f'"{field.column}"' for field in Turn._meta.concrete_fields}
    sqlite = connection.vendor == "sqlite"
    shifted = (
        "strftime('%Y-%m-%d %H:%M:%f000', {column}, '-' || {by} || ' seconds')"
        if sqlite
        else "{column} - {by} * interval '1 second'"
    )
    with connection.cursor() as cursor:
        cursor.execute('CREATE TEMPORARY TABLE base AS SELECT * FROM "gateway_turn"')
        for copy in range(1, count + 1):
            values = {
                **quoted,
                "id": "lower(hex(randomblob(16)))" if sqlite else "gen_random_uuid()",
                "session": f"replace(\"session\", ':0000', ':{copy:04x}')",
                "response_id": f"replace(\"response_id\", '_0', '_{copy}')",
                **{name: shifted.format(column=quoted[name], by=copy * span) for name in ("received_at", "settled_at")},
            }
            columns, copied = ", ".join(quoted.values()), ", ".join(values.values())
            cursor.execute(f'INSERT INTO "gateway_turn" ({columns}) SELECT {copied} FROM base')
        cursor.execute('DROP TABLE "base"')
        # As the databases themselves do it after a while; PostgreSQL reads an index alone only of what was vacuumed.
        cursor.execute("ANALYZE" if sqlite else "VACUUM ANALYZE")

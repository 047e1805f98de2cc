"""Measure the operator's pages on a long ledger: `python -m tests.bench.dashboard`.

Makes a database of its own with a million turns of a week (SQLite in a temporary folder, or with `--database` a URL
whose user may create databases), counts them into sums as the upkeep does, then asks for each page as a browser does,
without the network in between. Prints the times and, for each query that reads the ledger, the database's plan. The
exit code is 1 when a page takes longer than `--limit`.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import psycopg
from psycopg import sql

BASE = 10_000
WEEK = 7 * 86_400
PAGES = {
    "overview, 1 h": "/admin/?span=1h",
    "overview, 24 h": "/admin/?span=24h",
    "overview, 7 d": "/admin/?span=7d",
    "turns": "/admin/gateway/turn/",
    "turns, page 40": "/admin/gateway/turn/?p=40",
    "turns, failed": "/admin/gateway/turn/?outcome=failed",
    "turns, interrupted (none)": "/admin/gateway/turn/?outcome=interrupted",
    "turns of one account": "/admin/gateway/turn/?account={account}",
    "turns of one key": "/admin/gateway/turn/?key={key}",
    "turns within an hour": "/admin/gateway/turn/?received=1h",
    "turns of a day ago and before": "/admin/gateway/turn/?received=before-24h",
    "turns, more than 10 s": "/admin/gateway/turn/?longer=10",
    "turns, more than a minute": "/admin/gateway/turn/?longer=60",
    "turns, more than 10 min (none)": "/admin/gateway/turn/?longer=600",
    "failed turns of one account": "/admin/gateway/turn/?outcome=failed&account={account}",
    "refused turns of one key": "/admin/gateway/turn/?outcome=refused&key={key}",
    "one account, one key": "/admin/gateway/turn/?account={account}&key={key}",
    "one account, 10 min (none)": "/admin/gateway/turn/?account={account}&longer=600",
    "one account, a day ago": "/admin/gateway/turn/?account={account}&key={key}&received=before-24h",
    "all filters": "/admin/gateway/turn/?account={account}&key={key}&outcome=completed&longer=10",
    "turns of one session": "/admin/gateway/turn/?session={session}",
    "a turn by its response": "/admin/gateway/turn/?q=resp_17_3",
    "one turn": "/admin/gateway/turn/{turn}/change/",
}


@dataclass(slots=True)
class Measured:
    """One page: seconds of each run, those of them that this process was at work, and its queries with their plans."""

    name: str
    seconds: list[float] = field(default_factory=list)
    busy: list[float] = field(default_factory=list)
    plans: list[tuple[str, str]] = field(default_factory=list)

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.dashboard", description=__doc__)
    parser.add_argument("--turns", type=int, default=1_000_000)
    parser.add_argument("--runs", type=int, default=15)
    parser.add_argument("--limit", type=float, default=0.2, help="seconds that a page may take (default: %(default)s)")
    parser.add_argument("--database", default="", metavar="URL", help="a PostgreSQL server, instead of SQLite")
    return parser.parse_args()


@contextmanager
def own_database(url: str) -> Iterator[None]:
    """Point the settings to an empty database that is gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="pointsman-bench-") as folder:
        os.environ["GATEWAY_DATA_DIR"] = folder
        os.environ["DJANGO_SETTINGS_MODULE"] = "gateway.settings"
        os.environ.pop("DATABASE_URL", None)
        if not url:
            yield
            return
        name = f"board_bench_{os.getpid()}"
        os.environ["DATABASE_URL"] = urlsplit(url)._replace(path=f"/{name}").geturl()
        server = psycopg.connect(url.replace("postgres://", "postgresql://", 1), autocommit=True)
        server.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        try:
            yield
        finally:
            from django.db import connections

            connections.close_all()
            server.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))
            server.close()


def furnish(turns: int) -> dict[str, str]:
    """Migrate, and fill the ledger; what the addresses of pages need."""
    import django

    django.setup()
    from django.core.management import call_command
    from django.utils import timezone

    from gateway.models import Turn
    from gateway.watch.rollup import roll_up
    from tests.bench.ledger import base_turns, copies

    call_command("migrate", verbosity=0)
    accounts, keys = base_turns(BASE, WEEK / max(1, turns // BASE))
    copies(turns // BASE - 1, WEEK / max(1, turns // BASE))
    say(f"{Turn.objects.count():,} turns are there")
    minutes = 0
    while counted := roll_up(timezone.now()):
        minutes += counted
        if counted < 100:
            break
    say(f"{minutes:,} minutes are counted")
    one = Turn.objects.order_by("-received_at")[turns // 2]
    return {"account": str(accounts[0]), "key": str(keys[0]), "turn": str(one.pk), "session": one.session}


def measure(names: dict[str, str], runs: int) -> list[Measured]:
    """Ask for each page, and explain its queries."""
    from django.contrib.auth.models import User
    from django.test import Client

    client = Client()
    client.force_login(User.objects.create_superuser("bench", password=None))
    return [_measure(client, name, path.format(**names), runs) for name, path in PAGES.items()]


def _measure(client: object, name: str, path: str, runs: int) -> Measured:
    from django.db import connection
    from django.test.utils import CaptureQueriesContext

    measured = Measured(name)
    for _ in range(runs):
        began, worked = time.perf_counter(), time.process_time()
        answer = client.get(path)
        measured.seconds.append(time.perf_counter() - began)
        measured.busy.append(time.process_time() - worked)
        if answer.status_code != 200:
            raise SystemExit(f"{path} answered {answer.status_code}")
    with CaptureQueriesContext(connection) as queries:
        client.get(path)
    for query in queries.captured_queries:
        if 'FROM "gateway_turn"' in query["sql"] and query["sql"].startswith("SELECT"):
            measured.plans.append((query["sql"], plan(query["sql"])))
    return measured


def plan(query: str) -> str:
    """What the database says it does for `query`."""
    from django.db import connection

    explain = "EXPLAIN QUERY PLAN" if connection.vendor == "sqlite" else "EXPLAIN"
    with connection.cursor() as cursor:
        if connection.vendor == "sqlite":
            # The captured text is no SQL any more where it has texts in it: they are shown without quotes' escapes.
            cursor.execute(f"{explain} {query}")
            return "\n".join(str(row[3]) for row in cursor.fetchall())
        cursor.execute(f"{explain} {query}".replace("%", "%%"))
        return "\n".join(str(row[0]) for row in cursor.fetchall())


def report(pages: Sequence[Measured], limit: float) -> bool:
    """Print everything; whether all pages kept the limit."""
    from django.db import connection

    print(f"{connection.display_name}; medians of {len(pages[0].seconds)} runs: time, processor time, slowest run\n")
    for page in pages:
        mark = "" if page.median <= limit else "   TOO SLOW"
        times = (page.median, statistics.median(page.busy), max(page.seconds))
        shown = "".join(f"{seconds * 1000:7.0f} ms" for seconds in times)
        print(f"{page.name:32}{shown}{mark}")
    for page in pages:
        for query, explained in page.plans:
            print(f"\n{page.name}: {_short(query)}")
            print("\n".join(f"    {line}" for line in explained.splitlines()))
    return all(page.median <= limit for page in pages)


def _short(query: str) -> str:
    """The query without its columns."""
    rest = query[query.index("FROM") :]
    return f"SELECT {'COUNT(*)' if 'COUNT(' in query.split('FROM')[0] else '…'} {rest}".replace('"', "")


def say(text: str) -> None:
    print(f"[{time.monotonic() - BEGAN:4.0f} s] {text}", file=sys.stderr, flush=True)


BEGAN = time.monotonic()

if __name__ == "__main__":
    wanted = options()
    with own_database(wanted.database):
        names = furnish(wanted.turns)
        kept = report(measure(names, wanted.runs), wanted.limit)
    sys.exit(0 if kept else 1)

"""What a deployment needs, looked at from end to end: one finding each, with what is wrong and what to do.

Nothing is changed. What is written to try the database is rolled back, and what the loopback turn wrote is deleted.
"""

from __future__ import annotations

import asyncio
import stat
import time
import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from enum import StrEnum
from pathlib import Path

import httpx
import msgspec
from django.db import Error as AnyDatabaseError
from django.db import connection, transaction

from accounts.credentials import CredentialsError, OpenAICredentials, check_token_key
from accounts.models import Account
from accounts.registry import AccountSnapshot, StateChange
from accounts.states import Kind, State, Transport
from accounts.store import load_snapshots
from gateway.clock import Clock
from gateway.conf import Tunables, variable
from gateway.consumers.routes import traffic_app
from gateway.consumers.simple import document_app, not_found
from gateway.environment import unknown_settings
from gateway.keys import KeySnapshot, new_key
from gateway.metering.usage import NO_TALLY, Tally
from gateway.models import KeyUsage, Replica, Turn
from gateway.rows import unapplied_migrations
from gateway.runtime import Network, Runtime
from gateway.simulator import Options, SimulatedAccount, Simulator
from gateway.storage import DatabaseStore
from gateway.turns.ledger import Committed
from gateway.turns.record import TurnRecord
from gateway.turns.routing import credential_headers
from gateway.upstream.connection import WebSocketDialer
from gateway.upstream.http import HttpTransport

# Of `GATEWAY_…` variables that are no tunables.
OTHER_SETTINGS = (
    "GATEWAY_DATA_DIR",
    "GATEWAY_PORT",
    "GATEWAY_PEER_BIND",
    "GATEWAY_PEER_URL",
    "GATEWAY_PEER_PLAIN_HTTP",
)
PATIENCE = 10.0
MOST_SKEW = 5.0


class Level(StrEnum):
    """How a finding is; only `wrong` keeps the deployment from working."""

    GOOD = "ok"
    ODD = "warning"
    WRONG = "wrong"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at, in one line: what is, and if it is not good what to do."""

    subject: str
    level: Level
    text: str


def good(subject: str, text: str) -> Finding:
    return Finding(subject, Level.GOOD, text)


def odd(subject: str, text: str) -> Finding:
    return Finding(subject, Level.ODD, text)


def wrong(subject: str, text: str) -> Finding:
    return Finding(subject, Level.WRONG, text)


@dataclass(frozen=True, slots=True)
class Deployment:
    """What is looked at. `made_secrets` are files that this very command has made, since they were missing."""

    environment: Mapping[str, str]
    data_dir: Path
    tunables: Tunables
    token_keys: Sequence[str]
    broker: str
    port: int
    made_secrets: Sequence[str] = ()


def examine(deployment: Deployment) -> Iterator[Finding]:
    """Look at everything, one finding as soon as it is known. What builds on something wrong is left out."""
    yield from _settings(deployment)
    yield from _files(deployment)
    findings = list(_database())
    yield from findings
    yield _broker(deployment.broker)
    if any(finding.level is Level.WRONG for finding in findings):
        return
    keys = _keys(deployment.token_keys)
    yield keys
    if keys.level is not Level.WRONG:
        yield from asyncio.run(_accounts(deployment))
        yield asyncio.run(_loopback(deployment))
    yield _gateway(deployment.port)


def _settings(deployment: Deployment) -> Iterator[Finding]:
    known = [*OTHER_SETTINGS, *(variable(each.name) for each in fields(Tunables))]
    unknown = unknown_settings(deployment.environment, known)
    for sentence in unknown:
        yield odd("settings", sentence)
    if not unknown:
        given = sum(name in deployment.environment for name in known)
        yield good("settings", f"{given} of {len(known)} GATEWAY_ variables are set, all of them known")


def _files(deployment: Deployment) -> Iterator[Finding]:
    folder = deployment.data_dir
    for path in (folder, folder / "token_keys", folder / "secret_key"):
        try:
            mode = stat.S_IMODE(path.stat().st_mode)
        except OSError as error:
            yield wrong("files", f"{path} cannot be looked at ({error.strerror}); restore it, or set GATEWAY_DATA_DIR")
            continue
        if path.name in deployment.made_secrets:
            yield odd("files", f"{path} was missing, and a new one was made; if it was lost, put the old one back")
        elif mode & 0o077:
            yield odd("files", f"{path} is open to others (mode {mode:o}); chmod go= {path}")
        else:
            yield good("files", f"{path} is its owner's alone")


def _database() -> Iterator[Finding]:
    began = time.monotonic()
    try:
        missing = unapplied_migrations()
        if missing:
            yield wrong("database", f"it lacks {missing} migrations; run manage.py migrate")
            return
        with transaction.atomic():
            now = datetime.now(UTC)
            Replica.objects.create(id=uuid.uuid4(), host="doctor", process=0, started_at=now, heartbeat_at=now)
            transaction.set_rollback(True)
    except AnyDatabaseError as error:
        told = str(error).strip().splitlines() or [type(error).__name__]
        yield wrong("database", f"it cannot be used ({told[0]}); {_remedy()}")
        return
    took = (time.monotonic() - began) * 1000
    yield good("database", f"{connection.vendor} takes writes, all migrations are there ({took:.0f} ms)")
    yield _database_clock()


def _remedy() -> str:
    if connection.vendor != "sqlite":
        return "check DATABASE_URL and that the server runs"
    return (
        f"check the file {connection.settings_dict['NAME']}: that it is there, whose it is, and that its disk has room"
    )


def _database_clock() -> Finding:
    if connection.vendor != "postgresql":
        return good("clock", "the database has none of its own")
    with connection.cursor() as cursor:
        cursor.execute("SELECT extract(epoch FROM clock_timestamp())")
        (there,) = cursor.fetchone()
    return _skew("the database", float(there) - time.time())


def _skew(whose: str, seconds: float) -> Finding:
    if abs(seconds) > MOST_SKEW:
        return wrong("clock", f"that of {whose} differs by {seconds:+.0f} s; let NTP keep both, since limits end by it")
    return good("clock", f"agrees with that of {whose}")


def _broker(url: str) -> Finding:
    if not url:
        return good("broker", "none is set, so a gateway process does the upkeep")
    from kombu import Connection
    from kombu.exceptions import KombuError

    try:
        with Connection(url, connect_timeout=3) as broker:
            broker.ensure_connection(max_retries=1, interval_start=0, interval_step=0, timeout=5)
    except (OSError, KombuError, ImportError, ValueError) as error:
        return wrong("broker", f"CELERY_BROKER_URL does not answer ({type(error).__name__}); start it, or unset it")
    return good("broker", "it answers; upkeep needs `celery -A gateway worker` and `celery -A gateway beat`")


def _keys(token_keys: Sequence[str]) -> Finding:
    try:
        check_token_key(Account.objects.only("name", "credentials"), token_keys)
    except CredentialsError as error:
        return wrong("token keys", str(error))
    return good("token keys", f"they open the credentials of all {Account.objects.count()} accounts")


async def _accounts(deployment: Deployment) -> list[Finding]:
    store = DatabaseStore(deployment.token_keys, 1, deployment.tunables.lease_ttl)
    http = HttpTransport(deployment.tunables, Clock())
    try:
        loaded = await store.run(load_snapshots, deployment.token_keys, 1)
        if not loaded:
            return [wrong("accounts", "there is none; add one with manage.py add_account or login_account")]
        return [finding for account in loaded for finding in await _account(account, http)]
    finally:
        await http.close()
        store.close()


async def _account(account: AccountSnapshot, http: HttpTransport) -> list[Finding]:
    subject = f"account {account.name}"
    if account.credentials is None:
        return [wrong(subject, f"{account.state_reason} Sign it in with manage.py login_account {account.name}")]
    if account.state is State.DISABLED:
        return [odd(subject, "is disabled, and was not spoken to; enable it in the admin")]
    query = "?client_version=0.171.0" if account.kind is Kind.CODEX else ""
    headers = {**credential_headers(account), "accept": "application/json"}
    try:
        async with asyncio.timeout(PATIENCE):
            answer = await http.look(account.base_url + "/models" + query, headers, account.proxy)
    except (TimeoutError, httpx.HTTPError) as error:
        host = httpx.URL(account.base_url).host
        return [wrong(subject, f"{host} cannot be reached ({type(error).__name__}); check network, proxy and base URL")]
    return [_told(subject, account, answer), *_account_clock(answer)]


def _told(subject: str, account: AccountSnapshot, answer: httpx.Response) -> Finding:
    status = answer.status_code
    if status in (401, 403):
        remedy = "login_account" if account.kind is Kind.CODEX else "add_account --replace"
        return wrong(subject, f"its upstream refuses its token ({status}); run manage.py {remedy} {account.name}")
    if status >= 500:
        return odd(subject, f"its upstream answers {status} to the question for models; it has trouble, so look again")
    if status >= 400:
        return odd(subject, f"its upstream answers {status} to the question for models; check its base URL")
    state = account.state_at(time.time())
    if state is not State.ACTIVE:
        return odd(
            subject, f"can be reached, but is {state.replace('_', ' ')}: {account.state_reason or 'by decision'}"
        )
    return good(subject, f"its token is accepted, and it is {state}")


def _account_clock(answer: httpx.Response) -> list[Finding]:
    try:
        there = parsedate_to_datetime(answer.headers.get("date", "")).timestamp()
    except ValueError:
        return []
    found = _skew(answer.request.url.host, there - time.time())
    return [found] if found.level is Level.WRONG else []


class LoopbackStore(DatabaseStore):
    """The deployment's database with one account and one key that are not in it."""

    def __init__(self, deployment: Deployment, account: AccountSnapshot, key: KeySnapshot) -> None:
        super().__init__(deployment.token_keys, 1, deployment.tunables.lease_ttl)
        self._account = account
        self._key = key
        self.turns: set[uuid.UUID] = set()

    async def load_keys(self) -> Sequence[KeySnapshot]:
        return [self._key]

    async def load_accounts(self, known: Sequence[AccountSnapshot]) -> Sequence[AccountSnapshot] | None:
        return None if known else [self._account]

    async def persist_state(self, change: StateChange) -> bool:
        return True

    async def write_turns(
        self, replica: uuid.UUID, records: Sequence[TurnRecord], tally: Tally = NO_TALLY
    ) -> Committed:
        self.turns.update(record.request.id for record in records)
        return await super().write_turns(replica, records, tally)


class NoRefresher:
    """A simulated account's token is never renewed."""

    async def refresh(self, account: int, refused: str | None = None) -> object:
        raise NotImplementedError

    async def keep(self, proxies: Collection[str]) -> None:
        """There are no connections."""

    async def close(self) -> None:
        """Nothing is under way."""


async def _loopback(deployment: Deployment) -> Finding:
    """A turn through the whole gateway to a simulated upstream, written into the deployment's own ledger."""
    began = time.monotonic()
    made = new_key()
    key = KeySnapshot(0, "doctor", made.lookup, made.digest)
    async with Simulator(accounts={"sim-doctor": SimulatedAccount("doctor")}, options=Options(interval=0)) as upstream:
        account = _simulated(upstream.url)
        store = LoopbackStore(deployment, account, key)
        clock = Clock()
        network = Network(
            WebSocketDialer(deployment.tunables, clock),
            HttpTransport(deployment.tunables, clock),
            NoRefresher(),  # type: ignore[arg-type]  # it is never asked
        )
        runtime = Runtime(replace(deployment.tunables, drain_timeout=5.0), store, clock, network)
        try:
            await runtime.start()
            answer = await _ask(runtime, made.text)
        except Exception as error:  # noqa: BLE001  # whatever it is, it is what the doctor was asked to find
            return wrong("loopback turn", f"it failed ({type(error).__name__}: {error})"[:300])
        finally:
            turns, replica = store.turns, runtime.id
            await runtime.drain()
            await runtime.stop()
    await asyncio.to_thread(_forget, turns, replica)
    took = (time.monotonic() - began) * 1000
    if answer:
        return wrong("loopback turn", answer)
    return good("loopback turn", f"a simulated account has answered one, and the ledger has taken it ({took:.0f} ms)")


def _simulated(base_url: str) -> AccountSnapshot:
    return AccountSnapshot(
        id=0,
        name="doctor",
        kind=Kind.OPENAI,
        base_url=base_url,
        transport=Transport.HTTP,
        priority=0,
        state=State.ACTIVE,
        state_reason="",
        state_until=None,
        streams=1,
        credentials=OpenAICredentials("sim-doctor"),
        account_id="",
        revision=1,
    )


async def _ask(runtime: Runtime, key: str) -> str:
    """What is wrong with the answer to one turn, empty if nothing is."""
    app = traffic_app(lambda: runtime.gate, document_app(not_found))
    transport = httpx.ASGITransport(app=app)  # type: ignore[arg-type]  # the same protocol in other words
    async with httpx.AsyncClient(transport=transport, base_url="http://doctor", timeout=PATIENCE) as client:
        headers = {"authorization": f"Bearer {key}"}
        answer = await client.post("/v1/responses", json={"model": "gpt-5.5", "input": "hi"}, headers=headers)
    if answer.status_code != 200:
        return f"it was answered {answer.status_code} {answer.text[:200]}"
    status = msgspec.json.decode(answer.content).get("status")
    return "" if status == "completed" else f"the response is {status}, not completed"


def _forget(turns: set[uuid.UUID], replica: uuid.UUID) -> None:
    Turn.objects.filter(id__in=turns).delete()
    KeyUsage.objects.filter(replica=replica).delete()
    Replica.objects.filter(id=replica).delete()
    connection.close()


def _gateway(port: int) -> Finding:
    subject, url = "gateway", f"http://127.0.0.1:{port}/readyz"
    try:
        answer = httpx.get(url, trust_env=False, timeout=PATIENCE)
    except httpx.HTTPError:
        return odd(subject, f"nothing answers at {url}; if it should run, start manage.py serve")
    if answer.status_code == 200:
        return good(subject, f"{url} says that it is ready")
    try:
        checks: dict[str, str] = answer.json().get("checks", {})
    except ValueError:
        return odd(subject, f"what answers at {url} is not this gateway; set GATEWAY_PORT to the gateway's port")
    problems = [f"{name}: {problem}" for name, problem in checks.items() if problem != "ok"]
    missing = ", ".join(problems) or f"status {answer.status_code}; it may be stopping"
    return wrong(subject, f"{url} says that it is not ready ({missing})")

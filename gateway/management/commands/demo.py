"""Show a gateway at work: a real one, in front of two simulated accounts."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import tempfile
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import NoReturn, TypedDict, Unpack

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser

from gateway.management.demo_client import DemoClient, Told, TurnFailed
from gateway.management.demo_gateway import DemoGateway, StartFailed
from gateway.simulator import Options, SimulatedAccount, Simulator

NAMES = ("ada", "bo")
LIMIT_SECONDS = 3600.0
LABEL_WIDTH = 46
TRANSPORTS = {"http": "HTTP", "websocket": "a WebSocket"}

KEPT = """
{title}
  admin      {url}/admin/   user admin, password {password}
  API key    {key}
  OpenAI     {url}/v1
  Codex      {url}/backend-api/codex

Try in another terminal:
  curl -N {url}/v1/responses -H "Authorization: Bearer {key}" \\
    -H "Content-Type: application/json" -d '{{"model": "demo", "input": "hi", "stream": true}}'
  curl {url}/readyz
  GATEWAY_DATA_DIR={data_dir} {manage} list_accounts
"""
NEXT = """
{title}
  {manage} demo --keep
      the same, left running: look at accounts, keys and turns in its admin
  {manage} serve
      your own gateway; its first start prints an API key and the admin password,
      its admin is at http://127.0.0.1:8045/admin/
  README.md
      how to set up Codex or an OpenAI SDK, and how to add your accounts
"""


class Arguments(TypedDict):
    """What `handle` reads; Django passes its own options besides."""

    keep: bool
    interval: float


class Command(BaseCommand):
    help = (
        "Start a gateway with two simulated accounts, send turns through it, and clean up. Needs no real account, "
        "and nothing leaves this machine."
    )
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--keep", action="store_true", help="leave it running until Ctrl-C")
        parser.add_argument(
            "--interval", type=float, default=0.05, metavar="S", help="seconds between two events (%(default)s)"
        )

    def handle(self, *args: object, **options: Unpack[Arguments]) -> str:
        if options["interval"] < 0:
            raise CommandError("--interval must not be negative.")
        self._began = time.monotonic()
        try:
            asyncio.run(self._run(options["keep"], options["interval"]))
        except asyncio.CancelledError:
            # Only a signal cancels it, after which everything has been cleaned up.
            self.stdout.write("\n")
            if not options["keep"]:
                raise CommandError("Interrupted; everything is stopped and removed.", returncode=130) from None
        except (StartFailed, TurnFailed) as error:
            self.stdout.write("\n")
            raise CommandError(str(error)) from None
        return f"Everything is stopped and removed, after {time.monotonic() - self._began:.0f} s."

    async def _run(self, keep: bool, interval: float) -> None:
        cancel_on_signals()
        self._say(self.style.MIGRATE_HEADING("A gateway between two clients and two simulated accounts"))
        async with AsyncExitStack() as stack:
            accounts = {f"sim-{name}": SimulatedAccount(name) for name in NAMES}
            upstream = Simulator(accounts=accounts, options=Options(interval=interval))
            await stack.enter_async_context(upstream)
            self._begin("Simulate an upstream with two accounts")
            self._end(upstream.url)
            gateway = await self._start_gateway(stack, upstream)
            try:
                await self._show_turns(DemoClient(gateway.url, gateway.key, self._tell), accounts, upstream)
            except TurnFailed as error:
                raise TurnFailed(f"{error}\nThe gateway's log ends with:\n{gateway.log()}") from error
            if keep:
                await self._keep(gateway)
        if not keep:
            title = self.style.MIGRATE_HEADING("Where to go from here")
            self._say(NEXT.format(title=title, manage=manage()))

    async def _start_gateway(self, stack: AsyncExitStack, upstream: Simulator) -> DemoGateway:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="pointsman-demo-"))
        gateway = DemoGateway(Path(folder), settings.BASE_DIR / "manage.py")
        self._begin("Make a database in a temporary data folder")
        await gateway.run("migrate", "--verbosity", "0")
        self._end(folder)
        self._begin(f"Add the accounts {' and '.join(NAMES)}")
        await asyncio.gather(*(gateway.add_account(name, f"sim-{name}", upstream.url) for name in NAMES))
        self._end("done")
        self._begin("Start the gateway")
        await stack.enter_async_context(gateway)
        self._end(gateway.url)
        return gateway

    async def _show_turns(self, client: DemoClient, accounts: dict[str, SimulatedAccount], upstream: Simulator) -> None:
        self._heading("An OpenAI client asks over HTTP and reads server-sent events")
        told = await client.ask_over_sse("Every word is here as soon as the account has said it.")
        first = self._explain(told, upstream)

        self._heading("A Codex client asks over a WebSocket")
        told = await client.ask_over_websocket("This connection stays open, and the next turn continues on it.")
        self._explain(told, upstream)

        self._heading(f"{first} is at its usage limit, and the first client asks again")
        accounts[f"sim-{first}"].limited_until = time.time() + LIMIT_SECONDS
        told = await client.ask_over_sse("The same conversation, now with an account that is not limited.")
        self._explain(told, upstream)
        self._say(f"  {first} refused before anything ran, so the turn could move; {first} rests until its reset")

    def _explain(self, told: Told, upstream: Simulator) -> str:
        """Say who served the newest turn and how fast; returns the account's name."""
        served = upstream.observed.requests[-1]
        self._say(
            f"\n  served by {self.style.SUCCESS(served.account)}, reached over {TRANSPORTS[served.transport]}; "
            f"first event after {told.first_event * 1000:.0f} ms, {told.events} events in {told.seconds:.1f} s"
        )
        return served.account

    async def _keep(self, gateway: DemoGateway) -> NoReturn:
        self._say(
            KEPT.format(
                title=self.style.MIGRATE_HEADING("It goes on until Ctrl-C"),
                url=gateway.url,
                password=gateway.password,
                key=gateway.key,
                data_dir=gateway.data_dir,
                manage=manage(),
            )
        )
        await gateway.wait()
        raise StartFailed(f"The gateway has ended by itself.\n{gateway.log()}")

    def _begin(self, label: str) -> None:
        self._tell(f"  {label} ".ljust(LABEL_WIDTH, ".") + " ")

    def _end(self, result: str) -> None:
        self._say(self.style.SUCCESS(result))

    def _heading(self, text: str) -> None:
        self._say("\n" + self.style.MIGRATE_HEADING(text))
        self._tell("  ")

    def _say(self, text: str) -> None:
        self._tell(text + "\n")

    def _tell(self, text: str) -> None:
        self.stdout.write(text, ending="")
        self.stdout.flush()


def manage() -> str:
    """How to call this project's commands, from where the user is."""
    python = os.path.relpath(sys.executable)
    return f"{sys.executable if python.startswith('..') else python} {sys.argv[0]}"


def cancel_on_signals() -> None:
    """Cancel the calling task, once, when the process is asked to end."""
    task = asyncio.current_task()
    assert task is not None  # noqa: S101  # a coroutine runs in one
    asked = False

    def stop() -> None:
        nonlocal asked
        if not asked:
            asked = True
            task.cancel()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, stop)

"""Run a simulated upstream, to try a gateway without any real account."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import TypedDict, Unpack

from django.core.management.base import BaseCommand, CommandError, CommandParser

from gateway.simulator import FaultError, Options, Simulator

BANNER = """A simulated upstream listens on
  {v1}  (OpenAI API)
  {codex}  (Codex backend)
It accepts every token; the token sim-ada belongs to an account named ada, which signs its answers.
Add it to a gateway with
  echo sim-ada | python manage.py add_account ada --kind openai --api-key-file - --base-url {v1}
Add a fault, or see the known ones, with
  curl {control}/faults -d '{{"fault": "reset/5#1"}}'
  curl {control}/faults
Ctrl-C stops it."""


class Arguments(TypedDict):
    """What `handle` reads; Django passes its own options besides."""

    host: str
    port: int
    fault: list[str]
    events: int | None
    interval: float


class Command(BaseCommand):
    help = "Run an upstream that behaves like the Codex backend and the OpenAI Responses API, with faults on request."
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--host", default="127.0.0.1")
        parser.add_argument("--port", type=int, default=8899, help="0 takes a free one (%(default)s)")
        parser.add_argument(
            "--fault",
            action="append",
            default=[],
            metavar="NAME",
            help="name[:argument][@account][#times][/position][~audience]; may be given several times",
        )
        parser.add_argument("--events", type=int, metavar="N", help="text deltas in each answer")
        parser.add_argument("--interval", type=float, default=0.0, metavar="S", help="seconds between events")

    def handle(self, *args: object, **options: Unpack[Arguments]) -> str:
        if options["events"] is not None and options["events"] < 1:
            raise CommandError("--events must be at least 1.")
        if options["interval"] < 0:
            raise CommandError("--interval must not be negative.")
        shape = Options(events=options["events"], interval=options["interval"])
        try:
            simulator = Simulator(options["host"], options["port"], faults=options["fault"], options=shape)
        except FaultError as error:
            raise CommandError(str(error)) from None
        try:
            return asyncio.run(self._serve(simulator))
        except OSError as error:
            place = f"{options['host']}:{options['port']}"
            reason = os.strerror(error.errno or 0)
            raise CommandError(f"Cannot listen on {place}: {reason}. Choose another --port.") from error

    async def _serve(self, simulator: Simulator) -> str:
        stopped = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stopped.set)
        async with simulator:
            self.stdout.write(
                BANNER.format(
                    v1=simulator.url,
                    codex=simulator.base_url("/backend-api/codex"),
                    control=simulator.base_url("/_simulator"),
                )
            )
            self.stdout.flush()
            await stopped.wait()
        return f"The simulated upstream has stopped. {simulator.observed!r}"

from __future__ import annotations

import sys
from argparse import ArgumentParser
from typing import cast

from asgiref.typing import ASGI3Application
from django.conf import settings
from django.core.management.base import BaseCommand, CommandError
from django.db import DatabaseError

from accounts.credentials import CredentialsError
from gateway import install, logs
from gateway.conf import Tunables
from gateway.management.ports import configured_port
from gateway.server import Endpoint, GatewayServer, ListenError, ServerLimits, TcpEndpoint
from gateway.version import VERSION

FIRST_START = """
First start. These are shown once:
  admin     {url}/admin/  user {admin}, password {password}
  API key   {key}

For the Codex CLI, in ~/.codex/config.toml:

  model_provider = "pointsman"

  [model_providers.pointsman]
  name = "Pointsman"
  base_url = "{url}/backend-api/codex"
  env_key = "POINTSMAN_API_KEY"
  wire_api = "responses"
  supports_websockets = true

and in its terminal: export POINTSMAN_API_KEY={key}
"""
NO_ACCOUNT = """
No account yet. In another terminal, add one with
  {python} manage.py add_account NAME --kind codex --auth-json ~/.codex/auth.json
or
  {python} manage.py add_account NAME --kind openai --api-key-file FILE
"""


class Command(BaseCommand):
    help = "Run the gateway: traffic and admin on one port."
    # The database may not exist before this command makes it.
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
        parser.add_argument("--port", type=int, help="port to listen on (default: PORT, GATEWAY_PORT or 8045)")

    def handle(self, *, host: str, port: int | None, **options: object) -> None:
        logs.configure()
        self._prepare()
        secrets = install.make_first_secrets()
        endpoint = TcpEndpoint(host, configured_port() if port is None else port)
        self._run(endpoint, secrets)

    def _prepare(self) -> None:
        try:
            install.prepare_database()
            install.check_credentials(settings.TOKEN_KEYS)
        except (install.NotInstalled, CredentialsError) as error:
            raise CommandError(str(error)) from None
        except DatabaseError as error:
            raise CommandError(
                f"The database cannot be used ({error}); check DATABASE_URL and GATEWAY_DATA_DIR."
            ) from None

    def _run(self, endpoint: Endpoint, secrets: install.FirstSecrets | None) -> None:
        from gateway.asgi import application

        async def shut_down() -> None:
            await server.stop_listening()
            await application.shutdown()

        server = GatewayServer(
            cast(ASGI3Application, application),
            [endpoint],
            limits=limits(settings.GATEWAY),
            on_startup=application.startup,
            on_shutdown=shut_down,
            ready=lambda addresses: self._announce(addresses[0], secrets),
        )
        try:
            server.run()
        except ListenError as error:
            raise CommandError(str(error)) from None

    def _announce(self, address: tuple[str, int], secrets: install.FirstSecrets | None) -> None:
        host, port = address
        url = f"http://{'127.0.0.1' if host in ('0.0.0.0', '::') else host}:{port}"  # noqa: S104
        self.stdout.write(f"Pointsman {VERSION} is ready on {url}")
        if secrets is not None:
            self.stdout.write(
                FIRST_START.format(url=url, admin=install.ADMIN, password=secrets.password, key=secrets.key)
            )
        if not install.has_accounts():
            self.stdout.write(NO_ACCOUNT.format(python=sys.executable))
        self.stdout.flush()


def limits(tunables: Tunables) -> ServerLimits:
    """The server's limits, from the same tunables as everything else."""
    return ServerLimits(
        max_message_bytes=tunables.max_body_bytes,
        queue_bytes=2 * tunables.max_body_bytes,
        ping_interval=tunables.ping_interval,
        ping_timeout=tunables.websocket_idle_timeout,
        close_timeout=tunables.close_timeout,
        stall_timeout=tunables.client_stall_timeout,
    )

from __future__ import annotations

import http.client
import sys
from argparse import ArgumentParser

from django.core.management.base import BaseCommand

from gateway.management.ports import configured_port

TIMEOUT = 3.0


class Command(BaseCommand):
    help = (
        "Ask the gateway on this machine whether it is alive; exit code 0 if so, else 1. For container health checks."
    )
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--port", type=int, help="port to ask (default: PORT, GATEWAY_PORT or 8045)")
        parser.add_argument(
            "--ready", action="store_true", help="ask whether it can take turns, not just whether it is alive"
        )

    def handle(self, *, port: int | None, ready: bool, **options: object) -> str:
        path = "/readyz" if ready else "/healthz"
        # `http.client` knows no proxies, so none in the environment can stand between.
        connection = http.client.HTTPConnection(
            "127.0.0.1", configured_port() if port is None else port, timeout=TIMEOUT
        )
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            body = response.read(4096).decode("utf-8", "replace")
        except (OSError, http.client.HTTPException) as error:
            self.stderr.write(f"The gateway does not answer on port {connection.port}: {error}")
            sys.exit(1)
        finally:
            connection.close()
        if response.status != 200:
            self.stderr.write(body)
            sys.exit(1)
        return body

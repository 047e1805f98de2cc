from __future__ import annotations

import logging
import os
from argparse import ArgumentParser

import structlog
from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from gateway.doctor import Deployment, Level, examine
from gateway.management.ports import configured_port


class Command(BaseCommand):
    help = "Look at everything that this deployment needs and say in one line each what is wrong and what to do."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--port", type=int, help="where the gateway listens (default: PORT, GATEWAY_PORT or 8045)")

    def handle(self, *, port: int | None, **options: object) -> str:
        # What the loopback turn logs is said by its finding.
        structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
        deployment = Deployment(
            os.environ,
            settings.DATA_DIR,
            settings.GATEWAY,
            settings.TOKEN_KEYS,
            settings.CELERY_BROKER_URL,
            configured_port() if port is None else port,
            settings.MADE_SECRETS,
        )
        counts = dict.fromkeys(Level, 0)
        styles = {Level.GOOD: self.style.SUCCESS, Level.ODD: self.style.WARNING, Level.WRONG: self.style.ERROR}
        for finding in examine(deployment):
            counts[finding.level] += 1
            self.stdout.write(f"{styles[finding.level](f'{finding.level:<8}')} {finding.subject}: {finding.text}")
        if counts[Level.WRONG]:
            raise CommandError(f"{counts[Level.WRONG]} wrong, {counts[Level.ODD]} to look at.")
        return f"Nothing is wrong, {counts[Level.ODD]} to look at."

"""The arguments that say how an account is used, shared by the commands that store one."""

from __future__ import annotations

from typing import TypedDict

from django.core.management.base import CommandParser

from accounts.states import Transport
from accounts.store import Options


class OptionArguments(TypedDict, total=False):
    """What `add_options` makes of the command line."""

    base_url: str | None
    transport: str | None
    priority: int | None


def add_options(parser: CommandParser) -> None:
    """Let the command line say how the account is used; read it with `read_options`."""
    parser.add_argument("--base-url", metavar="URL", help="what /responses is appended to")
    parser.add_argument("--transport", choices=[transport.value for transport in Transport])
    parser.add_argument("--priority", type=int, metavar="N", help="the lower number is used first (100)")


def read_options(arguments: OptionArguments) -> Options:
    """What was said, with None for what was not."""
    transport = arguments.get("transport")
    return Options(
        base_url=arguments.get("base_url"),
        transport=None if transport is None else Transport(transport),
        priority=arguments.get("priority"),
    )

"""The arguments that say how an account is used, shared by the commands that store one."""

from __future__ import annotations

import re
from argparse import ArgumentTypeError, _MutuallyExclusiveGroup
from pathlib import Path
from typing import TypedDict

from django.core.management.base import CommandError, CommandParser

from accounts.proxy import InvalidProxy, clean_proxy
from accounts.states import Transport
from accounts.store import MOST_PRIORITY, Options

MAX_PROXY = 2000


class OptionArguments(TypedDict, total=False):
    """What `add_options` makes of the command line."""

    base_url: str | None
    transport: str | None
    priority: int | None
    proxy_file: str | None
    no_proxy: bool


def add_options(parser: CommandParser) -> None:
    """Let the command line say how the account is used; read it with `read_options`."""
    parser.add_argument("--base-url", metavar="URL", help="what /responses is appended to")
    parser.add_argument("--transport", choices=[transport.value for transport in Transport])
    parser.add_argument("--priority", type=priority, metavar="N", help="the lower number is used first (100)")
    add_proxy_options(parser.add_mutually_exclusive_group())


def priority(text: str) -> int:
    """Read a number that every database can hold; raises `ArgumentTypeError`."""
    if not re.fullmatch(r"-?\d{1,9}", text, re.ASCII):
        raise ArgumentTypeError(f"a priority is a whole number from -{MOST_PRIORITY} to {MOST_PRIORITY}")
    return int(text)


def add_proxy_options(parser: CommandParser | _MutuallyExclusiveGroup) -> None:
    """Let the command line give an account a proxy of its own, or take it away; read it with `read_proxy`."""
    parser.add_argument(
        "--proxy-file",
        metavar="FILE",
        help="file with the URL of the account's own proxy (http, https or socks5), a file because it may hold a "
        "password; all that goes to the account goes by it",
    )
    parser.add_argument("--no-proxy", action="store_true", help="the account has no proxy of its own")


def read_options(arguments: OptionArguments) -> Options:
    """What was said, with None for what was not."""
    transport = arguments.get("transport")
    return Options(
        base_url=arguments.get("base_url"),
        transport=None if transport is None else Transport(transport),
        priority=arguments.get("priority"),
        proxy=read_proxy(arguments),
    )


def read_proxy(arguments: OptionArguments) -> str | None:
    """The proxy in its one form, empty for none, None when nothing was said; raises `CommandError`."""
    file = arguments.get("proxy_file")
    if file is None:
        return "" if arguments.get("no_proxy") else None
    try:
        with Path(file).open(encoding="ascii", errors="replace") as opened:
            return clean_proxy(opened.read(MAX_PROXY))
    except OSError as error:
        raise CommandError(f"The file {file} cannot be read ({error.strerror}).") from error
    except InvalidProxy as error:
        raise CommandError(str(error)) from None

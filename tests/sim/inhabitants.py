"""Who is there from the beginning: the accounts, and the clients with their keys."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import TYPE_CHECKING

from accounts.credentials import OpenAICredentials
from accounts.states import Kind, Transport
from gateway.keys import KeySnapshot, NewKey, digest
from tests.sim.clients.base import Client
from tests.sim.clients.codex import CodexClient
from tests.sim.clients.rude import RudeClient
from tests.sim.clients.sdk import SdkClient
from tests.sim.options import CLIENTS
from tests.sim.store import SimStore
from tests.sim.upstream import Upstream
from tests.support.inprocess import account

if TYPE_CHECKING:
    from tests.sim.world import World


def add_accounts(store: SimStore, upstream: Upstream) -> None:
    kinds = (("ada", Kind.CODEX), ("bo", Kind.CODEX), ("cy", Kind.CODEX), ("dee", Kind.OPENAI), ("eve", Kind.CODEX))
    for number, (name, kind) in enumerate(kinds, 1):
        path = "/backend-api/codex" if kind is Kind.CODEX else "/v1"
        made = account(number, name, f"http://{name}{path}", kind=kind, streams=3, priority=number // 2)
        credentials = OpenAICredentials(upstream.issue(name))
        transport = Transport.HTTP if name == "cy" else Transport.AUTO
        store.accounts[number] = replace(made, credentials=credentials, transport=transport)


def make_clients(world: World) -> list[Client]:
    """Those that the options choose; what each of them does is the same, whoever else is there."""
    made: list[Client] = []
    options = world.options
    for number in range(CLIENTS):
        random = world.random(f"client {number}")
        key = _key(world, number // 3)
        common = (world, f"c{number}", key, number // 3 + 1, random)
        if number < 9:
            session = f"team-{number // 3}" if number % 3 == 2 else ""
            made.append(CodexClient(*common, websockets=True, session=session))
        elif number < 14:
            made.append(CodexClient(*common, websockets=False))
        elif number < 20:
            made.append(SdkClient(*common))
        elif "rude" in options.faults:
            made.append(RudeClient(*common))
        if "rude" not in options.faults and made:
            made[-1].rude = 0.0
    chosen = options.clients
    return [client for number, client in enumerate(made) if chosen is None or number in chosen]


def _key(world: World, number: int) -> str:
    """The text of a key that the store knows; three clients share one."""
    secret = hashlib.sha256(f"{world.options.seed} key {number}".encode()).hexdigest()
    key = NewKey(f"pm_k{number}_{secret}", f"k{number}", digest(secret))
    if all(known.lookup != key.lookup for known in world.store.keys):
        world.store.keys.append(KeySnapshot(number + 1, f"key {number}", key.lookup, key.digest))
    return key.text

"""Two processes that refresh one account's single-use token in turns, as fast as they can.

`python -m tests.accounts.contenders GOAL` prepares a database in GATEWAY_DATA_DIR, with one account, and forks. Each
process takes the token it finds for refused and has it refreshed, until it has seen GOAL refreshes. One line of JSON
for each process tells what came of its tries, a last line the refresh token that is stored.
"""

from __future__ import annotations

import json
import os
import sys
from collections import Counter

import django
from asgiref.sync import async_to_sync


def number_of(refresh_token: str) -> int:
    return int(refresh_token.rpartition("-")[2])


def contend(account_id: int, goal: int) -> Counter[str]:
    from django.conf import settings

    from accounts.credentials import unseal
    from accounts.issuer import read_issuer
    from accounts.models import Account
    from accounts.token_store import JUST_REFRESHED
    from accounts.tokens import Refresher, Waiting, run_in_caller
    from accounts.web import Web
    from tests.accounts.cast import NOW

    results: Counter[str] = Counter()
    seen = 0

    def stored():
        return unseal(Account.objects.get(id=account_id).credentials, settings.TOKEN_KEYS)

    def wall():
        # Enough time goes by between two refreshes that a refused token is not a hopeless one.
        return NOW + seen * JUST_REFRESHED

    async def run():
        nonlocal seen
        async with Web() as web:
            issuer = read_issuer(os.environ)
            refresher = Refresher(web.post, run_in_caller, issuer, settings.TOKEN_KEYS, Waiting(0.002, wall))
            credentials = await run_in_caller(stored)
            while number_of(credentials.refresh_token) < goal:
                seen = number_of(credentials.refresh_token)
                refreshed = await refresher.refresh(account_id, credentials.access_token)
                results[refreshed.result] += 1
                if refreshed.credentials is None:
                    raise SystemExit(f"lost: {refreshed.why}")
                credentials = refreshed.credentials
            await refresher.close()

    async_to_sync(run)()
    return results


def main(goal: int) -> None:
    django.setup()
    from django.conf import settings
    from django.core.management import call_command
    from django.db import connections

    from accounts.auth_json import Imported
    from accounts.credentials import CodexCredentials, unseal
    from accounts.store import Options, add_account
    from tests.accounts.issuing import access_token

    call_command("migrate", "accounts", verbosity=0)
    first = Imported(CodexCredentials(access_token(0), "refresh-0"))
    account = add_account("ada", first, Options(), settings.TOKEN_KEYS)
    connections.close_all()
    children = []
    for _ in range(2):
        child = os.fork()
        if child == 0:
            # In one call: both processes write to the same pipe.
            os.write(1, f"{json.dumps(contend(account.id, goal))}\n".encode())
            os._exit(0)
        children.append(child)
    for child in children:
        os.waitpid(child, 0)
    account.refresh_from_db()
    print(account.state, unseal(account.credentials, settings.TOKEN_KEYS).refresh_token, flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))

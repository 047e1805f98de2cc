"""Accounts that are being drained: paused, until the last turn that they had has ended."""

from __future__ import annotations

from datetime import datetime, timedelta

from accounts.control import DRAINING, drained
from accounts.models import Account
from accounts.states import State
from gateway.models import Replica, Turn

# A turn that had been given to the account may be opening a connection, and is in the ledger only after that.
SETTLING = timedelta(seconds=30)


def finish_drains(now: datetime) -> str:
    """Note which of them carry nothing any more. The ledger knows of every turn that was sent."""
    names = []
    # By replica, as the index has it; what is open of others is closed without having run to its end.
    alive = Replica.objects.filter(stopped_at=None).values("id")
    paused = Account.objects.filter(state=State.PAUSED, state_reason=DRAINING, updated_at__lte=now - SETTLING)
    for account in paused.only("name"):
        running = Turn.objects.filter(replica__in=alive, outcome="", account_id=account.id)
        if not running.exists() and drained(account.id):
            names.append(account.name)
    return f"Drained: {', '.join(names)}." if names else "No account has been drained."

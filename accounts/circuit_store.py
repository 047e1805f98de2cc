"""The circuits that the gateway's processes share, in the database: synchronous functions."""

from __future__ import annotations

from datetime import UTC, datetime
from uuid import UUID

from django.db import transaction
from django.utils import timezone

from accounts.circuit import CircuitState
from accounts.circuits import CircuitChange, SharedCircuit
from accounts.models import Account, AccountCircuit
from accounts.states import What
from accounts.store import note_event


def save_circuit(change: CircuitChange) -> bool:
    """Store `change`, with an event when the circuit opened or closed, if nobody else was first; whether it was.

    False means that a newer version is stored, or that the account is gone.
    """
    new = change.circuit
    with transaction.atomic():
        # This raises the revision, by which other processes notice, and locks the account's row.
        if Account.objects.filter(id=change.account).update(updated_at=timezone.now()) == 0:
            return False
        row, _ = AccountCircuit.objects.get_or_create(account_id=change.account)
        if row.version != new.version - 1:
            return False
        before = row.shared()
        AccountCircuit.objects.filter(account_id=change.account).update(
            version=new.version,
            writer=new.writer,
            state=new.state,
            since=_time(new.since),
            until=_time(new.until),
            ejections=new.ejections,
            good_probes=new.good_probes,
            probed_at=_time(new.probed_at),
            failed_as=new.failed_as or "",
        )
        _note(change.account, before, new, change.by)
    return True


def _note(account: int, before: SharedCircuit, new: SharedCircuit, by: UUID | str) -> None:
    if new.state is CircuitState.OPEN and new.until != before.until:
        lasts = f"for {(new.until or new.since) - new.since:.0f} s"
        told = f"the newest failure: {new.failed_as}; {lasts}" if new.failed_as else lasts
        note_event(account, What.CIRCUIT_OPENED, told, by)
    elif new.state is CircuitState.CLOSED and before.state is not CircuitState.CLOSED:
        note_event(account, What.CIRCUIT_CLOSED, "", by)


def _time(unix: float | None) -> datetime | None:
    return None if unix is None else datetime.fromtimestamp(unix, UTC)

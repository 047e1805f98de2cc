"""What a purge would take, as its preview shows it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dashboard.columns import DIGEST_SHOWN, NOTHING, ago
from dashboard.sessions.listing import Around
from gateway.continuity.purge import Group, Preview
from gateway.models import Lease, Session


@dataclass(frozen=True, slots=True)
class StaleRow:
    """One row of the preview."""

    name: str
    kind: str
    client: str
    account: str
    used: str


def groups(shown: Preview, around: Around) -> list[tuple[str, list[StaleRow]]]:
    """What the preview shows, group by group."""
    return [(group.value, [*_rows(group, shown.rows.get(group, ()), around)]) for group in Group]


def _rows(group: Group, pks: Sequence[int], around: Around) -> Iterable[StaleRow]:
    if group is Group.LEASES:
        leases = Lease.objects.in_bulk(pks)
        return [_stale_lease(leases[pk], around) for pk in pks if pk in leases]
    sessions = Session.objects.in_bulk(pks)
    return [_stale(sessions[pk], around) for pk in pks if pk in sessions]


def _stale_lease(lease: Lease, around: Around) -> StaleRow:
    kind, _, name = lease.session.partition(":")
    client = around.keys.get(lease.client, NOTHING)
    return StaleRow(name[:DIGEST_SHOWN], f"lease of {kind}", client, NOTHING, ago(lease.changed_at, around.now))


def _stale(session: Session, around: Around) -> StaleRow:
    return StaleRow(
        name=session.digest[:DIGEST_SHOWN],
        kind=session.kind,
        client=around.keys.get(session.client, NOTHING),
        account=around.accounts.get(session.account_id, f"{session.account_id} (removed)"),
        used=ago(session.used_at, around.now),
    )

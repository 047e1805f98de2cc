"""Moments whose sums have to be made anew: the ledger changed there after it may have been counted.

A row is written for each, in the transaction that changes the ledger. They are not made unique: who counts deletes
exactly the rows that were read before, so that none gets lost which another process writes meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

from gateway.watch.models import Late

# A turn that ended longer ago is late when it is written. With this much to spare for clocks that differ, it is less
# than what the sums look back on anyway.
LATE = timedelta(minutes=1)


def note(moments: Iterable[datetime]) -> None:
    """Something that ended at these moments has changed; call it in the same transaction."""
    Late.objects.bulk_create(Late(at=moment) for moment in sorted(moments))


def noted(before: datetime, at_most: int) -> Sequence[Late]:
    """What has changed before a moment, the newest first."""
    return list(Late.objects.filter(at__lt=before).order_by("-at")[:at_most])


def done(counted: Iterable[Late]) -> None:
    """These are in the sums; call it in the transaction that wrote them."""
    Late.objects.filter(id__in=[each.id for each in counted]).delete()

"""Which account made which encrypted content, so that no other account is asked to read it."""

from __future__ import annotations

from collections import OrderedDict

MAX_SEALED = 200_000


class SealedContent:
    """The newest encrypted content seen by this process, as fingerprints, by client (the id of its key)."""

    def __init__(self) -> None:
        self._makers: OrderedDict[tuple[int, str], int] = OrderedDict()

    def made(self, client: int, fingerprint: str, account_id: int) -> None:
        """`account_id` has made this, or is the first that was given it."""
        self._makers[client, fingerprint] = account_id
        self._makers.move_to_end((client, fingerprint))
        if len(self._makers) > MAX_SEALED:
            self._makers.popitem(last=False)

    def maker(self, client: int, fingerprint: str) -> int | None:
        """The account that made it, if that was seen here."""
        return self._makers.get((client, fingerprint))

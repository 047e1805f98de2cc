"""Which account stores which response, for continuations that name a stored one."""

from __future__ import annotations

from collections import OrderedDict

MAX_RESPONSES = 50_000


class StoredResponses:
    """The newest stored responses of this process, by client (the id of its key) and response id."""

    def __init__(self) -> None:
        self._accounts: OrderedDict[tuple[int, str], int] = OrderedDict()

    def remember(self, client: int, response_id: str, account_id: int) -> None:
        """`account_id` has stored the response that it made for `client`."""
        self._accounts[client, response_id] = account_id
        self._accounts.move_to_end((client, response_id))
        if len(self._accounts) > MAX_RESPONSES:
            self._accounts.popitem(last=False)

    def owner(self, client: int, response_id: str) -> int | None:
        """The account that stores the response, if it is known here and belongs to `client`."""
        return self._accounts.get((client, response_id))

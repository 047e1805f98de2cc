"""Whether two sign-ins are the same one, and which of them is the older. A refresh token works once, so it matters."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

from accounts.auth_json import Imported, token_expiry
from accounts.credentials import CodexCredentials


def same_sign_in(one: Imported, other: Imported) -> bool:
    """Whether both are one person's in one ChatGPT account, or hold the same token."""
    first, second = one.credentials, other.credentials
    if not isinstance(first, CodexCredentials) or not isinstance(second, CodexCredentials):
        return False
    if first.refresh_token == second.refresh_token:
        return True
    # Members of a workspace share its id, and one person may be in several: both together are one sign-in.
    return bool(one.email and first.account_id) and (one.email, first.account_id) == (other.email, second.account_id)


def twins(found: Sequence[Imported]) -> tuple[int, int] | None:
    """The places of the first two that are the same sign-in, counted from 1."""
    numbered = enumerate(found, 1)
    pairs = ((place, later) for (place, one), (later, other) in combinations(numbered, 2) if same_sign_in(one, other))
    return next(pairs, None)


def is_outdated(given: CodexCredentials, stored: CodexCredentials) -> bool:
    """Whether `stored` came from a refresh later than `given`, so that the token in `given` has been used up."""
    if given.refresh_token == stored.refresh_token:
        return False
    ends = token_expiry(given.access_token), token_expiry(stored.access_token)
    if ends[0] is not None and ends[1] is not None:
        # Both times are the issuer's, so no clock of ours can mislead.
        return ends[0] < ends[1]
    made = given.last_refresh, stored.last_refresh
    return made[0] is not None and made[1] is not None and made[0] < made[1]

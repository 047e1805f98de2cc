"""What a turn's failure does to its account. Faults that are not the account's never reach this module."""

from __future__ import annotations

from accounts.registry import AccountSnapshot, Registry
from gateway.clock import Clock
from gateway.errors import GatewayError, Refusal, UpstreamRefused
from gateway.turns.turn import Blame

# A usage limit that names no reset is asked again after so long.
UNKNOWN_RESET = 300.0
SHORT_PAUSE = 10.0
LONGEST_PAUSE = 300.0


class Health:
    """Tells the registry what turns have learned."""

    def __init__(self, registry: Registry, clock: Clock) -> None:
        self._registry = registry
        self._clock = clock

    def report(self, account: AccountSnapshot, blame: Blame, error: GatewayError) -> None:
        """Apply `blame` for `error` to the account, in memory at once."""
        refusal = error.refusal if isinstance(error, UpstreamRefused) else Refusal(0)
        now = self._clock.wall()
        match blame:
            case Blame.LIMITED:
                until = refusal.resets_at if refusal.resets_at and refusal.resets_at > now else now + UNKNOWN_RESET
                self._registry.mark_limited(account.id, until, "usage limit reached")
            case Blame.PAUSED:
                self._registry.mark_limited(account.id, now + pause(refusal), "asked to slow down")
            case Blame.LOGIN:
                self._registry.mark_needs_login(account.id, "the upstream refused its credentials")
            case Blame.NONE | Blame.EVIDENCE:
                pass


def pause(refusal: Refusal) -> float:
    """Seconds to leave an account alone after a 429 that is no usage limit."""
    try:
        asked = float(refusal.headers.get("retry-after", SHORT_PAUSE))
    except ValueError:
        asked = SHORT_PAUSE
    return min(max(asked, 1.0), LONGEST_PAUSE)

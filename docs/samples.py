"""One example of every error that a client can meet, for the table of answers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, auto

from gateway.errors import (
    AccountsLimited,
    ClientLost,
    ConnectFailed,
    ConversationStuck,
    GatewayError,
    InvalidBody,
    KeyLimited,
    LedgerUnavailable,
    LivenessExpired,
    ModelNotAllowed,
    NoUsableAccount,
    Overloaded,
    OwnerBusy,
    OwnerGone,
    OwnersDisagree,
    Refusal,
    ResponseNotFound,
    Stopping,
    Unauthorized,
    UpstreamEnded,
    UpstreamLost,
    UpstreamRefused,
    UpstreamSilent,
    WebSocketUnavailable,
)


class Met(Enum):
    """Where a client can meet an error."""

    ANYWHERE = auto()
    HANDSHAKE_ONLY = auto()
    BEFORE_A_TURN = auto()
    WITHOUT_A_TURN = auto()
    NOWHERE = auto()


@dataclass(frozen=True, slots=True)
class Sample:
    """An error, and in words what it stands for where its class does not say."""

    error: GatewayError
    case: str = ""
    met: Met = Met.ANYWHERE

    @property
    def label(self) -> str:
        name = f"`{type(self.error).__name__}`"
        return f"{name}: {self.case}" if self.case else name


SAMPLES = (
    Sample(InvalidBody("", code="body_too_large"), "the code says what is wrong"),
    Sample(ModelNotAllowed("")),
    Sample(Unauthorized(""), met=Met.BEFORE_A_TURN),
    Sample(ResponseNotFound(""), "a stored response that is asked for", met=Met.WITHOUT_A_TURN),
    Sample(WebSocketUnavailable(""), met=Met.HANDSHAKE_ONLY),
    Sample(KeyLimited("", code="key_requests_per_minute", retry_after=7, resets_at=1796000000), "back within a minute"),
    Sample(KeyLimited("", code="key_tokens_per_day", retry_after=90, resets_at=1796000000), "back later"),
    Sample(Overloaded("", retry_after=7), "the code names the limit, the seconds are measured"),
    Sample(LedgerUnavailable("", retry_after=2)),
    Sample(Stopping("", retry_after=2)),
    Sample(NoUsableAccount("")),
    Sample(ConversationStuck(""), "one account could take it, and cannot be used"),
    Sample(AccountsLimited("", resets_at=1796000000)),
    Sample(OwnerGone("")),
    Sample(OwnerBusy("")),
    Sample(OwnersDisagree("")),
    Sample(ConnectFailed("")),
    Sample(UpstreamRefused(Refusal(401)), "401 or 403"),
    Sample(UpstreamRefused(Refusal(429, type="usage_limit_reached", resets_at=1796000000.0)), "429 with a usage limit"),
    Sample(UpstreamRefused(Refusal(429, code="rate_limit_exceeded")), "any other 429"),
    Sample(UpstreamRefused(Refusal(503, code="server_is_overloaded")), "503, `server_is_overloaded` or any 5xx"),
    Sample(UpstreamRefused(Refusal(422, code="unknown_parameter")), "any other 4xx, passed on"),
    Sample(UpstreamLost("")),
    Sample(UpstreamEnded("")),
    Sample(UpstreamSilent("")),
    Sample(LivenessExpired("")),
    Sample(ClientLost(""), met=Met.NOWHERE),
    Sample(GatewayError(""), "a defect of the gateway"),
)


def unsampled(root: type[GatewayError] = GatewayError) -> set[str]:
    """The error classes under `root` that no sample stands for."""
    return {kind.__name__ for kind in leaves(root)} - {type(sample.error).__name__ for sample in SAMPLES}


def leaves(root: type[GatewayError]) -> Iterator[type[GatewayError]]:
    """The classes of the tree, in the module of `root`, that are no further divided: those that are raised."""
    children = [child for child in root.__subclasses__() if child.__module__ == root.__module__]
    if not children:
        yield root
    for child in children:
        yield from leaves(child)

"""What the upstream has seen: every request and every WebSocket, and how each of them ended.

The clock's readings are unix seconds. Header values are kept only where they say something about routing;
tokens never are. Old records are dropped beyond `LIMIT`.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field

from gateway.clock import Clock
from gateway.simulator.plan import Outcome
from gateway.simulator.rules import Transport
from gateway.simulator.values import Json, objects, text

LIMIT = 10_000
_SHOWN = """
    accept accept-encoding chatgpt-account-id content-encoding content-type openai-beta originator session-id
    thread-id user-agent version x-client-request-id x-codex-turn-state x-codex-window-id
"""
SHOWN_HEADERS = frozenset(_SHOWN.split())


@dataclass(frozen=True, slots=True)
class BodyFacts:
    """What a request's body says, without its contents."""

    size: int
    model: str = ""
    effort: str | None = None
    previous_response_id: str | None = None
    input_length: int = 0
    input_types: dict[str, int] = field(default_factory=dict)
    store: bool | None = None
    stream: bool | None = None
    generate: bool | None = None
    prompt_cache_key: str | None = None
    turn_state: str | None = None


def body_facts(body: Json, size: int) -> BodyFacts:
    """Facts about a decoded body; `size` is its length in bytes as it came."""
    # A plain string is one user message.
    items = [{}] if isinstance(body.get("input"), str) else objects(body.get("input"))
    metadata, reasoning = body.get("client_metadata"), body.get("reasoning")
    return BodyFacts(
        size=size,
        model=text(body.get("model")),
        effort=text(reasoning.get("effort")) or None if isinstance(reasoning, dict) else None,
        previous_response_id=text(body.get("previous_response_id")) or None,
        input_length=len(items),
        input_types=dict(Counter(text(item.get("type")) or "message" for item in items)),
        store=_flag(body.get("store")),
        stream=_flag(body.get("stream")),
        generate=_flag(body.get("generate")),
        prompt_cache_key=text(body.get("prompt_cache_key")) or None,
        turn_state=text(metadata.get("x-codex-turn-state")) or None if isinstance(metadata, dict) else None,
    )


def _flag(value: object) -> bool | None:
    return value if isinstance(value, bool) else None


@dataclass(slots=True)
class SocketRecord:
    """One WebSocket, from the handshake request on; `status` is the answer to that, None until it is given."""

    number: int
    connection: int
    path: str
    account: str
    header_names: list[str]
    headers: dict[str, str]
    opened_at: float
    status: int | None = None
    closed_at: float | None = None
    close_code: int | None = None
    pings: int = 0
    requests: int = 0

    @property
    def open(self) -> bool:
        return self.status == 101 and self.closed_at is None


@dataclass(slots=True)
class RequestRecord:
    """One request for a response, on either transport. `raw` is its body if bodies are kept."""

    number: int
    transport: Transport
    connection: int
    path: str
    account: str
    header_names: list[str]
    headers: dict[str, str]
    started_at: float
    body: BodyFacts | None = None
    response_id: str | None = None
    faults: list[str] = field(default_factory=list)
    outcome: Outcome = Outcome.RUNNING
    status: int | None = None
    code: str | None = None
    events_sent: int = 0
    ended_at: float | None = None
    raw: bytes | None = None

    @property
    def running(self) -> bool:
        return self.outcome is Outcome.RUNNING


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a request came in: connection number, path, account and headers (names in lower case)."""

    connection: int
    path: str
    account: str
    headers: Mapping[str, str]

    def shown(self) -> dict[str, str]:
        return {name: value for name, value in self.headers.items() if name in SHOWN_HEADERS}


class Observed:
    """The records, newest last. Whoever subscribes is called after every change and must return at once."""

    def __init__(self, clock: Clock) -> None:
        self.requests: deque[RequestRecord] = deque(maxlen=LIMIT)
        self.sockets: deque[SocketRecord] = deque(maxlen=LIMIT)
        self._clock = clock
        self._count = 0
        self._open_sockets = 0
        self._running = 0
        self._listeners: list[Callable[[], None]] = []

    def __repr__(self) -> str:
        outcomes = Counter(record.outcome.value for record in self.requests)
        ended = ", ".join(f"{count} {name}" for name, count in sorted(outcomes.items())) or "no request"
        return f"<Observed {ended} | {self.open_sockets} sockets open, {self.running} streams running>"

    @property
    def open_sockets(self) -> int:
        return self._open_sockets

    @property
    def running(self) -> int:
        """Responses that run now, on either transport."""
        return self._running

    def subscribe(self, listener: Callable[[], None]) -> None:
        self._listeners.append(listener)

    def unsubscribe(self, listener: Callable[[], None]) -> None:
        self._listeners.remove(listener)

    def clear(self) -> None:
        """Forget what has ended. What still runs stays, so that no count goes below what there is."""
        self.requests = deque((record for record in self.requests if record.running), maxlen=LIMIT)
        self.sockets = deque((record for record in self.sockets if record.open), maxlen=LIMIT)
        self._changed()

    def handshake(self, origin: Origin) -> SocketRecord:
        record = SocketRecord(
            number=self._next(),
            connection=origin.connection,
            path=origin.path,
            account=origin.account,
            header_names=list(origin.headers),
            headers=origin.shown(),
            opened_at=self._clock.wall(),
        )
        self.sockets.append(record)
        self._changed()
        return record

    def answered(self, record: SocketRecord, status: int) -> None:
        record.status = status
        if record.open:
            self._open_sockets += 1
        self._changed()

    def closed(self, record: SocketRecord, close_code: int | None) -> None:
        """The socket's TCP connection has ended; a second call changes nothing."""
        if record.closed_at is not None:
            return
        if record.open:
            self._open_sockets -= 1
        record.closed_at = self._clock.wall()
        record.close_code = close_code
        self._changed()

    def pinged(self, record: SocketRecord) -> None:
        record.pings += 1
        self._changed()

    def request(self, origin: Origin, transport: Transport) -> RequestRecord:
        """Begin a record; whoever holds it must end it."""
        record = RequestRecord(
            number=self._next(),
            transport=transport,
            connection=origin.connection,
            path=origin.path,
            account=origin.account,
            header_names=list(origin.headers),
            headers=origin.shown(),
            started_at=self._clock.wall(),
        )
        self.requests.append(record)
        self._running += 1
        self._changed()
        return record

    def sent(self, record: RequestRecord) -> None:
        record.events_sent += 1
        if record.events_sent == 1:
            self._changed()

    def ended(self, record: RequestRecord, outcome: Outcome) -> None:
        """End a record; a second call changes nothing, so that a client's leaving after the end does not count."""
        if not record.running:
            return
        record.outcome = outcome
        record.ended_at = self._clock.wall()
        self._running -= 1
        self._changed()

    def to_json(self) -> Json:
        return {
            "open_sockets": self.open_sockets,
            "running": self.running,
            "requests": [_public(asdict(record)) for record in self.requests],
            "sockets": [_public(asdict(record)) for record in self.sockets],
        }

    def _next(self) -> int:
        self._count += 1
        return self._count

    def _changed(self) -> None:
        for listener in list(self._listeners):
            listener()


def _public(record: Json) -> Json:
    record.pop("raw", None)
    return record

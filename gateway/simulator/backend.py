"""What all connections share: accounts, faults, observations, stored responses, and the way from request to plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from gateway.clock import Clock
from gateway.simulator.accounts import SimulatedAccount, identify
from gateway.simulator.archive import Archive, Kept
from gateway.simulator.decoding import decode_body
from gateway.simulator.envelope import Envelope
from gateway.simulator.faults import Fault, Faults, Subject
from gateway.simulator.issuer import Issuer
from gateway.simulator.kinds import Moment
from gateway.simulator.observed import Observed, Origin, RequestRecord, body_facts
from gateway.simulator.operations import Files
from gateway.simulator.options import Options, read_options
from gateway.simulator.plan import (
    Circumstances,
    Outcome,
    Plan,
    Step,
    plan_handshake,
    plan_idle,
    plan_refusal,
    plan_turn,
)
from gateway.simulator.refusal import Refused, invalid
from gateway.simulator.reply import choose_reply, wanted_by
from gateway.simulator.rules import (
    History,
    Scene,
    SocketMemory,
    StoredResponses,
    Transport,
    Turn,
    check_turn,
    check_turn_state,
)
from gateway.simulator.script import Script, write_script
from gateway.simulator.seal import seal
from gateway.simulator.values import Json, decode_object, text

BYTES_PER_TOKEN = 4
_IN_A_TURN = frozenset({Moment.START, Moment.EVENTS, Moment.END, Moment.AFTER})


@dataclass(frozen=True, slots=True)
class Request:
    """One request for a response, as a transport took it in. Over HTTP `memory` is None."""

    account: SimulatedAccount
    transport: Transport
    path: str
    headers: Mapping[str, str]
    raw: bytes
    memory: SocketMemory | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """The plan for a request, with what its transport needs to say it. `model` is as the client wrote it."""

    plan: Plan
    model: str = ""
    turn_state: str | None = None
    stream: bool = True
    script: Script | None = None
    history: History = field(default_factory=History)
    items: Sequence[Json] = ()


class Backend:
    """The one state of the simulated upstream. It does no I/O and is used from one event loop."""

    def __init__(
        self,
        accounts: Mapping[str, SimulatedAccount] | None,
        faults: Faults,
        options: Options,
        clock: Clock,
        *,
        keep_bodies: bool = False,
    ) -> None:
        self.accounts = accounts
        self.faults = faults
        self.options = options
        self.clock = clock
        self.observed = Observed(clock)
        self.stored = StoredResponses()
        self.archive = Archive()
        self.issuer = Issuer(clock)
        self.files = Files()
        self.stopping = False
        self._keep_bodies = keep_bodies
        # Ids of two simulators differ, so that an id from before a restart is unknown after it.
        self._prefix = f"{clock.random.getrandbits(32):08x}"
        self._count = 0

    def identify(self, headers: Mapping[str, str]) -> SimulatedAccount:
        """The account of a request; raises `Refused` (401, 403)."""
        return identify(self.accounts, headers)

    def admit(self, connection: int, path: str, headers: Mapping[str, str]) -> tuple[SimulatedAccount, RequestRecord]:
        """The account of an HTTP request and its record, begun; raises `Refused` with the record ended."""
        try:
            account = self.identify(headers)
        except Refused as error:
            record = self.observed.request(Origin(connection, path, "", headers), "http")
            record.status, record.code = error.refusal.status, error.refusal.code
            self.observed.ended(record, Outcome.REFUSED)
            raise
        return account, self.observed.request(Origin(connection, path, account.name, headers), "http")

    def left(self, record: RequestRecord) -> None:
        """The connection of a request has ended, whoever ended it."""
        self.observed.ended(record, Outcome.STOPPED if self.stopping else Outcome.CLIENT_GONE)

    def handshake(self, account: SimulatedAccount) -> tuple[Step, ...]:
        """How to answer a handshake of `account`."""
        subject = Subject(account.name, "websocket")
        faults = self.faults.take(subject, frozenset({Moment.HANDSHAKE}))
        return plan_handshake(faults, self._circumstances(account, "websocket"))

    def idle(self, account: SimulatedAccount) -> tuple[Step, ...]:
        """What to do on a WebSocket of `account` between two responses; mostly nothing."""
        subject = Subject(account.name, "websocket")
        faults = self.faults.take(subject, frozenset({Moment.IDLE}))
        return plan_idle(faults, self._circumstances(account, "websocket"))

    def answer(self, request: Request, record: RequestRecord) -> Answer:
        """Plan the answer to `request` and note in `record` what it asks for. Carry out the plan, then end `record`."""
        if self._keep_bodies:
            record.raw = request.raw
        body: Json = {}
        try:
            body = self._decode(request)
            record.body = body_facts(body, len(request.raw))
            turn = self._check(body, request)
            options = read_options(body, self.options)
        except Refused as error:
            return self._refusal(request, body, record, error)
        faults = self._take(request, body, _IN_A_TURN)
        record.faults = [fault.text for fault in faults]
        for fault in faults:
            if fault.name == "flood":
                options = replace(options, events=fault.count)
        answer = self._answer(request, body, turn, options, faults)
        record.response_id = answer.script.envelope.response_id if answer.script else None
        _note_refusal(record, answer.plan)
        return answer

    def remember(self, request: Request, answer: Answer) -> None:
        """The answer has reached its terminal event: it can be continued from here on."""
        if answer.script is None:
            return
        envelope = answer.script.envelope
        history = answer.history.with_output(answer.script.output, envelope.input_tokens)
        if envelope.store:
            self.stored.remember(request.account.name, envelope.response_id, history)
            self._keep(request, answer.script, answer.items)
        if request.memory is not None:
            request.memory.remember(envelope.response_id, history)

    def _decode(self, request: Request) -> Json:
        encoding = request.headers.get("content-encoding", "") if request.transport == "http" else ""
        try:
            body = decode_object(decode_body(request.raw, encoding))
        except ValueError as error:
            raise Refused(invalid(str(error))) from error
        if request.transport == "websocket" and body.get("type") != "response.create":
            raise Refused(invalid("A frame must be of the type response.create.", param="type"))
        return body

    def _check(self, body: Json, request: Request) -> Turn:
        request.account.check_limit(self.clock.wall())
        check_turn_state(request.headers.get("x-codex-turn-state", ""), request.account.name)
        scene = Scene(request.account.name, request.transport, request.path, self.stored, request.memory)
        return check_turn(body, scene)

    def _refusal(self, request: Request, body: Json, record: RequestRecord, error: Refused) -> Answer:
        faults = self._take(request, body, frozenset({Moment.START}))
        record.faults = [fault.text for fault in faults]
        circumstances = self._circumstances(request.account, request.transport, body)
        plan = plan_refusal(error.refusal, faults, circumstances)
        _note_refusal(record, plan)
        return Answer(plan)

    def _answer(self, request: Request, body: Json, turn: Turn, options: Options, faults: list[Fault]) -> Answer:
        self._count += 1
        tag = f"{self._prefix}{self._count:08x}"
        model = text(body.get("model"))
        metadata = body.get("metadata")
        new_tokens = max(1, len(request.raw) // BYTES_PER_TOKEN)
        envelope = Envelope(
            response_id=f"resp_{tag}",
            tag=tag,
            account=request.account.name,
            model=model,
            created_at=int(self.clock.wall()),
            previous_response_id=turn.previous_response_id,
            store=turn.store,
            metadata=metadata if isinstance(metadata, dict) else {},
            input_tokens=turn.previous_tokens + new_tokens,
            cached_tokens=turn.previous_tokens,
            background=body.get("background") is True,
            max_output_tokens=_count(body.get("max_output_tokens")),
            top_logprobs=_top_logprobs(body),
        )
        reply = None
        if turn.generate:
            reply = choose_reply(turn.items, turn.history.tools, options, request.account.name, wanted_by(body))
        script = write_script(reply, envelope, options)
        if envelope.background:
            self._keep(request, script, turn.items, options.interval)
        circumstances = self._circumstances(request.account, request.transport, body, options.interval)
        has_state = _given_turn_state(request, body)
        return Answer(
            plan=plan_turn(script, faults, circumstances),
            model=model,
            turn_state=None if has_state else seal(request.account.name, f"turn {tag}"),
            stream=request.transport == "websocket" or body.get("stream") is True,
            script=script,
            history=turn.history,
            items=turn.items,
        )

    def _keep(self, request: Request, script: Script, items: Sequence[Json], interval: float = 0.0) -> None:
        ends_at = self.clock.wall() + interval * (len(script.events) - 1)
        begun, ended = script.response(0), script.response(-1)
        kept = Kept(begun, ended, items, ends_at, events=script.events, interval=interval)
        self.archive.keep(request.account.name, script.envelope.response_id, kept)

    def _take(self, request: Request, body: Json, moments: frozenset[Moment]) -> list[Fault]:
        subject = Subject(
            request.account.name,
            request.transport,
            continues=body.get("previous_response_id") is not None,
            prewarms=body.get("generate") is False,
        )
        return self.faults.take(subject, moments)

    def _circumstances(
        self, account: SimulatedAccount, transport: Transport, body: Json | None = None, interval: float = 0.0
    ) -> Circumstances:
        previous_id = text((body or {}).get("previous_response_id"))
        return Circumstances(account, transport, self.clock.wall(), interval, previous_id)


def _given_turn_state(request: Request, body: Json) -> bool:
    metadata = body.get("client_metadata")
    in_body = isinstance(metadata, dict) and bool(metadata.get("x-codex-turn-state"))
    return in_body or "x-codex-turn-state" in request.headers


def _count(value: object) -> int | None:
    return value if isinstance(value, int) else None


def _top_logprobs(body: Json) -> int | None:
    """How many alternatives to each token a request wants to know; None without `include`."""
    include = body.get("include")
    wanted = isinstance(include, list) and "message.output_text.logprobs" in include
    return (_count(body.get("top_logprobs")) or 0) if wanted else None


def _note_refusal(record: RequestRecord, plan: Plan) -> None:
    if plan.refusal is not None:
        record.status = plan.refusal.status
        record.code = plan.refusal.code or plan.refusal.type

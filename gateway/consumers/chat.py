"""`POST /v1/chat/completions`: the same turn as a response's, translated on its way in and out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import msgspec
from msgspec import Raw

from gateway.clock import Clock
from gateway.consumers.http import ResponsesHttp
from gateway.consumers.json_sink import JsonSink
from gateway.consumers.render import broken_off, document
from gateway.consumers.sse_sink import SseSink
from gateway.protocol.body import Body, parse_body
from gateway.protocol.chat.answer import failure_of
from gateway.protocol.chat.completion import completion_of
from gateway.protocol.chat.request import Form, param_for_client, translate
from gateway.protocol.chat.stream import ChunkStream
from gateway.protocol.events import Event, Kind, join_output, read_terminal, response_of_terminal
from gateway.protocol.members import members_of, text_of
from gateway.protocol.sse import KEEPALIVE_COMMENT
from gateway.turns.answers import Answer
from gateway.turns.request import Downstream
from gateway.turns.sink import Sink


class ChatHttp(ResponsesHttp):
    """One request for a chat completion."""

    form = Form("")
    # A history in terms of chat, translated, never extends byte for byte what a lane holds, so it continues none.
    may_be_forwarded = False

    def read(self, raw: bytes) -> Body:
        translated = translate(raw)
        self.form = translated.form
        return parse_body(translated.body)

    def answer_with(self, body: Body) -> tuple[Downstream, Sink]:
        gate, form = self.gate, self.form
        if form.stream:
            return Downstream.CHAT_SSE, SseSink(self.wire, ChatStream(form, gate.clock), gate.tunables)
        return Downstream.CHAT_JSON, JsonSink(self.wire, ChatDocument(form, gate.clock), gate.clock)


class ChatStream:
    """The chunks of one completion."""

    keepalive = KEEPALIVE_COMMENT
    verbatim = False

    def __init__(self, form: Form, clock: Clock) -> None:
        self._form = form
        self._clock = clock
        self._chunks = ChunkStream(form, clock.wall())

    def write(self, events: Sequence[Event]) -> bytes:
        chunk = self._chunks.write(events)
        if events and events[-1].kind is Kind.ERROR:
            chunk += self.refuse(broken_off(events[-1], self._clock.wall()))
        return chunk

    def refuse(self, answer: Answer) -> bytes:
        return self._chunks.fail(bytes(members_of(self.document(answer))["error"]))

    def document(self, answer: Answer) -> bytes:
        return document(in_terms_of_chat(answer, self._form))


class ChatDocument:
    """One whole completion."""

    def __init__(self, form: Form, clock: Clock) -> None:
        self._form = form
        self._clock = clock

    def write(self, terminal: Event, items: Sequence[bytes]) -> bytes | Answer:
        response = response_of_terminal(terminal)
        failure = failure_of(members_of(response), read_terminal(terminal).status)
        if failure is not None:
            # A response has a state for this, a completion has none.
            return Answer(failure.status, failure.type, failure.code, failure.message)
        return completion_of(join_output(response, items), self._form, self._clock.wall())

    def document(self, answer: Answer) -> bytes:
        return document(in_terms_of_chat(answer, self._form))


def in_terms_of_chat(answer: Answer, form: Form) -> Answer:
    """The answer with its parameter named as the client named it."""
    if answer.error is None:
        return replace(answer, param=param_for_client(answer.param, form))
    error = members_of(answer.error)
    param = text_of(error.get("param"))
    named = param_for_client(param, form)
    if named == param:
        return answer
    return replace(answer, error=msgspec.json.encode({**error, "param": Raw(msgspec.json.encode(named))}))

"""The strict checks of the upstream: a request and what is remembered go in, a `Turn` or a `Refused` comes out. Pure.

With `store: false` a response is remembered by the WebSocket that made it, and each socket remembers its
newest one only (`SocketMemory`). A stored response is remembered for its account (`StoredResponses`). What is
remembered is not the text but what later requests are checked against: `History`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from gateway.simulator.refusal import Refused, invalid, previous_not_found
from gateway.simulator.reply import Tool, offered_tools
from gateway.simulator.seal import owner
from gateway.simulator.values import Json, objects, text

Transport = Literal["http", "websocket"]
STORED_LIMIT = 2000

# Each kind of call that the client answers, and its answer.
CALLS = {"function_call": "function_call_output", "custom_tool_call": "custom_tool_call_output"}
OUTPUTS = {output: call for call, output in CALLS.items()}

# Top-level parameters of `POST /responses`, and those that only a WebSocket's `response.create` has.
_PARAMETERS = """
    access_programs background background_options client_metadata context_management conversation image
    include input instructions max_output_tokens max_tool_calls metadata model moderation parallel_tool_calls
    previous_response_id prompt prompt_cache_key prompt_cache_options prompt_cache_retention reasoning
    safety_identifier service_tier store stream stream_options temperature text tool_choice tools top_logprobs
    top_p truncation user
"""
PARAMETERS = frozenset(_PARAMETERS.split())
WEBSOCKET_PARAMETERS = frozenset({"type", "generate"})


@dataclass(frozen=True, slots=True)
class History:
    """What a conversation consists of so far, as far as a later request is checked against it."""

    item_ids: frozenset[str] = frozenset()
    answered: frozenset[str] = frozenset()
    unanswered: Mapping[str, str] = field(default_factory=dict)
    tools: Mapping[str, Tool] = field(default_factory=dict)
    tokens: int = 0

    def with_output(self, items: Sequence[Json], tokens: int) -> History:
        """The history after an answer, which has cost `tokens` so far; the answer's calls wait for their outputs."""
        calls = {text(item.get("call_id")): text(item.get("type")) for item in items if item.get("type") in CALLS}
        ids = {text(item.get("id")) for item in items}
        return replace(
            self,
            item_ids=self.item_ids | ids,
            unanswered={**self.unanswered, **calls},
            tokens=tokens,
        )


@dataclass(frozen=True, slots=True)
class Turn:
    """A request that keeps every rule. `history` includes its own input, `previous_tokens` does not."""

    items: list[Json]
    history: History
    previous_response_id: str | None
    previous_tokens: int
    store: bool
    generate: bool


class SocketMemory:
    """The newest response of one WebSocket.

    A continuation takes it out, so a continuation that fails leaves nothing behind: the real service forgets
    the response that a failed request named.
    """

    def __init__(self) -> None:
        self._newest: tuple[str, History] | None = None

    def remember(self, response_id: str, history: History) -> None:
        self._newest = (response_id, history)

    def take(self, response_id: str) -> History | None:
        if self._newest is None or self._newest[0] != response_id:
            return None
        history = self._newest[1]
        self._newest = None
        return history


class StoredResponses:
    """Responses made with `store` not false, per account; beyond `limit` the oldest are forgotten."""

    def __init__(self, limit: int = STORED_LIMIT) -> None:
        self._limit = limit
        self._histories: OrderedDict[tuple[str, str], History] = OrderedDict()

    def remember(self, account: str, response_id: str, history: History) -> None:
        self._histories[account, response_id] = history
        if len(self._histories) > self._limit:
            self._histories.popitem(last=False)

    def find(self, account: str, response_id: str) -> History | None:
        return self._histories.get((account, response_id))


@dataclass(frozen=True, slots=True)
class Scene:
    """Who asks, and by which way. `memory` is the socket's own; over HTTP there is none."""

    account: str
    transport: Transport
    path: str
    stored: StoredResponses
    memory: SocketMemory | None = None


def check_turn(body: Json, scene: Scene) -> Turn:
    """Check one request against every rule; raises `Refused` (400) for the first one it breaks."""
    _check_parameters(body, scene)
    items = input_items(body.get("input"))
    _check_seals(items, body, scene.account)
    previous_id = body.get("previous_response_id")
    history = History()
    if previous_id is not None:
        history = _previous(text(previous_id), body.get("store") is not False, scene)
    previous_tokens = history.tokens
    history = join(history, items)
    tools = {**history.tools, **offered_tools(body.get("tools"), items)}
    return Turn(
        items=items,
        history=replace(history, tools=tools),
        previous_response_id=text(previous_id) or None,
        previous_tokens=previous_tokens,
        store=body.get("store") is not False,
        generate=body.get("generate") is not False,
    )


def input_items(value: object) -> list[Json]:
    """The input as items; a plain string is one user message. Raises `Refused` for anything else."""
    if value is None:
        return []
    if isinstance(value, str):
        return [{"type": "message", "role": "user", "content": value}]
    items = objects(value)
    if not isinstance(value, list) or len(items) != len(value):
        raise Refused(invalid("The input must be a string or an array of objects.", param="input"))
    return items


def join(history: History, items: Sequence[Json]) -> History:
    """Add input items to a history.

    Raises `Refused` (400) for an item id that appears twice, and unless each call has exactly one output and each
    output a call.
    """
    item_ids = set(history.item_ids)
    for item_id in (text(item.get("id")) for item in items if item.get("type") != "item_reference"):
        if item_id in item_ids:
            message = f"Duplicate item found with id {item_id}. Each item may appear once in the input."
            raise Refused(invalid(message, param="input"))
        if item_id:
            item_ids.add(item_id)
    return replace(history, item_ids=frozenset(item_ids), answered=_answered(history, items), unanswered={})


def _answered(history: History, items: Sequence[Json]) -> frozenset[str]:
    waiting = dict(history.unanswered)
    answered = set(history.answered)
    for call_id, kind in _calls(items, CALLS):
        if call_id in waiting or call_id in answered:
            raise Refused(invalid(f"Two calls have the call_id {call_id}.", param="input"))
        waiting[call_id] = kind
    for call_id, kind in _calls(items, OUTPUTS):
        name = OUTPUTS[kind].replace("_", " ")
        if call_id in answered:
            message = f"More than one output found for {name} with call_id {call_id}."
            raise Refused(invalid(message, param="input"))
        if waiting.pop(call_id, None) != OUTPUTS[kind]:
            message = f"No tool call found for {name} output with call_id {call_id}."
            raise Refused(invalid(message, param="input"))
        answered.add(call_id)
    for call_id, kind in waiting.items():
        message = f"No tool output found for {kind.replace('_', ' ')} {call_id}."
        raise Refused(invalid(message, param="input"))
    return frozenset(answered)


def _calls(items: Sequence[Json], kinds: Mapping[str, str]) -> list[tuple[str, str]]:
    """Call ids and types of the items that are of one of these kinds."""
    typed = [(text(item.get("call_id")), text(item.get("type"))) for item in items]
    return [(call_id, kind) for call_id, kind in typed if kind in kinds]


def _previous(response_id: str, store: bool, scene: Scene) -> History:
    if scene.memory is not None:
        history = scene.memory.take(response_id)
        if history is not None:
            return history
    # Over HTTP nothing but a stored response can be continued, and only by a request that stores as well.
    if store or scene.memory is not None:
        history = scene.stored.find(scene.account, response_id)
        if history is not None:
            return history
    raise Refused(previous_not_found(response_id))


def _check_parameters(body: Json, scene: Scene) -> None:
    known = PARAMETERS if scene.transport == "http" else PARAMETERS | WEBSOCKET_PARAMETERS
    for name in body:
        if name not in known:
            message = f"Unknown parameter: '{name}'."
            raise Refused(invalid(message, code="unknown_parameter", param=name))
    if not text(body.get("model")):
        message = "Missing required parameter: 'model'."
        raise Refused(invalid(message, code="missing_required_parameter", param="model"))
    if scene.transport == "http" and "/codex/" in scene.path and body.get("stream") is not True:
        raise Refused(invalid("Stream must be set to true.", param="stream"))


def _check_seals(items: Sequence[Json], body: Json, account: str) -> None:
    """Encrypted content must be this account's; turn state must not be another account's."""
    for item in items:
        sealed = item.get("encrypted_content")
        if isinstance(sealed, str) and owner(sealed) != account:
            message = f"The encrypted content {sealed[:8]}... could not be verified."
            raise Refused(invalid(message, code="invalid_encrypted_content"))
    metadata = body.get("client_metadata")
    if isinstance(metadata, dict):
        check_turn_state(text(metadata.get("x-codex-turn-state")), account)


def check_turn_state(turn_state: str, account: str) -> None:
    """Raise `Refused` (400) for a turn state that another account was given; any other string passes."""
    if owner(turn_state) not in (None, account):
        message = "The turn state belongs to another account."
        raise Refused(invalid(message, code="invalid_turn_state"))

"""What the model "says" to a request. Pure: the same request and options give the same reply.

A user's text decides. `run: <command>` calls the tool that runs commands, each line `call: <tool> <arguments>` calls
that tool, several lines several tools at once. What tools have given back is quoted. All else is greeted, in JSON if
the request wants JSON.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from gateway.simulator.options import Options
from gateway.simulator.sample import sample
from gateway.simulator.values import Json, encode, objects, text

CallType = Literal["function_call", "custom_tool_call"]


class Tool(NamedTuple):
    """A tool that the client offers: how it is called, the namespace it stands in, the schema of its arguments."""

    type: CallType
    namespace: str | None = None
    schema: object = None


_TOOL_TYPES: Mapping[str, CallType] = {"function": "function_call", "custom": "custom_tool_call"}
_OUTPUTS = ("function_call_output", "custom_tool_call_output")
# The tools that run a command, in order of preference, and how each one wants it. `exec` is Codex's code
# mode, where the model writes JavaScript that calls the other tools.
_COMMAND_TOOLS: Mapping[tuple[str, CallType], Callable[[str], str]] = {
    ("exec_command", "function_call"): lambda command: _json({"cmd": command}),
    ("shell_command", "function_call"): lambda command: _json({"command": command}),
    ("shell", "function_call"): lambda command: _json({"command": ["bash", "-lc", command]}),
    ("exec", "custom_tool_call"): lambda command: f"text((await tools.exec_command({_json({'cmd': command})})).output)",
}
_COMMAND = re.compile(r"\brun:[ \t]*(\S[^\n]*)")
_CALL = re.compile(r"^[ \t]*call:[ \t]*(\S+)[ \t]*([^\n]*)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Message:
    """The model says something."""

    text: str


@dataclass(frozen=True, slots=True)
class Refusal:
    """The model declines, and says so."""

    text: str


@dataclass(frozen=True, slots=True)
class Call:
    """The model calls a tool of the client; `input` is JSON for a function, any text for a custom tool."""

    name: str
    tool: Tool
    input: str


@dataclass(frozen=True, slots=True)
class Calls:
    """The model calls several tools at once."""

    calls: tuple[Call, ...]


Reply = Message | Refusal | Call | Calls | None


@dataclass(frozen=True, slots=True)
class Wanted:
    """How a request wants its answer: whether and which tools are called, how many at once, and in which form."""

    tool_choice: object = "auto"
    parallel: bool = True
    format: Json = field(default_factory=dict)


def wanted_by(body: Json) -> Wanted:
    """What a request's body says of its answer."""
    settings = body.get("text")
    form = settings.get("format") if isinstance(settings, dict) else None
    return Wanted(
        tool_choice=body.get("tool_choice") or "auto",
        parallel=body.get("parallel_tool_calls") is not False,
        format=form if isinstance(form, dict) else {},
    )


def choose_reply(
    items: Sequence[Json], tools: Mapping[str, Tool], options: Options, account: str, wanted: Wanted | None = None
) -> Reply:
    """Answer the newest thing in `items`; `tools` are those that the client offers, by name."""
    wanted = wanted or Wanted()
    if options.refusal is not None:
        return Refusal(options.refusal)
    for position in range(len(items) - 1, -1, -1):
        item = items[position]
        kind = text(item.get("type"))
        if kind in _OUTPUTS:
            return Message(f"The command printed: {'; '.join(_newest_outputs(items[: position + 1]))}")
        if kind not in ("", "message"):
            continue
        if item.get("role") == "assistant":
            break
        calls = _asked(content_text(item.get("content")), tools) if item.get("role") == "user" else ()
        if calls and wanted.tool_choice != "none":
            return _at_once(calls, wanted)
    forced = _forced(tools, wanted)
    return forced or Message(_said(options, account, wanted))


def _asked(said: str, tools: Mapping[str, Tool]) -> tuple[Call, ...]:
    """The calls that a user's text asks for, of tools that there are."""
    command = _COMMAND.search(said)
    if command is not None:
        call = _command_call(command[1].strip(), tools)
        if call is not None:
            return (call,)
    return tuple(Call(name, tools[name], given) for name, given in _CALL.findall(said) if name in tools)


def _at_once(calls: tuple[Call, ...], wanted: Wanted) -> Reply:
    return calls[0] if len(calls) == 1 or not wanted.parallel else Calls(calls)


def _forced(tools: Mapping[str, Tool], wanted: Wanted) -> Call | None:
    """The call that the request insists on: of the tool it names, or of the first one there is."""
    choice = wanted.tool_choice
    name = next(iter(tools), "") if choice == "required" else ""
    if isinstance(choice, dict):
        name = text(choice.get("name"))
    tool = tools.get(name)
    if tool is None:
        return None
    return Call(name, tool, _json(sample(tool.schema)) if tool.type == "function_call" else "input")


def _said(options: Options, account: str, wanted: Wanted) -> str:
    words = options.text or f"Hello from {account}."
    if wanted.format.get("type") == "json_schema":
        return _json(sample(wanted.format.get("schema")))
    return _json({"text": words}) if wanted.format.get("type") == "json_object" else words


def _newest_outputs(items: Sequence[Json]) -> list[str]:
    """What the tools gave back that were called at once, in order."""
    outputs: list[str] = []
    for item in reversed(items):
        if item.get("type") not in _OUTPUTS:
            break
        outputs.insert(0, _printed(content_text(item.get("output"))))
    return outputs


def content_text(content: object) -> str:
    """The text of a message's content or a tool's output, given as a string or as a list of parts."""
    return text(content) or "".join(text(part.get("text")) for part in objects(content))


def offered_tools(body_tools: object, items: Sequence[Json]) -> dict[str, Tool]:
    """The tools in `tools` and in `additional_tools` items, also those inside namespaces, by name."""
    lists: list[tuple[str | None, list[Json]]] = [(None, objects(body_tools))]
    for item in items:
        if item.get("type") == "additional_tools":
            lists.append((None, objects(item.get("tools"))))
    found: dict[str, Tool] = {}
    for namespace, tools in lists:
        for tool in tools:
            name = text(tool.get("name"))
            if tool.get("type") == "namespace":
                lists.append((name, objects(tool.get("tools"))))
            elif tool.get("type") in _TOOL_TYPES:
                found[name] = Tool(_TOOL_TYPES[text(tool.get("type"))], namespace, tool.get("parameters"))
    return found


def _printed(output: str) -> str:
    """What a command printed, without the lines that Codex puts before it."""
    _, mark, printed = output.partition("Output:\n")
    return (printed if mark else output).strip()


def _command_call(command: str, tools: Mapping[str, Tool]) -> Call | None:
    for (name, call_type), write in _COMMAND_TOOLS.items():
        tool = tools.get(name)
        if tool is not None and tool.type == call_type:
            return Call(name, tool, write(command))
    return None


def _json(value: object) -> str:
    return encode(value).decode()

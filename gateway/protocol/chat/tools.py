"""The tools that a chat offers, and how it wants them chosen."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Raw, Struct, field

from gateway.protocol.chat.fields import invalid, is_given

Item = dict[str, object]


class Function(Struct, forbid_unknown_fields=True):
    name: str
    description: str | None = None
    parameters: Raw = field(default_factory=Raw)
    strict: bool | None = None


class FunctionTool(Struct, tag_field="type", tag="function", forbid_unknown_fields=True):
    function: Function


class Grammar(Struct, forbid_unknown_fields=True):
    definition: str
    syntax: str


class TextFormat(Struct, tag_field="type", tag="text", forbid_unknown_fields=True):
    pass


class GrammarFormat(Struct, tag_field="type", tag="grammar", forbid_unknown_fields=True):
    grammar: Grammar


class Custom(Struct, forbid_unknown_fields=True):
    name: str
    description: str | None = None
    format: TextFormat | GrammarFormat | None = None


class CustomTool(Struct, tag_field="type", tag="custom", forbid_unknown_fields=True):
    custom: Custom


Tool = FunctionTool | CustomTool


class Named(Struct, forbid_unknown_fields=True):
    name: str


class FunctionChoice(Struct, tag_field="type", tag="function", forbid_unknown_fields=True):
    function: Named


class CustomChoice(Struct, tag_field="type", tag="custom", forbid_unknown_fields=True):
    custom: Named


class AllowedTools(Struct, forbid_unknown_fields=True):
    mode: str
    tools: list[FunctionChoice | CustomChoice]


class AllowedChoice(Struct, tag_field="type", tag="allowed_tools", forbid_unknown_fields=True):
    allowed_tools: AllowedTools


Choice = str | FunctionChoice | CustomChoice | AllowedChoice

_MODES = ("none", "auto", "required")


def tools_of(tools: Sequence[Tool]) -> list[Item]:
    """The tools as a response takes them."""
    return [_function(tool.function) if isinstance(tool, FunctionTool) else _custom(tool.custom) for tool in tools]


def choice_of(choice: Choice) -> object:
    """The choice as a response takes it; raises `InvalidBody` for a word that is none."""
    if isinstance(choice, str):
        if choice not in _MODES:
            raise invalid("tool_choice", f"it must be one of {', '.join(_MODES)}, or name a tool")
        return choice
    if isinstance(choice, AllowedChoice):
        allowed = choice.allowed_tools
        return {"type": "allowed_tools", "mode": allowed.mode, "tools": [_named(each) for each in allowed.tools]}
    return _named(choice)


def _function(function: Function) -> Item:
    made: Item = {
        "type": "function",
        "name": function.name,
        "parameters": function.parameters if is_given(function.parameters) else None,
        # Here a chat's default is the opposite of a response's, so it is always said.
        "strict": function.strict or False,
    }
    if function.description is not None:
        made["description"] = function.description
    return made


def _custom(custom: Custom) -> Item:
    made: Item = {"type": "custom", "name": custom.name}
    if custom.description is not None:
        made["description"] = custom.description
    if isinstance(custom.format, GrammarFormat):
        grammar = custom.format.grammar
        made["format"] = {"type": "grammar", "definition": grammar.definition, "syntax": grammar.syntax}
    elif custom.format is not None:
        made["format"] = {"type": "text"}
    return made


def _named(choice: FunctionChoice | CustomChoice) -> Item:
    if isinstance(choice, FunctionChoice):
        return {"type": "function", "name": choice.function.name}
    return {"type": "custom", "name": choice.custom.name}

"""Writes the generated parts of `design.md` from the tables and the code they are about.

Run `python -m docs.generate` after a table has changed; a test fails while the page and the code differ. A generated
part stands between `<!-- generated: NAME -->` and `<!-- end -->`, NAME being one of `BLOCKS`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, replace
from enum import StrEnum
from pathlib import Path
from typing import TypeVar

from docs.samples import SAMPLES, Met, Sample, unsampled
from gateway.conf import MIB, Tunables, variable
from gateway.consumers.render import failed, frame
from gateway.continuity.leases import TRANSITIONS as LEASE_TRANSITIONS
from gateway.continuity.leases import LeaseState
from gateway.turns.answers import Answer, answer
from gateway.turns.request import Route
from gateway.turns.turn import ANY, MOVABLE, RULES, TRANSITIONS, BodyKind, Phase, Rule
from gateway.upstream.lane import TRANSITIONS as LANE_TRANSITIONS
from gateway.upstream.lane import LaneState

State = TypeVar("State", bound=StrEnum)
Step = TypeVar("Step", bound=StrEnum)

PAGE = Path(__file__).with_name("design.md")
BLOCK = re.compile(r"(<!-- generated: (?P<name>\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


class Drift(Exception):
    """Page and code do not fit together. The message says what to mend."""


def rewritten(page: str) -> str:
    """`page` with every generated part as the code has it now; raises `Drift`."""
    named = [found["name"] for found in BLOCK.finditer(page)]
    if sorted(named) != sorted(BLOCKS):
        raise Drift(f"The page has the generated parts {sorted(named)}, not {sorted(BLOCKS)}; mend its markers.")
    return BLOCK.sub(lambda found: f"{found[1]}{BLOCKS[found['name']]()}\n{found[3]}", page)


def turn_states() -> str:
    """The life of a turn."""
    return diagram(TRANSITIONS, first=Phase.RECEIVED, last=Phase.SETTLED)


def lane_states() -> str:
    """The life of a lane."""
    return diagram(LANE_TRANSITIONS, first=LaneState.CONNECTING, last=LaneState.CLOSED)


def lease_states() -> str:
    """The life of a lease."""
    return diagram(LEASE_TRANSITIONS, first=LeaseState.FREE, last=None)


def diagram(transitions: Mapping[tuple[State, Step], State], first: State, last: State | None) -> str:
    """A transition table as a Mermaid state diagram, parallel steps on one arrow."""
    arrows: dict[tuple[str, str], list[str]] = {}
    for (state, step), target in transitions.items():
        arrows.setdefault((state.value, target.value), []).append(step.value)
    lines = ["```mermaid", "stateDiagram-v2", f"    [*] --> {first.value}"]
    lines += [f"    {source} --> {target}: {', '.join(steps)}" for (source, target), steps in arrows.items()]
    end = [] if last is None else [f"    {last.value} --> [*]"]
    return "\n".join([*lines, *end, "```"])


def decisions() -> str:
    """What a failure means for the turn and for the account."""
    rows: list[tuple[str, ...]] = []
    alike: list[str] = []
    for position, rule in enumerate(RULES):
        continued = position > 0 and RULES[position - 1].cause is rule.cause
        if not continued and _same_outcome(rule, RULES[position + 1 : position + 2]):
            alike.append(f"`{rule.cause}`")
            continue
        causes = "" if continued else ", ".join([*alike, f"`{rule.cause}`"])
        rows.append((causes, _body(rule, continued), _move(rule), rule.blame))
        alike.clear()
    phases = ", ".join(f"`{phase}`" for phase in Phase if phase in MOVABLE)
    return (
        table(("cause", "body", "what the turn does", "the account's health"), rows)
        + f"\n\nThe turn moves only while it is {phases}; later the client is told, whatever the row says."
    )


def _same_outcome(rule: Rule, following: Sequence[Rule]) -> bool:
    """Whether the next rule does the same for another cause and any body, so that both share a row."""
    return any(rule.kinds == after.kinds == ANY and replace(rule, cause=after.cause) == after for after in following)


def _body(rule: Rule, continued: bool) -> str:
    if rule.kinds == ANY:
        return "any other" if continued else "any"
    return ", ".join(kind.value for kind in BodyKind if kind in rule.kinds)


def _move(rule: Rule) -> str:
    if rule.tries is None:
        return rule.move
    return f"{rule.move}, {'once' if rule.tries == 1 else f'{rule.tries} times at most'}; then the client is told"


def answers() -> str:
    """How each error looks to a client, before and after the answer has begun."""
    if unsampled():
        raise Drift(f"docs/samples.py has no example of {', '.join(sorted(unsampled()))}; add one of each.")
    rows = [row for sample in SAMPLES for row in _answer_rows(sample)]
    headings = ("error", "route", "HTTP, before the stream", "WebSocket", "in an SSE stream: `response.failed` with")
    return table(headings, rows)


def _answer_rows(sample: Sample) -> Iterable[tuple[str, ...]]:
    told = {route: _cells(sample.met, answer(sample.error, route)) for route in Route}
    if len(set(told.values())) == 1:
        yield (sample.label, "both", *told[Route.CODEX])
    else:
        yield (sample.label, "Codex", *told[Route.CODEX])
        yield ("", "`/v1`", *told[Route.V1])


def _cells(met: Met, told: Answer) -> tuple[str, str, str]:
    match met:
        case Met.NOWHERE:
            return "nobody is there to be told", "", ""
        case Met.HANDSHAKE_ONLY:
            return "", f"handshake: {_http(told)}", ""
        case Met.BEFORE_A_TURN:
            return _http(told), "handshake: the same", ""
        case Met.WITHOUT_A_TURN:
            return _http(told), "", ""
        case Met.ANYWHERE:
            return _http(told), _websocket(told), f"`{_failed_code(told)}`"


def _http(told: Answer) -> str:
    headers = "".join(f", `{name}: {value}`" for name, value in told.headers.items())
    extra = "".join(f", `{name}`" for name in told.extra)
    return f"{told.status} {_named(told.type, told.code)}{extra}{headers}"


def _websocket(told: Answer) -> str:
    if told.lost:
        return "`response.failed`, the same code"
    sent = json.loads(frame(told))
    headers = "".join(f", `{name}: {value}`" for name, value in sent.get("headers", {}).items())
    return f"error frame {sent['status']}{headers}"


def _failed_code(told: Answer) -> str:
    return str(json.loads(failed(told, None, 0).data)["response"]["error"]["code"])


def _named(kind: str, code: str | None) -> str:
    """The code, or the type where the code is none."""
    return f"`{code}`" if code is not None else f"type `{kind}`"


def settings() -> str:
    """Every tunable."""
    defaults = Tunables()
    rows = []
    for each in fields(Tunables):
        unit, meaning = each.metadata["unit"], each.metadata["meaning"]
        rows.append((f"`{variable(each.name)}`", _readable(getattr(defaults, each.name), unit), unit, meaning))
    return table(("variable", "default", "unit", "meaning"), rows)


def _readable(value: float | str, unit: str) -> str:
    if isinstance(value, str):
        return f"`{value}`"
    if isinstance(value, bool):
        return "on" if value else "off"
    if unit == "bytes" and value % MIB == 0:
        return f"{value:.0f} ({value / MIB:.0f} MiB)"
    if unit == "seconds" and value >= 3600 and value % 3600 == 0:
        return f"{value:g} ({value / 3600:g} h)"
    if unit == "seconds" and value >= 600 and value % 60 == 0:
        return f"{value:g} ({value / 60:g} min)"
    return f"{value:g}"


def table(headings: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A Markdown table."""
    lines = [list(headings)]
    lines.append(["---"] * len(lines[0]))
    lines += [list(row) for row in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


BLOCKS: Mapping[str, Callable[[], str]] = {
    "turn": turn_states,
    "lane": lane_states,
    "lease": lease_states,
    "decisions": decisions,
    "answers": answers,
    "settings": settings,
}

if __name__ == "__main__":
    PAGE.write_text(rewritten(PAGE.read_text(encoding="utf-8")), encoding="utf-8")

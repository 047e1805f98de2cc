"""How an answer is shaped: by default, by the model name, or by the request's metadata.

`gpt-5.5;events=100;interval=0.01` as the model and `{"sim_events": "100", "sim_interval": "0.01"}` in
`metadata` or `client_metadata` mean the same; metadata wins over the model name, and both over the
simulator's defaults.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from gateway.simulator.refusal import Refused, invalid
from gateway.simulator.values import Json, text

MAX_EVENTS = 1_000_000
MAX_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Options:
    """The shape of an answer.

    `events` is the number of text deltas (None: as many as the text has words, up to a limit), `interval` the seconds
    between two events, `size` the bytes that each delta has at least. With `reasoning` a sealed reasoning item comes
    first. `text` is said instead of the greeting; with `refusal` the model declines in these words.
    """

    events: int | None = None
    interval: float = 0.0
    size: int = 0
    reasoning: bool = False
    text: str | None = None
    refusal: str | None = None


def read_options(body: Json, defaults: Options) -> Options:
    """The options of one request; raises `Refused` (400) for an unknown name or a value that cannot work."""
    options = defaults
    for name, value in _settings(body):
        try:
            options = _READERS[name](options, value)
        except (KeyError, ValueError):
            known = ", ".join(sorted(_READERS))
            raise Refused(
                invalid(
                    f"The simulator's option {name}={value!r} cannot be used; the options are {known}.",
                    code="invalid_option",
                )
            ) from None
    return options


def _settings(body: Json) -> Iterator[tuple[str, str]]:
    for part in text(body.get("model")).split(";")[1:]:
        name, _, value = part.partition("=")
        yield name.strip(), value.strip()
    for container in ("metadata", "client_metadata"):
        members = body.get(container)
        for name, member in members.items() if isinstance(members, dict) else ():
            if isinstance(name, str) and name.startswith("sim_"):
                yield name.removeprefix("sim_"), text(member)


def _between(value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise ValueError(value)


def _read_events(options: Options, value: str) -> Options:
    events = int(value)
    _between(events, 1, MAX_EVENTS)
    return replace(options, events=events)


def _read_interval(options: Options, value: str) -> Options:
    interval = float(value)
    _between(interval, 0, 3600)
    return replace(options, interval=interval)


def _read_bytes(options: Options, value: str) -> Options:
    size = int(value)
    _between(size, 0, MAX_BYTES)
    return replace(options, size=size)


def _read_reasoning(options: Options, value: str) -> Options:
    return replace(options, reasoning={"1": True, "true": True, "0": False, "false": False}[value.lower()])


def _read_text(options: Options, value: str) -> Options:
    return replace(options, text=value or None)


def _read_refusal(options: Options, value: str) -> Options:
    return replace(options, refusal=value or None)


_READERS: dict[str, Callable[[Options, str], Options]] = {
    "events": _read_events,
    "interval": _read_interval,
    "bytes": _read_bytes,
    "reasoning": _read_reasoning,
    "text": _read_text,
    "refusal": _read_refusal,
}

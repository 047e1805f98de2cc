"""Makes a failing world smaller: without one fault after the other, then without clients, and as short as may be."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from tests.sim.options import CLIENTS, Options, Result
from tests.sim.run import run_world

# Worlds that are tried at the most.
TRIES = 80


def shrink(failed: Result, say: Callable[[str], None] = lambda _: None, tries: int = TRIES) -> Result:
    """The smallest world found that breaks the same promise as `failed`; a step that loses it is taken back."""
    best = failed
    for step in _steps(failed.options):
        smaller = _shorter(step(best.options), best)
        if tries <= 0 or smaller == best.options:
            continue
        tries -= 1
        result = run_world(smaller)
        if _promise(result) == _promise(failed):
            best = result
            say(f"{result.turns} turns, {_there(result.options)}: {result.violation}")
    return best


def _shorter(options: Options, best: Result) -> Options:
    """A world with less in it may need some more turns than the best one, but no world is to run on for long."""
    return replace(options, turns=min(options.turns, best.turns + best.turns // 2 + 20))


def _there(options: Options) -> str:
    return f"{len(options.faults)} faults, {len(_clients(options))} clients"


def _promise(result: Result) -> str:
    return "" if result.violation is None else result.violation.name


def _steps(options: Options) -> Iterator[Callable[[Options], Options]]:
    yield lambda now: replace(now, faults=frozenset())
    for fault in sorted(options.faults):
        yield lambda now, fault=fault: replace(now, faults=now.faults - {fault})
    if options.replicas > 1:
        yield lambda now: replace(now, replicas=1)
    for number in range(CLIENTS):
        yield lambda now, number=number: replace(now, clients=_clients(now) - {number})


def _clients(options: Options) -> frozenset[int]:
    return frozenset(range(CLIENTS)) if options.clients is None else options.clients

"""The command line of the simulation: run a world, run it again, and make a failing one smaller."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence

from tests.sim.coverage import PAIRS
from tests.sim.options import FAULTS, Options, Result, Violation
from tests.sim.planted import PLANTED
from tests.sim.run import run_world
from tests.sim.shrink import shrink
from tests.sim.world import World


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the command line asks for; 1 when a promise was broken, or a replay differed."""
    asked = _parser().parse_args(arguments)
    options = _options(asked)
    result = run_world(options, progress=Progress(options))
    print(report(result, everything=asked.trace))
    if asked.replay:
        same = result.digest == asked.replay
        print("\nthe same, event by event" if same else f"\nNOT THE SAME: the digest was {asked.replay}")
        return 0 if same else 1
    if result.violation is None:
        return 0
    print(f"\nagain:   {command(result.options)} --replay {result.digest}")
    if asked.shrink:
        smaller = shrink(result, say=lambda text: print(text, file=sys.stderr, flush=True))
        print(f"\nsmaller: {command(smaller.options)} --replay {smaller.digest}\n")
        print(report(smaller))
    return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description="Run the gateway in a simulated world.")
    parser.add_argument("--seed", type=int, default=1, help="what everything is drawn from")
    parser.add_argument("--turns", type=int, default=2000, help="how many requests the clients make in all")
    parser.add_argument("--replicas", type=int, default=2, help="gateway processes at the beginning")
    parser.add_argument("--chance", type=float, default=Options.chance, help="of a fault for each request (0.25)")
    parser.add_argument("--faults", default="all", help=f"by commas, or all or none: {', '.join(FAULTS)}")
    parser.add_argument("--clients", default="all", help="the numbers of those that are to be there, by commas")
    parser.add_argument("--plant", metavar="DEFECT", default="", help=f"on purpose, one of: {'; '.join(PLANTED)}")
    parser.add_argument("--replay", metavar="DIGEST", help="say whether the run is the one that had this digest")
    parser.add_argument("--shrink", action="store_true", help="look for a smaller world that breaks the same promise")
    parser.add_argument("--trace", action="store_true", help="print every event that is kept, not only the violation's")
    return parser


def _options(asked: argparse.Namespace) -> Options:
    clients = None if asked.clients == "all" else frozenset(map(int, asked.clients.split(",")))
    return Options(
        seed=asked.seed,
        turns=asked.turns,
        faults=_faults(asked.faults),
        replicas=asked.replicas,
        chance=asked.chance,
        clients=clients,
        plant=_plant(asked.plant),
    )


def _faults(text: str) -> frozenset[str]:
    if text in ("all", "none"):
        return frozenset(FAULTS if text == "all" else ())
    names = frozenset(text.split(","))
    unknown = names - set(FAULTS)
    if unknown:
        raise SystemExit(f"unknown faults: {', '.join(sorted(unknown))}")
    return names


def _plant(name: str) -> str:
    if name and name not in PLANTED:
        raise SystemExit(f"unknown defect: {name}; known are: {'; '.join(PLANTED)}")
    return name


def command(options: Options) -> str:
    """The command line that makes the same world."""
    words = [f"python -m tests.sim --seed {options.seed} --turns {options.turns} --replicas {options.replicas}"]
    if options.chance != Options.chance:
        words.append(f"--chance {options.chance:g}")
    if options.faults != frozenset(FAULTS):
        words.append(f"--faults {','.join(sorted(options.faults)) or 'none'}")
    if options.clients is not None:
        words.append(f"--clients {','.join(map(str, sorted(options.clients)))}")
    if options.plant:
        words.append(f"--plant {shlex.quote(options.plant)}")
    return " ".join(words)


class Progress:
    """Says now and then how far the world is."""

    def __init__(self, options: Options) -> None:
        self._step = max(1, min(5000, options.turns // 10))
        self._next = self._step

    def __call__(self, world: World) -> None:
        if world.book.count >= self._next:
            self._next += self._step
            met = len(world.coverage.met)
            print(f"{world.book.count:>8} turns  {world.now:>9.0f} s  {met} pairs", file=sys.stderr, flush=True)


def report(result: Result, *, everything: bool = False) -> str:
    """Everything worth knowing of a run: what it reached, or how it broke a promise."""
    lines = [
        f"seed {result.options.seed}: {result.turns} turns in {result.seconds:.0f} s of its own time",
        f"{result.forwarded} of them were forwarded to another replica",
        f"{result.rate:.0f} turns per second of processor time, {result.events} events, digest {result.digest}",
        "",
    ]
    if everything:
        lines += [*result.everything(), ""]
    violation = result.violation
    return "\n".join(lines + (_reached(result) if violation is None else _broken(violation, result.timeline)))


def _reached(result: Result) -> list[str]:
    missing = result.coverage.missing
    reached = f"{len(PAIRS) - len(missing)} of {len(PAIRS)} pairs reached"
    unmet = f"{reached}; not {', '.join(f'{phase}/{cause}' for phase, cause in missing)}"
    return [result.coverage.table(), "", unmet if missing else "all pairs reached", "no promise broken"]


def _broken(violation: Violation, timeline: list[str]) -> list[str]:
    turn = next(iter(sorted(violation.about - {""}, reverse=True)), "")
    told = f", > those of {turn}" if turn else ""
    lines = [f"PROMISE BROKEN {violation}", "", f"The last events, by seconds of the world's time{told}:", *timeline]
    return [*lines, "", violation.traceback] if violation.traceback else lines

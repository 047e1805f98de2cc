"""Measure what the gateway costs, beside a relay that does nothing else: `python -m tests.bench`.

Run it from the root of the repository. Progress goes to standard error, the report to standard output. The exit code is
1 when a system other than a peer failed in a case.
"""

from __future__ import annotations

import argparse
import platform
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest

from tests.bench.cases import FULL, QUICK, Case, Plan
from tests.bench.driver import TurnFailed
from tests.bench.loops import run
from tests.bench.machine import processor
from tests.bench.measure import Sample, measure
from tests.bench.memory import Weight, weigh
from tests.bench.results import CaseResult, Figures, Line, Report
from tests.bench.systems import Peer, Protocol, Role, Stage, StartFailed, System, fits_open_files, running
from tests.bench.table import as_json, as_text


class Progress:
    """Lines on standard error, with the seconds since the start."""

    def __init__(self) -> None:
        self._began = time.monotonic()

    def say(self, text: str) -> None:
        print(f"[{time.monotonic() - self._began:5.0f} s] {text}", file=sys.stderr, flush=True)


@dataclass(frozen=True, slots=True)
class Options:
    """What was asked for on the command line."""

    plan: Plan
    peers: Sequence[Peer]
    upstream_port: int
    only: Sequence[str]
    json: bool


def options() -> Options:
    """Read the command line; a mistake ends the program with a usage message."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="16 at a time with 40 KiB bodies, in two to three minutes")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.add_argument("--runs", type=int, metavar="N", help="how often each case is run on each system")
    parser.add_argument(
        "--only", action="append", default=[], metavar="TEXT", help="measure systems whose name has TEXT in it"
    )
    parser.add_argument(
        "--peer", action="append", default=[], metavar="URL", help="another gateway; URL is what /responses follows"
    )
    parser.add_argument("--peer-key", action="append", default=[], metavar="KEY", help="the key for it, in order")
    parser.add_argument(
        "--peer-pid", action="append", default=[], type=int, metavar="PID", help="its process, in order"
    )
    parser.add_argument(
        "--upstream-port",
        type=int,
        default=0,
        metavar="N",
        help="where the measured upstream listens, for a peer's setup",
    )
    given = parser.parse_args()
    if len(given.peer_key) > len(given.peer) or len(given.peer_pid) > len(given.peer):
        parser.error("each --peer-key and --peer-pid needs a --peer of its own, in the same order")
    plan = QUICK if given.quick else FULL
    if given.runs is not None:
        if given.runs < 1:
            parser.error("--runs must be at least 1")
        plan = replace(plan, runs=given.runs)
    peers = [Peer(url, key or "", pid) for url, key, pid in zip_longest(given.peer, given.peer_key, given.peer_pid)]
    return Options(plan, peers, given.upstream_port, given.only, given.json)


async def measure_all(stage: Stage, asked: Options, progress: Progress) -> Report:
    """Everything in turn: the weights first, while the processes are fresh, then case by case."""
    plan = asked.plan
    systems = [system for system in stage.systems if chosen(system, asked.only)]
    weights = await weigh_all(systems, plan.idle_sockets, progress)
    cases = [await measure_case(stage, systems, case, plan.runs, progress) for case in plan.cases]
    return Report(processor(), platform.python_version(), plan.runs, cases, weights)


def chosen(system: System, only: Sequence[str]) -> bool:
    """Whether a system was asked for; what others are compared with is always measured."""
    if not only or system.role is Role.DIRECT:
        return True
    return any(text.lower() in system.label.lower() for text in only)


async def weigh_all(systems: Sequence[System], sockets: int, progress: Progress) -> list[tuple[System, Weight]]:
    weights = []
    for system in systems:
        if system.protocol is Protocol.WEBSOCKET and system.role is not Role.DIRECT and system.pid is not None:
            progress.say(f"weighing {system.label} with {sockets} idle sockets")
            try:
                weights.append((system, await weigh(system, sockets)))
            except (TurnFailed, OSError) as error:
                progress.say(f"  failed: {error}")
    return weights


async def measure_case(
    stage: Stage, systems: Sequence[System], case: Case, runs: int, progress: Progress
) -> CaseResult:
    """All runs of one case, the systems taking turns within each, so that a change of the machine meets them all."""
    samples: dict[System, list[Sample]] = {system: [] for system in systems}
    failures: dict[System, str] = {}
    for number in range(1, runs + 1):
        progress.say(f"{case.name}: run {number} of {runs}")
        for system in systems:
            if system in failures:
                continue
            try:
                samples[system].append(await measure(system, case, stage.upstream_pid))
            except (TurnFailed, OSError) as error:
                failures[system] = f"failed: {error}"
                progress.say(f"  {system.label} {failures[system]}")
    return CaseResult(case, [_line(system, samples[system], failures.get(system, "")) for system in systems])


def _line(system: System, samples: Sequence[Sample], failure: str) -> Line:
    return Line(system, None if failure else Figures.of(samples), failure)


def main() -> int:
    # As an exception, so that the processes of the benchmark end with it.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    asked, progress = options(), Progress()
    if not fits_open_files(max(asked.plan.idle_sockets, *(case.at_once for case in asked.plan.cases))):
        print("Too few open files are allowed for the sockets of this benchmark; raise `ulimit -n`.", file=sys.stderr)
        return 1
    try:
        with running(asked.peers, asked.upstream_port, progress.say) as stage:
            report = run(measure_all(stage, asked, progress))
    except (StartFailed, ValueError, ProcessLookupError) as error:
        print(error, file=sys.stderr)
        return 1
    print(as_json(report) if asked.json else as_text(report))
    own = [line for result in report.cases for line in result.lines if line.system.role is not Role.PEER]
    return int(any(line.failure for line in own))


if __name__ == "__main__":
    sys.exit(main())

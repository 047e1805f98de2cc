"""What the operating system says of processes and of the machine (Linux)."""

from __future__ import annotations

import ctypes
import os
import re
import time
from dataclasses import dataclass
from pathlib import Path

_LIBC = ctypes.CDLL(None, use_errno=True)
_TICK = 1 / os.sysconf("SC_CLK_TCK")


def cpu_clock(pid: int) -> int:
    """The clock of all CPU time, user and system, that process `pid` has used: read it with `time.clock_gettime`.

    POSIX `clock_getcpuclockid`. It counts nanoseconds, where `/proc/<pid>/stat` counts hundredths of a second. Raises
    `ProcessLookupError` when there is no such process.
    """
    clock = ctypes.c_int()
    if _LIBC.clock_getcpuclockid(pid, ctypes.byref(clock)) != 0:
        raise ProcessLookupError(f"There is no process {pid} whose CPU time could be read.")
    return clock.value


def rss(pid: int) -> int:
    """Resident memory of process `pid` in bytes."""
    found = re.search(r"^VmRSS:\s+(\d+) kB$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    if found is None:
        raise ProcessLookupError(f"Process {pid} has no memory any more.")
    return int(found[1]) * 1024


def busy_seconds() -> float:
    """CPU seconds that all processes of the machine have used since it started."""
    name, user, nice, system, _, _, irq, softirq, *_ = Path("/proc/stat").read_text().split(maxsplit=9)
    if name != "cpu":
        raise OSError(f"/proc/stat begins with {name!r} instead of the sum of all CPUs.")
    return sum(map(int, (user, nice, system, irq, softirq))) * _TICK


@dataclass(frozen=True, slots=True)
class Spent:
    """What was used between two moments, in seconds: of time, of CPU by each clock, of CPU by everybody else."""

    seconds: float
    cpu: list[float]
    others: float


class Meter:
    """Reads the CPU clocks of some processes now, and again at `stop`; this process is always the last of them."""

    def __init__(self, *clocks: int) -> None:
        self._clocks = (*clocks, time.CLOCK_PROCESS_CPUTIME_ID)
        self._busy = busy_seconds()
        self._cpu = [time.clock_gettime(clock) for clock in self._clocks]
        self._began = time.monotonic()

    def stop(self) -> Spent:
        """What was used since the meter was made."""
        seconds = time.monotonic() - self._began
        now = [time.clock_gettime(clock) for clock in self._clocks]
        cpu = [after - before for after, before in zip(now, self._cpu, strict=True)]
        return Spent(seconds, cpu, max(0.0, busy_seconds() - self._busy - sum(cpu)))


def processor() -> str:
    """The model of the machine's processor, and how many of them this process may use."""
    found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    name = "unknown processor" if found is None else found[1]
    return f"{len(os.sched_getaffinity(0))} x {name}"

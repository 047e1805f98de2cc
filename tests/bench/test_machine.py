from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from tests.bench.machine import Meter, busy_seconds, cpu_clock, processor, rss


def test_the_clock_of_a_process_counts_its_cpu_and_not_its_sleep() -> None:
    clock = cpu_clock(os.getpid())
    before, cpu_before = time.clock_gettime(clock), time.process_time()
    sum(range(1_000_000))
    spent, cpu = time.clock_gettime(clock) - before, time.process_time() - cpu_before

    assert 0 < spent <= cpu + 0.001


def test_a_process_that_is_not_there_has_no_clock() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        ended.wait()
    with pytest.raises(ProcessLookupError, match=f"no process {ended.pid}"):
        cpu_clock(ended.pid)


def test_memory_is_read_in_bytes() -> None:
    assert 10_000_000 < rss(os.getpid()) < 10_000_000_000


def test_a_meter_tells_each_clock_and_this_process_last() -> None:
    meter = Meter(cpu_clock(1))
    sum(range(1_000_000))
    spent = meter.stop()

    assert len(spent.cpu) == 2
    assert 0 < spent.cpu[-1] <= spent.seconds + 0.001
    assert spent.others >= 0


def test_the_machine_has_been_busy_and_has_a_processor() -> None:
    assert busy_seconds() > 0
    assert processor().split(" x ")[0].isdigit()

"""The upkeep by real Celery: a beat and a worker over a real Redis."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest

from tests.support.processes import ROOT, Installation, environment, run_command

REDIS = ("127.0.0.1", 6379)
# A state in the past, written by a command of the installation, that only the upkeep takes back.
LIMIT = (
    "from accounts.models import Account; from datetime import UTC, datetime, timedelta; "
    "Account.objects.filter(name='ada').update(state='limited', state_until=datetime.now(UTC) - timedelta(minutes=1))"
)
LOOK = "from accounts.models import Account; print(Account.objects.get(name='ada').state)"


def redis_answers() -> bool:
    try:
        socket.create_connection(REDIS, timeout=1).close()
    except OSError:
        return False
    return True


@pytest.mark.slow
def test_a_beat_and_a_worker_do_the_upkeep_that_a_process_does_without_a_broker(tmp_path: Path) -> None:
    if not redis_answers():
        message = "Redis is not running on 127.0.0.1:6379; install and start redis-server"
        (pytest.fail if os.environ.get("CI") else pytest.skip)(message)
    installation = Installation.create(tmp_path)
    installation.add_account("ada", "http://127.0.0.1:9/v1")
    settings = {
        "CELERY_BROKER_URL": f"redis://{REDIS[0]}:{REDIS[1]}/0",
        "DJANGO_SETTINGS_MODULE": "gateway.settings",
    }
    assert run_command(installation.data_dir, "shell", "-c", LIMIT).returncode == 0
    queue = f"pointsman-{uuid.uuid4()}"
    with (tmp_path / "worker.log").open("wb") as log:
        worker = subprocess.Popen(
            [
                sys.executable, "-m", "celery", "-A", "gateway", "worker", "--beat", "--pool", "solo", "-Q", queue,
                "--schedule", str(tmp_path / "schedule"), "--loglevel", "info",
            ],
            cwd=ROOT,
            env=environment(installation.data_dir, {**settings, "CELERY_QUEUE": queue}),
            stdout=log,
            stderr=subprocess.STDOUT,
        )  # fmt: skip
    try:
        deadline = time.monotonic() + 40
        while "active" not in run_command(installation.data_dir, "shell", "-c", LOOK).stdout:
            assert time.monotonic() < deadline, (tmp_path / "worker.log").read_text()[-3000:]
            assert worker.poll() is None, (tmp_path / "worker.log").read_text()[-3000:]
            time.sleep(1)
    finally:
        worker.terminate()
        worker.wait(20)
    assert "The limit is over of" in (tmp_path / "worker.log").read_text()


def test_every_chore_of_a_process_is_a_task_of_the_beat() -> None:
    from django.conf import settings

    from gateway.chores import pool_chores
    from gateway.conf import Tunables

    chores = pool_chores(None, None, None, [], Tunables())  # type: ignore[arg-type]  # none of them is called
    assert {chore.name: chore.interval for chore in chores} == {
        name: entry["schedule"] for name, entry in settings.CELERY_BEAT_SCHEDULE.items()
    }

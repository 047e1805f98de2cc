"""The upkeep by real Celery: a beat and a worker over a real Redis."""

from __future__ import annotations

import os
import re
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
SEND_ALL = (
    "from django.conf import settings; from gateway.celery import app; "
    "[app.send_task(each['task']) for each in settings.CELERY_BEAT_SCHEDULE.values()]"
)
LOOK = "from accounts.models import Account; print(Account.objects.get(name='ada').state)"


def redis_answers() -> bool:
    try:
        socket.create_connection(REDIS, timeout=1).close()
    except OSError:
        return False
    return True


@pytest.mark.slow
@pytest.mark.timeout(180)
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
                sys.executable, "-m", "celery", "-A", "gateway", "worker", "--beat", "--concurrency", "2", "-Q", queue,
                "--schedule", str(tmp_path / "schedule"), "--loglevel", "info",
            ],
            cwd=ROOT,
            env=environment(installation.data_dir, {**settings, "CELERY_QUEUE": queue}),
            stdout=log,
            stderr=subprocess.STDOUT,
        )  # fmt: skip
    try:
        deadline = time.monotonic() + 100
        while "active" not in run_command(installation.data_dir, "shell", "-c", LOOK).stdout:
            assert time.monotonic() < deadline, (tmp_path / "worker.log").read_text()[-3000:]
            assert worker.poll() is None, (tmp_path / "worker.log").read_text()[-3000:]
            time.sleep(1)
        sent = run_command(installation.data_dir, "shell", "-c", SEND_ALL, extra={**settings, "CELERY_QUEUE": queue})
        assert sent.returncode == 0, sent.stderr
        while missing := set(tasks_of_the_beat()) - succeeded(tmp_path / "worker.log"):
            assert time.monotonic() < deadline, (missing, (tmp_path / "worker.log").read_text()[-3000:])
            time.sleep(0.5)
    finally:
        worker.terminate()
        try:
            # It ends what it has begun first.
            worker.wait(60)
        except subprocess.TimeoutExpired:
            worker.kill()
            worker.wait()
            raise
    told = (tmp_path / "worker.log").read_text()
    assert "The limit is over of" in told
    assert "raised unexpected" not in told
    # Its refusal is the upstream's, so the task has asked over a connection of its own.
    assert "Asked 1 account for the models: 0 told them; 1 did not (ada:" in told


def tasks_of_the_beat() -> list[str]:
    from django.conf import settings

    return [entry["task"] for entry in settings.CELERY_BEAT_SCHEDULE.values()]


def succeeded(log: Path) -> set[str]:
    return set(re.findall(r"Task ([a-z._]+)\[[-0-9a-f]+\] succeeded", log.read_text()))


def test_every_task_of_the_beat_has_a_time_limit_and_is_dropped_when_the_next_one_is_due() -> None:
    from django.conf import settings

    from gateway.celery import app

    app.loader.import_default_modules()
    for entry in settings.CELERY_BEAT_SCHEDULE.values():
        assert app.tasks[entry["task"]].time_limit in (60, 300)
        assert entry["options"]["expires"] == entry["schedule"]


def test_every_chore_of_a_process_is_a_task_of_the_beat() -> None:
    from django.conf import settings

    from accounts.asking import Asker
    from gateway.chores import pool_chores
    from gateway.conf import Tunables

    asker = Asker(None, None, None, ())  # type: ignore[arg-type]  # none of the chores is done
    chores = pool_chores(asker, Tunables(), lambda: 0.0)
    assert {chore.name: chore.interval for chore in chores} == {
        name: entry["schedule"] for name, entry in settings.CELERY_BEAT_SCHEDULE.items()
    }

"""`manage.py doctor` against a deployment that works, and the same one broken in several ways."""

from __future__ import annotations

from pathlib import Path

import pytest
from cryptography.fernet import Fernet

from tests.support.processes import Installation, gateway, run_command, simulator

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


def lines(output: str) -> dict[str, str]:
    """Each subject's worst line."""
    found: dict[str, str] = {}
    for line in output.splitlines():
        level, _, rest = line.partition(" ")
        subject, colon, _ = rest.strip().partition(":")
        if colon and (level != "ok" or subject not in found):
            found[subject] = line
    return found


def test_it_finds_nothing_in_a_deployment_that_works_and_leaves_no_trace(tmp_path: Path) -> None:
    with simulator(tmp_path) as upstream, gateway(tmp_path) as process:
        tmp_path.chmod(0o700)
        process.add_account("ada", upstream.base_url())
        done = run_command(tmp_path, "doctor", "--port", str(process.port))
        assert done.returncode == 0, done.stdout + done.stderr
        told = lines(done.stdout)
        assert all(line.startswith("ok ") for line in told.values()), done.stdout
        assert {"database", "token keys", "account ada", "loopback turn", "gateway", "clock", "broker"} <= set(told)
        count = "from gateway.models import Turn; print(Turn.objects.count())"
        assert process.manage("shell", "-c", count).strip().endswith("0")


def test_it_says_what_is_broken_and_what_to_do(tmp_path: Path) -> None:
    with simulator(tmp_path) as upstream:
        (tmp_path / "gateway").mkdir(0o700)
        installation = Installation.create(tmp_path / "gateway")
        folder = installation.data_dir
        for name, url in (("ada", upstream.base_url()), ("bo", "http://127.0.0.1:1/v1"), ("cy", upstream.base_url())):
            installation.add_account(name, url)
        (folder / "token_keys").chmod(0o644)
        extra = {"GATEWAY_ADMISION_TURNS": "5", "CELERY_BROKER_URL": "redis://127.0.0.1:1/7"}
        done = run_command(folder, "doctor", "--port", "1", extra=extra)
        told = lines(done.stdout)
        assert done.returncode == 1
        assert "did you mean GATEWAY_ADMISSION_TURNS?" in told["settings"]
        assert "chmod go=" in told["files"]
        assert told["broker"].startswith("wrong")
        assert told["account ada"].startswith("ok")
        assert "127.0.0.1 cannot be reached" in told["account bo"]
        assert told["loopback turn"].startswith("ok")
        assert "nothing answers" in told["gateway"]

    (folder / "token_keys").rename(folder / "lost")
    lost = lines(run_command(folder, "doctor").stdout)
    assert "was missing" in lost["files"]
    assert "restore the token_keys" in lost["token keys"]
    (folder / "token_keys").write_text(Fernet.generate_key().decode())
    assert "restore the token_keys" in lines(run_command(folder, "doctor").stdout)["token keys"]
    missing = {"DATABASE_URL": f"sqlite:///{folder}/nowhere/db.sqlite3"}
    assert "check the file" in lines(run_command(folder, "doctor", extra=missing).stdout)["database"]
    nowhere = {"DATABASE_URL": "postgres://pointsman:hunter2@127.0.0.1:1/none"}
    done = run_command(folder, "doctor", extra=nowhere)
    assert lines(done.stdout)["database"].startswith("wrong")
    assert "hunter2" not in done.stdout + done.stderr
    assert "lacks" in lines(run_command(tmp_path, "doctor").stdout)["database"]
    assert "DEBUG must be on or off" in run_command(folder, "doctor", extra={"DEBUG": "banana"}).stderr

"""nginx with the configuration of `deploy/`, in front of processes of a test."""

from __future__ import annotations

import re
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.support.processes import ROOT

START_LIMIT = 10.0
MAIN = """
daemon off;
master_process off;
pid {folder}/nginx.pid;
error_log {folder}/error.log warn;
events {{ worker_connections 512; }}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    include {folder}/pointsman.conf;
}}
"""


def configuration(port: int, gateways: Sequence[int]) -> str:
    """The file as it is deployed; only addresses and ports are this test's."""
    text = (ROOT / "deploy" / "nginx.conf").read_text()
    servers = iter(gateways)
    text, replaced = re.subn(r"server [\d.]+:\d+ ", lambda _: f"server 127.0.0.1:{next(servers)} ", text)
    assert replaced == len(gateways)
    text, replaced = re.subn(r"listen \d+;", f"listen 127.0.0.1:{port};", text)
    assert replaced == 1
    return text


@contextmanager
def nginx(program: str, folder: Path, gateways: Sequence[int]) -> Iterator[str]:
    """Run nginx in front of gateways on these ports of this machine; its URL."""
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = int(holder.getsockname()[1])
    (folder / "pointsman.conf").write_text(configuration(port, gateways))
    (folder / "nginx.conf").write_text(MAIN.format(folder=folder))
    process = subprocess.Popen([program, "-c", str(folder / "nginx.conf"), "-p", str(folder)], stderr=subprocess.PIPE)
    try:
        wait_for(process, port)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.communicate(timeout=10)


def wait_for(process: subprocess.Popen[bytes], port: int) -> None:
    deadline = time.monotonic() + START_LIMIT
    while time.monotonic() < deadline:
        assert process.poll() is None, process.communicate()[1].decode()
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            time.sleep(0.02)
        else:
            return
    raise AssertionError("nginx did not listen in time")

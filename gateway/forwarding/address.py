"""Where other replicas reach this one: a port of its own, on which nobody else is served."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from urllib.parse import urlsplit

from gateway.conf import SettingError

BIND, URL, PLAIN = "GATEWAY_PEER_BIND", "GATEWAY_PEER_URL", "GATEWAY_PEER_PLAIN_HTTP"
BACKLOG = 1024


@dataclass(frozen=True, slots=True)
class PeerAddress:
    """What to listen on, and the URL to tell others; port 0 asks the system for a free one."""

    host: str = "127.0.0.1"
    port: int = 0
    url: str = ""

    def listen(self) -> tuple[socket.socket, str]:
        """A listening socket, and the URL under which it is reached; raises `OSError`."""
        listener = socket.create_server((self.host, self.port), backlog=BACKLOG)
        return listener, self.url or f"http://{self.host}:{listener.getsockname()[1]}"


def read_peer_address(environ: Mapping[str, str]) -> PeerAddress:
    """The address from the environment; raises `SettingError`.

    Turns are sent with their bodies, so without TLS only to this machine, unless the operator says that the network
    between the replicas is private.
    """
    host, _, port = environ.get(BIND, "127.0.0.1:0").rpartition(":")
    if not host or not port.isdigit():
        raise SettingError(f"{BIND} must be an address and a port, like 10.0.0.5:8046, not {environ[BIND]!r}.")
    url = environ.get(URL, "").rstrip("/")
    if not url and _is_any(host):
        raise SettingError(f"{BIND} is every address of this machine; set {URL} to the one that other replicas use.")
    reached = urlsplit(url or f"http://{host}:{port}")
    if reached.scheme not in ("http", "https") or not reached.hostname:
        raise SettingError(f"{URL} must be an http or https URL, not {url!r}.")
    private = environ.get(PLAIN, "").lower() in ("1", "true", "yes", "on")
    if reached.scheme == "http" and not _is_loopback(reached.hostname) and not private:
        raise SettingError(
            f"Other replicas would send conversations to http://{reached.netloc} without TLS. Give {URL} an https URL, "
            f"or set {PLAIN}=1 if the network between the replicas is private."
        )
    return PeerAddress(host, int(port), url)


def _is_any(host: str) -> bool:
    return host in ("0.0.0.0", "::", "[::]")  # noqa: S104  # what an operator may have written


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"

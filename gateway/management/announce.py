"""What `serve` tells the person who started it."""

from __future__ import annotations

import os
import sys

from gateway import install
from gateway.version import VERSION

FIRST_START = """
First start. These are shown once:
  admin     {url}/admin/  user {admin}, password {password}
  API key   {key}

For the Codex CLI, in ~/.codex/config.toml:

  model_provider = "pointsman"

  [model_providers.pointsman]
  name = "Pointsman"
  base_url = "{url}/backend-api/codex"
  env_key = "POINTSMAN_API_KEY"
  wire_api = "responses"
  supports_websockets = true

and in its terminal: export POINTSMAN_API_KEY={key}
"""
NO_ACCOUNT = """
No account yet. In another terminal, sign in with ChatGPT or add an API key:
  {prefix}{python} manage.py login_account NAME
  {prefix}{python} manage.py add_account NAME --kind openai --api-key-file FILE
"""
EVERYWHERE = ("0.0.0.0", "::")  # noqa: S104  # compared with, never listened on


def announcement(address: tuple[str, int], secrets: install.FirstSecrets | None, *, empty: bool) -> str:
    """The gateway's address, what the first start made, and the next step if the pool is `empty`."""
    host, port = address
    url = f"http://{'127.0.0.1' if host in EVERYWHERE else host}:{port}"
    text = f"Pointsman {VERSION} is ready on {url}\n"
    if secrets is not None:
        text += FIRST_START.format(url=url, admin=install.ADMIN, password=secrets.password, key=secrets.key)
    if empty:
        data_dir = os.environ.get("GATEWAY_DATA_DIR")
        prefix = f"GATEWAY_DATA_DIR={data_dir} " if data_dir else ""
        text += NO_ACCOUNT.format(prefix=prefix, python=sys.executable)
    return text

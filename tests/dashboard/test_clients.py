"""The page with ready blocks, and the page of the manual that says the same."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest
from django.test import Client

from dashboard.clients import blocks

MANUAL = Path(__file__).resolve().parents[2] / "docs" / "clients.md"


@pytest.mark.django_db
def test_the_blocks_are_filled_in_with_this_gateways_address(admin_client: Client) -> None:
    shown = admin_client.get("/admin/clients/", headers={"host": "gw.example:8045"}).content.decode()
    for path in ("/backend-api/codex", "/v1", "/v1/usage"):
        assert f"http://gw.example:8045{path}" in shown
    assert "<script>" not in shown
    assert " style=" not in shown


@pytest.mark.django_db
def test_only_who_may_come_in_sees_them(client: Client) -> None:
    assert client.get("/admin/clients/").status_code == 302


def test_what_is_read_by_programs_is_valid() -> None:
    texts = {block.client: block.text for block in blocks("http://gw")}
    provider = tomllib.loads(texts["Codex"])["model_providers"]["pointsman"]
    assert provider["base_url"] == "http://gw/backend-api/codex"
    assert json.loads(texts["OpenCode"])["provider"]["pointsman"]["options"]["baseURL"] == "http://gw/v1"
    compile(texts["OpenAI SDK, Python"], "sdk.py", "exec")


def test_the_manual_has_the_same_blocks() -> None:
    manual = MANUAL.read_text()
    for block in blocks("http://127.0.0.1:8045"):
        assert block.text in manual, block.client

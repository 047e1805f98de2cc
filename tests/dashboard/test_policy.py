"""What a browser may do on the operator's pages."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from django.contrib import admin as django_admin
from django.test import Client

import dashboard
from tests.dashboard.cast import account

TEMPLATES = [
    *(Path(dashboard.__file__).parent / "templates").rglob("*.html"),
    *(Path(django_admin.__file__).parent / "templates/admin").rglob("*.html"),
]
INLINE = re.compile(
    r"""<script(?![^>]*\bsrc=)(?![^>]*json)[^>]*>|<[^>{]*\son\w+\s*=|<[^>{]*\sstyle\s*=""", re.IGNORECASE
)


@pytest.mark.django_db
def test_every_page_forbids_inline_code_and_other_hosts(admin_client: Client, client: Client) -> None:
    for page in (admin_client.get("/admin/"), client.get("/admin/login/")):
        policy = page.headers["Content-Security-Policy"]
        assert "script-src 'self'" in policy
        assert "style-src 'self'" in policy
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda path: path.name)
def test_no_template_needs_what_the_policy_forbids(template: Path) -> None:
    assert INLINE.search(template.read_text()) is None


@pytest.mark.django_db
def test_the_pages_that_django_makes_have_no_inline_code_either(admin_client: Client) -> None:
    ada = account("ada")
    for path in ("", "accounts/account/", f"accounts/account/{ada.pk}/change/", "auth/user/add/", "gateway/turn/"):
        shown = admin_client.get(f"/admin/{path}").content.decode()
        assert INLINE.search(shown) is None
        assert "<style" not in shown

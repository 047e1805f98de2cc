from __future__ import annotations

import pytest
from django.contrib.auth.models import User
from django.test import Client


@pytest.fixture
def admin_client(db: None) -> Client:
    """The operator's browser. Signed in without a password, since hashing one costs more than a test."""
    operator = User(username="admin", is_staff=True, is_superuser=True)
    operator.set_unusable_password()
    operator.save()
    client = Client()
    client.force_login(operator)
    return client

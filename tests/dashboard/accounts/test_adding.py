"""Adding accounts in the admin: files, keys, and sign-ins with the simulator as the issuer."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from django.conf import settings
from django.contrib.auth.models import Permission, User
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client

from accounts.credentials import CodexCredentials, OpenAICredentials, proxy_of, unseal
from accounts.models import Account, AccountEvent
from accounts.states import State
from dashboard.accounts.sign_in import SESSION
from gateway.simulator import Simulator
from tests.accounts.cast import auth_json

pytestmark = pytest.mark.django_db

ADD = "/admin/accounts/account/add/"
SIGN_IN = "/admin/accounts/account/sign-in/"
COMMON = {"name": "ada", "transport": "auto", "priority": "100"}


def send(client: Client, do: str, **fields: Any) -> str:
    """Press one of the buttons; the page that follows."""
    return client.post(ADD, {**COMMON, "do": do, **fields}, follow=True).content.decode()


def file(name: str, account_id: str) -> SimpleUploadedFile:
    own = {"account_id": account_id, "refresh_token": f"refresh-of-{account_id}"}
    tokens = json.loads(auth_json())["tokens"] | own
    return SimpleUploadedFile(f"{name}.json", auth_json(tokens=tokens))


def credentials(name: str = "ada") -> object:
    return unseal(Account.objects.get(name=name).credentials, settings.TOKEN_KEYS)


class TestFiles:
    def test_a_pasted_sign_in_becomes_an_account_and_is_shown_nowhere(self, admin_client: Client) -> None:
        shown = send(admin_client, "auth_json", auth_json=auth_json().decode(), priority="7")
        assert "Added ada." in shown
        assert "refresh-of-ada" not in shown
        ada = Account.objects.get()
        assert (ada.kind, ada.email, ada.priority) == ("codex", "ada@example.com", 7)
        assert isinstance(credentials(), CodexCredentials)
        assert [(event.what, event.by) for event in AccountEvent.objects.all()] == [("added", "admin")]

    def test_several_files_become_numbered_accounts(self, admin_client: Client) -> None:
        shown = send(admin_client, "auth_json", uploads=[file("a", "chatgpt-a"), file("b", "chatgpt-b")])
        assert "Added 2 accounts: ada-1, ada-2." in shown

    def test_a_file_that_cannot_be_used_is_named_and_nothing_is_added(self, admin_client: Client) -> None:
        bad = SimpleUploadedFile("bad.json", b"{")
        assert "bad.json: The file is no JSON" in send(admin_client, "auth_json", uploads=[file("a", "x"), bad])
        assert not Account.objects.exists()

    def test_nothing_given_is_told(self, admin_client: Client) -> None:
        assert "Paste the text of an auth.json" in send(admin_client, "auth_json")

    def test_new_credentials_for_a_known_account_keep_how_it_is_used(self, admin_client: Client) -> None:
        send(admin_client, "auth_json", auth_json=auth_json().decode(), priority="7")
        Account.objects.update(state=State.NEEDS_LOGIN)
        shown = send(admin_client, "auth_json", auth_json=auth_json().decode(), replace="on")
        assert "Replaced the credentials of ada." in shown
        ada = Account.objects.get()
        assert (ada.state, ada.priority) == ("active", 7)

    def test_a_text_that_is_refused_is_not_sent_back(self, admin_client: Client) -> None:
        shown = send(admin_client, "auth_json", auth_json=auth_json().decode(), name="a/b")
        assert "must begin with a letter" in shown
        assert "refresh-of-ada" not in shown


class TestKeys:
    def test_a_key_becomes_an_account_behind_its_proxy(self, admin_client: Client) -> None:
        shown = send(admin_client, "api_key", api_key=" sk-hidden-word ", proxy="http://me:hidden-word@p.example:3128")
        assert "Added ada." in shown
        assert "hidden-word" not in shown
        assert credentials() == OpenAICredentials("sk-hidden-word")
        assert proxy_of(Account.objects.get(), settings.TOKEN_KEYS) == "http://me:hidden-word@p.example:3128"

    @pytest.mark.parametrize(("key", "complaint"), [("", "Enter the key."), ('{"a": 1}', "JSON and no API key")])
    def test_what_is_no_key_is_refused(self, admin_client: Client, key: str, complaint: str) -> None:
        assert complaint in send(admin_client, "api_key", api_key=key)

    def test_a_name_in_use_a_bad_address_or_a_bad_proxy_is_refused(self, admin_client: Client) -> None:
        send(admin_client, "api_key", api_key="sk-1")
        assert "choose another name" in send(admin_client, "api_key", api_key="sk-2")
        assert "plain http" in send(admin_client, "api_key", api_key="sk-2", name="bo", base_url="http://example.com")
        assert "needs a host and a port" in send(admin_client, "api_key", api_key="sk-2", name="bo", proxy="http://p")
        assert "less than or equal to 999999999" in send(admin_client, "api_key", api_key="sk-2", priority="9999999999")
        assert Account.objects.count() == 1

    def test_somebody_who_may_only_look_cannot_add(self, client: Client) -> None:
        viewer = User.objects.create(username="viewer", is_staff=True)
        viewer.user_permissions.add(Permission.objects.get(codename="view_account"))
        client.force_login(viewer)
        for url in (ADD, SIGN_IN):
            assert client.get(url).status_code == 403
        assert client.post(ADD, {**COMMON, "do": "api_key", "api_key": "sk-1"}).status_code == 403


@pytest.fixture
def issuer(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The simulator, in a thread of its own, as the issuer of the gateway; its address."""
    started, stop = threading.Event(), asyncio.Event()
    found: list[Any] = []

    async def serve() -> None:
        async with Simulator() as upstream:
            found.extend([upstream.base_url(""), asyncio.get_running_loop()])
            started.set()
            await stop.wait()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    assert started.wait(5)
    monkeypatch.setenv("GATEWAY_ISSUER_URL", found[0])
    yield found[0]
    found[1].call_soon_threadsafe(stop.set)
    thread.join()


def later(client: Client) -> None:
    """The person takes longer than the page waits between two questions."""
    from accounts.credentials import seal_text, unseal_text

    session = client.session
    pending = json.loads(unseal_text(session[SESSION], settings.TOKEN_KEYS))
    pending["asked_at"] -= 60
    session[SESSION] = seal_text(json.dumps(pending), settings.TOKEN_KEYS)
    session.save()


class TestSignIn:
    def test_the_page_shows_a_code_waits_for_it_and_goes_to_the_new_account(
        self, admin_client: Client, issuer: str
    ) -> None:
        shown = send(admin_client, "sign_in", priority="7")
        code = re.search(r"SIM-\d{4}", shown)
        assert code is not None
        assert f"{issuer}/codex/device" in shown
        assert '<noscript><meta http-equiv="refresh" content="1"></noscript>' in shown
        assert admin_client.get(SIGN_IN, headers={"X-Asks": "to"}).json() == {"to": ""}
        later(admin_client)
        assert code[0] in admin_client.get(SIGN_IN).content.decode()
        httpx.post(f"{issuer}/codex/device", data={"user_code": code[0]}, trust_env=False)
        later(admin_client)
        assert "Added ada." in admin_client.get(SIGN_IN, follow=True).content.decode()
        ada = Account.objects.get()
        assert (ada.email, ada.plan_type, ada.priority) == ("person@example.com", "plus", 7)
        assert [(event.what, event.by) for event in AccountEvent.objects.all()] == [("added", "admin")]
        assert SESSION not in admin_client.session

    def test_an_account_that_needs_a_login_is_signed_in_again(self, admin_client: Client, issuer: str) -> None:
        self.test_the_page_shows_a_code_waits_for_it_and_goes_to_the_new_account(admin_client, issuer)
        Account.objects.update(state=State.NEEDS_LOGIN)
        assert 'value="ada"' in admin_client.get(ADD, {"name": "ada"}).content.decode()
        code = re.search(r"SIM-\d{4}", send(admin_client, "sign_in", replace="on"))
        assert code is not None
        httpx.post(f"{issuer}/codex/device", data={"user_code": code[0]}, trust_env=False)
        later(admin_client)
        assert "Replaced the credentials of ada." in admin_client.get(SIGN_IN, follow=True).content.decode()
        assert Account.objects.get().state == "active"

    def test_what_the_issuer_must_know_alone_is_on_no_page_and_sealed_in_the_session(
        self, admin_client: Client, issuer: str
    ) -> None:
        assert "device-1" not in send(admin_client, "sign_in") + admin_client.session[SESSION]

    def test_its_script_is_told_where_to_go_when_it_is_done(self, admin_client: Client, issuer: str) -> None:
        code = re.search(r"SIM-\d{4}", send(admin_client, "sign_in"))
        assert code is not None
        httpx.post(f"{issuer}/codex/device", data={"user_code": code[0]}, trust_env=False)
        later(admin_client)
        led = admin_client.get(SIGN_IN, headers={"X-Asks": "to"}).json()["to"]
        assert "Added ada." in admin_client.get(led).content.decode()

    def test_it_can_be_stopped(self, admin_client: Client, issuer: str) -> None:
        send(admin_client, "sign_in")
        assert "Stopped; nothing was stored." in admin_client.post(SIGN_IN, follow=True).content.decode()
        assert admin_client.get(SIGN_IN).headers["location"] == ADD

    def test_an_issuer_that_is_out_of_reach_and_a_name_that_cannot_be_are_told_at_once(
        self, admin_client: Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("GATEWAY_ISSUER_URL", "http://127.0.0.1:9")
        assert "127.0.0.1 could not be asked" in send(admin_client, "sign_in")
        assert "no account named ada that could be signed in" in send(admin_client, "sign_in", replace="on")
        assert "must begin with a letter" in send(admin_client, "sign_in", name="a/b")

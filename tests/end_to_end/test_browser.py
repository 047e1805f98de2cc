"""The operator's pages in a real browser, on a real gateway with a simulated upstream."""

from __future__ import annotations

import sqlite3
import threading
import time
from base64 import b32decode
from collections.abc import Callable, Iterator
from contextlib import closing

import httpx
import pytest
from django_otp.oath import TOTP
from playwright.sync_api import Browser, expect

from tests.accounts.cast import auth_json
from tests.end_to_end.browser import SCHEMES, Operator, chromium
from tests.support.processes import GatewayProcess, Installation, SimulatorProcess, simulator

pytestmark = pytest.mark.slow

PAGES = {
    "overview": "",
    "accounts": "accounts/account/",
    "account": "accounts/account/1/change/",
    "account-new": "accounts/account/add/",
    "events": "accounts/accountevent/",
    "turns": "gateway/turn/",
    "sessions": "gateway/session/",
    "purge": "gateway/session/purge/",
    "prices": "gateway/tokenprice/",
    "aliases": "gateway/modelalias/",
    "keys": "gateway/apikey/",
    "key": "gateway/apikey/1/change/",
    "key-new": "gateway/apikey/add/",
    "clients": "clients/",
    "lanes": "lanes/",
    "replicas": "replicas/",
    "second-factor": "second-factor/",
    "password": "password_change/",
    "users": "auth/user/",
    "user": "auth/user/1/change/",
    "actions": "admin/logentry/",
    "attempts": "axes/accessattempt/",
    "visits": "axes/accesslog/",
    "groups": "auth/group/",
    "group-new": "auth/group/add/",
    "authenticators": "dashboard/authenticator/",
    "app": "gateway/",
    "account-history": "accounts/account/1/history/",
    "account-delete": "accounts/account/1/delete/",
    "price-new": "gateway/tokenprice/add/",
    "alias-new": "gateway/modelalias/add/",
}


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as running:
        yield running


@pytest.fixture(scope="module")
def slow_upstream(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimulatorProcess]:
    """An upstream whose answers take some seconds."""
    with simulator(tmp_path_factory.mktemp("slow"), "--events", "20", "--interval", "0.3") as process:
        yield process


@pytest.fixture(scope="module")
def installation(
    tmp_path_factory: pytest.TempPathFactory, template: Installation, slow_upstream: SimulatorProcess
) -> Installation:
    made = template.copy(tmp_path_factory.mktemp("browser") / "data")
    made.add_account("ada", slow_upstream.base_url())
    return made


@pytest.fixture(scope="module")
def gateway(installation: Installation, slow_upstream: SimulatorProcess) -> Iterator[GatewayProcess]:
    yield from installation.serve(GATEWAY_ISSUER_URL=slow_upstream.root)


@pytest.fixture
def operator(browser: Browser, gateway: GatewayProcess, installation: Installation) -> Iterator[Operator]:
    """Somebody who has signed in, and whose pages must not have complained at the end."""
    somebody = Operator(browser, gateway.url)
    somebody.sign_in(installation.password)
    yield somebody
    somebody.assert_clean()
    somebody.context.close()


def ask(gateway: GatewayProcess, **fields: object) -> httpx.Response:
    body = {"model": "gpt-5.5", "input": "hello", **fields}
    return httpx.post(f"{gateway.url}/v1/responses", json=body, headers=gateway.headers, timeout=60, trust_env=False)


def wait_until_nobody_is_usable(gateway: GatewayProcess) -> None:
    """The page reads the database; the gateway learns of accounts within two seconds."""
    deadline = time.monotonic() + 10
    while httpx.get(f"{gateway.url}/readyz", trust_env=False).status_code != 503:
        assert time.monotonic() < deadline, "the gateway still has a usable account"
        time.sleep(0.05)


@pytest.fixture
def in_background() -> Iterator[Callable[[Callable[[], object]], None]]:
    """Runs something beside the browser, to its end."""
    threads: list[threading.Thread] = []

    def run(work: Callable[[], object]) -> None:
        threads.append(threading.Thread(target=work))
        threads[-1].start()

    yield run
    for thread in threads:
        thread.join(60)


def test_the_operator_signs_in_and_sees_the_pool(operator: Operator) -> None:
    expect(operator.page.locator("#live-pool")).to_contain_text("The one account can take turns.")
    expect(operator.page.locator("#live-sign")).to_be_visible()


def test_a_live_turn_appears_runs_and_finishes_and_its_timeline_tells_how(
    operator: Operator, gateway: GatewayProcess, in_background: Callable[[Callable[[], object]], None]
) -> None:
    page = operator.page
    in_background(lambda: ask(gateway, stream=True))
    newest = page.locator("#live-newest tbody tr").first
    expect(newest).to_contain_text("running")
    expect(page.locator("#live-pool .pool-now div", has_text="running")).to_contain_text("1")
    expect(newest).to_contain_text("completed")
    newest.locator("a").click()
    expect(page.locator(".story-sentence")).to_contain_text("ada answered it in")
    assert page.locator(".gantt").count() >= 5
    operator.assert_accessible()


def test_a_hidden_tab_is_told_nothing_and_catches_up_when_it_is_shown_again(operator: Operator) -> None:
    page = operator.page
    expect(page.locator("#live-sign")).to_be_visible()
    hide = "value => {Object.defineProperty(document, 'hidden', {value, configurable: true});" \
           "document.dispatchEvent(new Event('visibilitychange'))}"  # fmt: skip
    page.evaluate(hide, True)
    expect(page.locator("#live-sign")).to_be_hidden()
    page.evaluate(hide, False)
    expect(page.locator("#live-sign")).to_be_visible()


def test_pausing_the_only_account_refuses_turns_and_resuming_takes_them_again(
    operator: Operator, gateway: GatewayProcess
) -> None:
    operator.open("accounts/account/")
    operator.act("Pause", "ada")
    assert "Paused ada." in operator.said()
    operator.open()
    expect(operator.page.locator("#live-pool")).to_contain_text("No account can take a turn now.")
    expect(operator.page.locator("#live-accounts")).to_contain_text("paused")
    wait_until_nobody_is_usable(gateway)
    assert ask(gateway).status_code == 503
    expect(operator.page.locator("#live-newest tbody tr").first).to_contain_text("refused")
    operator.page.locator("#live-newest tbody tr a").first.click()
    expect(operator.page.locator(".story-sentence")).to_contain_text("It was refused because")
    operator.shoot("turn-refused")
    operator.open("accounts/account/")
    operator.act("Resume", "ada")
    assert "Resumed ada." in operator.said()
    gateway.wait_ready()
    assert ask(gateway).status_code == 200


def test_a_circuit_is_opened_and_reset(operator: Operator) -> None:
    operator.open("accounts/account/")
    operator.act("Open the circuit", "ada")
    operator.open()
    expect(operator.page.locator("#live-accounts")).to_contain_text("circuit open")
    operator.open("accounts/account/")
    operator.act("Reset the circuit", "ada")
    operator.open()
    expect(operator.page.locator("#live-pool")).to_contain_text("The one account can take turns.")


def test_an_account_is_added_by_its_key_which_is_not_shown_again(operator: Operator) -> None:
    operator.open("accounts/account/add/")
    page = operator.page
    page.fill("[name=name]", "bo")
    page.fill("[name=api_key]", "sk-never-again")
    page.click("[name=do][value=api_key]")
    expect(page.locator("ul.messagelist")).to_contain_text("bo")
    assert "sk-never-again" not in page.content()
    operator.open("accounts/account/")
    operator.act("Disable", "bo")


def test_a_purge_shows_first_what_would_go(operator: Operator) -> None:
    operator.open("gateway/session/purge/")
    expect(operator.page.locator("#content")).to_contain_text("Exactly this is done")
    operator.assert_accessible()


def test_without_scripts_the_overview_is_complete(
    browser: Browser, gateway: GatewayProcess, installation: Installation
) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(f"{gateway.url}/admin/login/")
    page.fill("#id_username", "admin")
    page.fill("#id_password", installation.password)
    page.click("input[type=submit]")
    for part in ("pool", "figures", "rings", "accounts", "charts", "newest"):
        assert page.locator(f"#live-{part}").inner_text().strip()
    page.click("text=7d")
    assert "Last 7 days" in page.locator(".section-title").all_inner_texts()
    context.close()


def test_the_menus_of_a_list_are_worked_by_keyboard(operator: Operator) -> None:
    operator.open("gateway/turn/")
    menu = operator.page.locator("details.choice").first
    menu.locator("summary").focus()
    operator.page.keyboard.press("Enter")
    expect(menu.locator("ul")).to_be_visible()
    operator.page.keyboard.press("Escape")
    expect(menu.locator("ul")).to_be_hidden()


@pytest.mark.timeout(300)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_page_is_usable_by_everybody_in_every_width(
    browser: Browser, gateway: GatewayProcess, installation: Installation, scheme: str
) -> None:
    ask(gateway)
    visitor = Operator(browser, gateway.url, scheme)
    visitor.open("login/")
    visitor.assert_accessible()
    visitor.shoot("login")
    visitor.sign_in(installation.password)
    turn = visitor.page.locator("#live-newest tbody tr a").first.get_attribute("href") or ""
    for name, path in {**PAGES, "turn": turn.removeprefix("/admin/")}.items():
        visitor.open(path)
        visitor.assert_accessible()
        visitor.shoot(name)
        visitor.page.set_viewport_size({"width": 390, "height": 800})
        assert visitor.overflow() <= 0, f"{name} is wider than a phone"
        visitor.page.set_viewport_size({"width": 1280, "height": 900})
    visitor.assert_clean()
    visitor.context.close()


def test_an_authenticator_is_set_up_and_asked_for_at_the_next_sign_in(
    operator: Operator, browser: Browser, gateway: GatewayProcess, installation: Installation
) -> None:
    page = operator.page
    operator.open("second-factor/")
    page.click("text=Set up an authenticator")
    secret = b32decode(page.locator(".narrow code").inner_text())
    operator.assert_accessible()
    page.fill("[name=code]", f"{TOTP(secret).token():06d}")
    page.click("text=Confirm")
    assert "Set up." in operator.said()
    with closing(sqlite3.connect(installation.data_dir / "pointsman.sqlite3")) as database:
        stored = str(database.execute("SELECT * FROM dashboard_authenticator").fetchall())
        assert secret.hex() not in stored
        # The code of now is used up; the next one would take half a minute.
        database.execute("UPDATE dashboard_authenticator SET last_t = -1")
        database.commit()
    visitor = Operator(browser, gateway.url)
    visitor.open("login/")
    visitor.page.fill("#id_username", "admin")
    visitor.page.fill("#id_password", installation.password)
    visitor.page.fill("#id_code", f"{TOTP(secret).token():06d}")
    visitor.page.click("input[type=submit]")
    visitor.page.wait_for_url("**/admin/")
    visitor.assert_clean()
    visitor.context.close()
    with closing(sqlite3.connect(installation.data_dir / "pointsman.sqlite3")) as database, database:
        database.execute("UPDATE dashboard_authenticator SET last_t = -1")
    page.fill("[name=code]", f"{TOTP(secret).token():06d}")
    page.click("text=Remove the authenticator")
    assert "Removed." in operator.said()


def test_an_account_is_paused_and_resumed_on_its_own_page(operator: Operator, gateway: GatewayProcess) -> None:
    operator.open()
    operator.page.click("#live-accounts >> text=ada")
    operator.page.click("text=Pause")
    assert "Paused ada." in operator.said()
    expect(operator.page.locator(".account-events")).to_contain_text("paused")
    operator.page.click("text=Resume")
    assert "Resumed ada." in operator.said()
    gateway.wait_ready()


def forget_soft_sessions(installation: Installation) -> None:
    """Let what is softly tied look unused for a day."""
    with closing(sqlite3.connect(installation.data_dir / "pointsman.sqlite3")) as database, database:
        database.execute("UPDATE gateway_session SET used_at = datetime(used_at, '-1 day')")


def test_a_purge_does_what_its_preview_has_shown(
    operator: Operator, gateway: GatewayProcess, installation: Installation
) -> None:
    ask(gateway, prompt_cache_key="a-conversation-long-over")
    forget_soft_sessions(installation)
    operator.open("gateway/session/")
    operator.page.click("text=Purge stale…")
    going = operator.page.locator(".purge-group tbody tr")
    name = going.first.locator("code").inner_text()
    operator.assert_accessible()
    operator.shoot("purge-full")
    operator.page.click("text=Purge these")
    assert "Purged" in operator.said()
    expect(operator.page.locator("#changelist")).not_to_contain_text(name)
    operator.page.click("text=Purge stale…")
    expect(operator.page.locator("#content")).not_to_contain_text(name)


def test_an_account_is_added_by_pasting_its_sign_in(operator: Operator) -> None:
    operator.open("accounts/account/add/")
    page = operator.page
    page.fill("[name=name]", "cy")
    page.fill("[name=auth_json]", auth_json().decode())
    page.click("[name=do][value=auth_json]")
    expect(page.locator("ul.messagelist")).to_contain_text("Added cy.")
    assert "refresh-of-ada" not in page.content()
    operator.assert_accessible()
    operator.shoot("account-signed-in")
    operator.open("accounts/account/")
    operator.act("Disable", "cy")


def test_a_device_signs_in_while_the_page_waits(operator: Operator, slow_upstream: SimulatorProcess) -> None:
    operator.open("accounts/account/add/")
    page = operator.page
    page.fill("[name=name]", "zoe")
    page.click("[name=do][value=sign_in]")
    code = page.locator(".user-code strong").inner_text()
    operator.assert_accessible()
    operator.shoot("sign-in")
    done = httpx.post(f"{slow_upstream.root}/codex/device", data={"user_code": code}, trust_env=False)
    assert done.status_code == 200
    expect(page.locator("ul.messagelist")).to_contain_text("Added zoe.")
    operator.open("accounts/account/")
    operator.act("Disable", "zoe")


def lane_is_shown(operator: Operator) -> bool:
    """Whether it comes to a page that shows a lane of the account `lane` as open."""
    page = operator.page
    lanes = page.locator("tr", has=page.locator("th", has_text="lane")).filter(has_text="open")
    deadline = time.monotonic() + 4
    while time.monotonic() < deadline:
        operator.open("lanes/")
        if lanes.count():
            return True
    return False


def test_a_lane_is_retired_by_its_button(operator: Operator, gateway: GatewayProcess, installation: Installation,
                                         slow_upstream: SimulatorProcess) -> None:  # fmt: skip
    installation.add_account("lane", slow_upstream.base_url(), "--transport", "websocket", "--priority", "1")
    # The gateway learns of the account within seconds, and until then turns go elsewhere; it tells of a lane as late.
    for attempt in range(5):
        assert ask(gateway, prompt_cache_key=f"a-conversation-on-a-lane-{attempt}").status_code == 200
        if lane_is_shown(operator):
            break
    page = operator.page
    row = page.locator("tr", has=page.locator("th", has_text="lane"))
    expect(row).to_contain_text("open")
    operator.assert_accessible()
    operator.shoot("lanes-open")
    operator.open("gateway/session/")
    operator.shoot("sessions-owned")
    operator.open("lanes/")
    row.locator("button").click()
    expect(page.locator("ul.messagelist")).to_contain_text("to be retired")
    expect(page.locator(".orders")).to_contain_text("The lane is closed")
    expect(row).to_have_count(0)
    operator.open("accounts/account/")
    operator.act("Disable", "lane")

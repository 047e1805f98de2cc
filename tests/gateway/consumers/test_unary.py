"""What is passed through besides responses, against the simulated upstream."""

from __future__ import annotations

from dataclasses import replace

import pytest

from accounts.states import Kind
from gateway.simulator.seal import owner
from gateway.turns.operations import OPERATIONS, Operation, find_operation
from tests.support.inprocess import World, world

CODEX = "/backend-api/codex"
COMPACT = {"model": "gpt-5.5", "input": [], "instructions": "shorten"}


async def test_a_conversation_is_compacted_by_its_own_account() -> None:
    async with world("ada", "bo", transport="http") as w:
        await w.post({"model": "gpt-5.5", "input": "hi", "stream": True}, thread_id="t", **{"thread-id": "t"})
        served = w.upstream.observed.requests[-1].account
        answer = await w.post(COMPACT, f"{CODEX}/responses/compact", **{"thread-id": "t"})
        (turn,) = (turn for turn in await w.settled() if turn["operation"])
    assert answer.status_code == 200
    assert owner(answer.json()["output"][0]["encrypted_content"]) == served
    assert (turn["operation"], turn["outcome"], turn["account_name"]) == ("compact", "completed", served)
    assert (turn["input_tokens"], turn["output_tokens"]) == (100, 20)
    assert answer.headers["x-codex-primary-used-percent"]


async def test_only_what_is_listed_is_passed_through() -> None:
    async with world() as w:
        for path in (f"{CODEX}/alpha/other", "/backend-api/files/a/b/c", "/v1/fine-tuning"):
            assert (await w.client.post(w.url + path)).status_code == 404
        assert (await w.client.get(w.url + f"{CODEX}/alpha/search")).status_code == 405
        assert not w.upstream.observed.requests


PLAIN = [operation for operation in OPERATIONS if "{id}" not in operation.path]


@pytest.mark.parametrize("operation", PLAIN, ids=lambda operation: operation.route)
async def test_each_operation_reaches_an_account_and_is_in_the_ledger(operation: Operation) -> None:
    async with world() as w:
        if operation.mount == "v1":
            w.store.accounts[1] = replace(w.store.accounts[1], kind=Kind.OPENAI, base_url=w.upstream.url)
            await w.runtime.registry.refresh()
        answer = await w.post({"model": "gpt-5.5", "input": []}, operation.route)
        (turn,) = await w.settled()
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "application/json"
    assert w.upstream.observed.requests[-1].path == operation.route
    assert (turn["operation"], turn["outcome"], turn["upstream"]) == (operation.name, "completed", "http")


async def upload(w: World) -> tuple[str, str]:
    """Upload a file; its id and the account that has it."""
    made = (await w.post({"file_name": "a.txt"}, "/backend-api/files")).json()["file_id"]
    return made, w.upstream.observed.requests[-1].account


def using(*files: str) -> dict[str, object]:
    content = [{"type": "input_file", "file_id": file} for file in files]
    return {"model": "gpt-5.5", "stream": True, "input": [{"type": "message", "role": "user", "content": content}]}


async def test_a_file_stays_with_the_account_that_has_it() -> None:
    async with world("ada", "bo", transport="http", priority=1) as w:
        files = dict([await upload(w) for _ in range(4)])
        assert set(files.values()) == {"ada", "bo"}
        for file, account in files.items():
            assert (await w.post({}, f"/backend-api/files/{file}/uploaded")).status_code == 200
            assert w.upstream.observed.requests[-1].account == account
            await w.post(using(file))
            assert w.upstream.observed.requests[-1].account == account
        refused = await w.post(using(*files))
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "continuity_owner_conflict")


async def test_who_has_a_file_is_known_after_a_restart_and_to_its_client_alone() -> None:
    async with world("ada", "bo", transport="http", priority=1) as w:
        files = dict([await upload(w) for _ in range(4)])
        await w.settled()
        w.runtime.sessions.forget(list(w.store.sessions))
        await w.runtime._learn_sessions(since=0.0)
        for file, account in files.items():
            await w.post(using(file))
            assert w.upstream.observed.requests[-1].account == account


async def test_what_an_account_refuses_is_told_and_a_limit_is_not_the_end() -> None:
    async with world("ada", "bo") as w:
        refused = await w.post({"input": []}, f"{CODEX}/responses/compact")
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "model")
        w.upstream.backend.accounts["sim-ada"].limited_until = 4e9
        w.upstream.backend.accounts["sim-bo"].limited_until = None
        answers = [await w.post(COMPACT, f"{CODEX}/responses/compact") for _ in range(2)]
    assert [answer.status_code for answer in answers] == [200, 200]


async def test_an_upload_that_is_no_json_keeps_its_bytes_and_its_type() -> None:
    async with world() as w:
        answer = await w.client.post(w.url + "/backend-api/transcribe", files={"file": ("a.wav", b"RIFF\x00\xff")})
        (turn,) = await w.settled()
    record = w.upstream.observed.requests[-1]
    assert answer.json()["received"] == turn["request_bytes"] > 6
    assert record.headers["content-type"].startswith("multipart/form-data; boundary=")


async def test_an_operation_counts_against_the_limits_of_its_key() -> None:
    async with world() as w:
        await w.post({}, f"{CODEX}/alpha/search")
        usage = (await w.client.get(w.url + "/v1/usage")).json()
    assert usage["windows"][0]["requests"]["used"] == 1


@pytest.mark.parametrize("resource", ["../models", "a/b", "", "a%2Fb", "ä"])
def test_an_id_in_a_path_is_one_plain_segment(resource: str) -> None:
    assert find_operation("POST", f"/backend-api/files/{resource}/uploaded") is None

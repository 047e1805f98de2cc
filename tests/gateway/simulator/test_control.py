import httpx
import pytest

from gateway.simulator import Simulator
from tests.gateway.simulator.clients import http, post, request


@pytest.fixture
async def control(upstream: Simulator) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=upstream.base_url("/_simulator"), trust_env=False, verify=False)


async def test_faults_are_added_listed_and_cleared(upstream: Simulator, control: httpx.AsyncClient) -> None:
    async with control:
        assert (await control.post("/faults", json={"fault": "http:500#1"})).json() == {"faults": ["http:500#1"]}
        await control.post("/faults", json={"faults": ["slow:1", "reset"]})
        listed = (await control.get("/faults")).json()
        assert (await post(upstream, request())).status_code == 500
        await control.delete("/faults")

    assert listed["faults"] == ["http:500#1", "slow:1", "reset"]
    assert "silent" in listed["known"]
    assert list(upstream.faults) == []


@pytest.mark.parametrize(
    "asked", [{"faults": ["slow:1", "nothing"]}, {"faults": [7]}, {"faults": []}, {}, {"fault": 1}]
)
async def test_a_mistake_adds_no_fault_at_all(
    upstream: Simulator, control: httpx.AsyncClient, asked: dict[str, object]
) -> None:
    async with control:
        answer = await control.post("/faults", json=asked)

    assert answer.status_code == 400
    assert answer.json()["error"]
    assert list(upstream.faults) == []


async def test_observations_are_shown_and_forgotten(upstream: Simulator, control: httpx.AsyncClient) -> None:
    await post(upstream, request(model="gpt-5.5;events=2"))
    async with control:
        seen = (await control.get("/observed")).json()
        await control.delete("/observed")
        later = (await control.get("/observed")).json()

    (record,) = seen["requests"]
    assert record["transport"] == "http"
    assert record["account"] == "ada"
    assert record["outcome"] == "completed"
    assert record["events_sent"] == 10
    assert record["body"]["model"] == "gpt-5.5;events=2"
    assert (seen["open_sockets"], seen["running"]) == (0, 0)
    assert later["requests"] == []


async def test_other_paths_are_404(upstream: Simulator) -> None:
    async with http() as client:
        answer = await client.get(upstream.base_url("/_simulator/nothing"))

    assert answer.status_code == 404
    assert "faults and observed" in answer.json()["error"]

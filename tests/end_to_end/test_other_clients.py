"""Clients that other people wrote, as real programs: the Node SDK, LangChain, OpenCode."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.optional import require_module, require_node_package, require_program
from tests.support.processes import GatewayProcess, Installation, SimulatorProcess

pytestmark = [pytest.mark.slow, pytest.mark.real_client]

HERE = Path(__file__).parent
EVERYTHING = {
    "content": "Hello from ada.",
    "reason": "stop",
    "usage": True,
    "tools": {
        "reason": "tool_calls",
        "calls": 2,
        "answer": "The command printed: rain in Oslo; rain in Rome",
    },
    "schema": '{"city":"text"}',
    "refusal": "No.",
    "stop": "Hello from",
    "tokens": 3,
}


@pytest.fixture(scope="module")
def gateway(new_installation: Callable[[], Installation]) -> Iterator[GatewayProcess]:
    for process in new_installation().serve():
        process.wait_ready()
        yield process


def run(program: list[str], cwd: Path, stdin: str = "", **environment: str) -> str:
    """The output of a program that must succeed."""
    done = subprocess.run(
        program,
        cwd=cwd,
        input=stdin,
        # Some programs believe PWD before they ask where they are.
        env={**os.environ, "PWD": str(cwd), **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.timeout(180)
def test_the_node_sdk_finds_every_feature(gateway: GatewayProcess, upstream: SimulatorProcess, tmp_path: Path):
    modules = require_node_package("openai")
    (tmp_path / "node_modules").symlink_to(modules)
    (tmp_path / "chat.mjs").write_text((HERE / "node" / "chat.mjs").read_text())
    told = json.loads(
        run(["node", "chat.mjs"], tmp_path, BASE_URL=f"{gateway.url}/v1", API_KEY=gateway.key, NO_PROXY="127.0.0.1")
    )
    assert told == {
        "whole": EVERYTHING,
        "streamed": EVERYTHING,
        "chunks": [None, "Hello", " from", " ada.", None],
        "refused": {"status": 400, "code": "unsupported_parameter", "param": "n"},
        "limited": "length",
        "responses": {"text": "Hello from ada.", "items": 1, "gone": 404},
    }


ANSWERED = {
    "text": "Hello from ada.",
    "status": "completed",
    "usage": True,
    "tools": {"calls": 2, "answer": "The command printed: rain in Oslo; rain in Rome"},
    "schema": '{"city":"text"}',
    "cut": ["incomplete", "max_output_tokens"],
}


@pytest.mark.timeout(180)
def test_the_node_sdk_finds_every_feature_of_responses(
    gateway: GatewayProcess, upstream: SimulatorProcess, tmp_path: Path
):
    (tmp_path / "node_modules").symlink_to(require_node_package("openai"))
    (tmp_path / "responses.mjs").write_text((HERE / "node" / "responses.mjs").read_text())
    variables = {"BASE_URL": f"{gateway.url}/v1", "API_KEY": gateway.key, "NO_PROXY": "127.0.0.1"}
    assert json.loads(run(["node", "responses.mjs"], tmp_path, **variables)) == {
        "whole": ANSWERED,
        "streamed": ANSWERED,
        "stored": {
            "text": "Hello from ada.",
            "first": "response.created",
            "last": "response.completed",
            "items": 1,
            "gone": 404,
        },
        "background": {"whole": True, "last": "response.completed", "began": "queued", "cancelled": "cancelled"},
        "models": True,
        "refused": {"status": 400, "code": "unknown_parameter"},
        "stranger": {"status": 401, "code": "invalid_api_key"},
    }


@pytest.fixture
def model(gateway: GatewayProcess, upstream: SimulatorProcess) -> Iterator[Any]:
    langchain = require_module("langchain_openai")
    with httpx.Client(trust_env=False) as http:
        yield langchain.ChatOpenAI(
            model="gpt-5.5",
            base_url=f"{gateway.url}/v1",
            api_key=gateway.key,
            max_retries=0,
            stream_usage=True,
            http_client=http,
        )


CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER = {"type": "function", "function": {"name": "weather", "description": "Tells it.", "parameters": CITY}}


@pytest.mark.timeout(180)
def test_langchain_talks_and_streams(model: Any):
    answer = model.invoke([("system", "Be short."), ("human", "hi")])
    assert answer.content == "Hello from ada."
    assert answer.usage_metadata["total_tokens"] > 0
    chunks = list(model.stream("hi"))
    assert "".join(chunk.content for chunk in chunks) == "Hello from ada."
    assert any(chunk.usage_metadata for chunk in chunks)


@pytest.mark.timeout(180)
def test_langchain_runs_a_loop_with_parallel_tools(model: Any):
    messages = require_module("langchain_core.messages")
    bound = model.bind_tools([WEATHER])
    asked = messages.HumanMessage('call: weather {"city":"Oslo"}\ncall: weather {"city":"Rome"}')
    called = bound.invoke([asked])
    assert [call["args"]["city"] for call in called.tool_calls] == ["Oslo", "Rome"]
    outputs = [
        messages.ToolMessage(f"rain in {call['args']['city']}", tool_call_id=call["id"], name=call["name"])
        for call in called.tool_calls
    ]
    last = bound.invoke([asked, called, *outputs])
    assert last.content == "The command printed: rain in Oslo; rain in Rome"
    streamed = None
    for chunk in bound.stream([asked]):
        streamed = chunk if streamed is None else streamed + chunk
    assert streamed is not None
    assert [call["args"]["city"] for call in streamed.tool_calls] == ["Oslo", "Rome"]


@pytest.mark.timeout(180)
def test_langchain_gets_structured_output(model: Any):
    structured = model.with_structured_output({"title": "place", **CITY}, method="json_schema")
    assert structured.invoke("hi") == {"city": "text"}


@pytest.mark.timeout(240)
@pytest.mark.parametrize("provider", ["@ai-sdk/openai-compatible", "@ai-sdk/openai"])
def test_opencode_answers_and_runs_a_tool(
    gateway: GatewayProcess, upstream: SimulatorProcess, tmp_path: Path, provider: str
):
    """Both of its ways to an API: chat completions with one package, responses with the other."""
    program = require_program("opencode")
    home, work = tmp_path / "home", tmp_path / "work"
    for folder in (home, work):
        folder.mkdir()
    settings = {"baseURL": f"{gateway.url}/v1", "apiKey": gateway.key}
    models = {"gpt-5.5": {"name": "simulated", "tool_call": True}}
    (work / "opencode.json").write_text(
        json.dumps(
            {
                "$schema": "https://opencode.ai/config.json",
                "autoupdate": False,
                "share": "disabled",
                "provider": {
                    "pointsman": {"npm": provider, "name": "Pointsman", "options": settings, "models": models}
                },
                "permission": {"bash": "allow"},
            }
        )
    )
    prompt = 'call: bash {"command":"echo pointsman-$((40+2)) | tee -a ran.txt","description":"count"}'
    since = gateway.ledger.mark()
    output = run(
        [program, "run", "--model", "pointsman/gpt-5.5"],
        work,
        stdin=prompt,
        HOME=str(home),
        XDG_CONFIG_HOME=str(home / "config"),
        XDG_DATA_HOME=str(home / "data"),
        XDG_CACHE_HOME=str(home / "cache"),
        OPENCODE_DISABLE_AUTOUPDATE="1",
        OPENCODE_DISABLE_MODELS_FETCH="1",
        NO_PROXY="127.0.0.1",
    )
    assert "pointsman-42" in output
    assert (work / "ran.txt").read_text() == "pointsman-42\n"
    # What it asked for is over for it with the last event; the ledger is told a moment later.
    rows = gateway.ledger.settled(since, len(gateway.ledger.turns(since)))
    expected = "chat_sse" if provider.endswith("compatible") else "sse"
    assert {row.downstream for row in rows} == {expected}
    assert {row.outcome for row in rows} == {"completed"}

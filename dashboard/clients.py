"""How to point clients at this gateway: blocks to copy, filled in with its address."""

from __future__ import annotations

from typing import NamedTuple

KEY = "POINTSMAN_API_KEY"


class Block(NamedTuple):
    """One client: where the text goes, and the text."""

    client: str
    where: str
    text: str


def blocks(address: str) -> list[Block]:
    """A block for each client that this gateway, at `address` (scheme, host and port), is known to serve."""
    return [
        Block("Codex", "~/.codex/config.toml", CODEX.format(address=address)),
        Block("OpenCode", "opencode.json", OPENCODE.replace("ADDRESS", address)),
        Block("OpenAI SDK, Python", "pip install openai", PYTHON.format(address=address)),
        Block("OpenAI SDK, Node", "npm install openai", NODE.replace("ADDRESS", address)),
        Block("curl", "a terminal", CURL.replace("ADDRESS", address)),
        Block("Your own limits", "a terminal", USAGE.replace("ADDRESS", address)),
    ]


CODEX = """\
model_provider = "pointsman"

[model_providers.pointsman]
name = "Pointsman"
base_url = "{address}/backend-api/codex"
env_key = "POINTSMAN_API_KEY"
wire_api = "responses"
supports_websockets = true
"""

OPENCODE = """\
{
  "$schema": "https://opencode.ai/config.json",
  "provider": {
    "pointsman": {
      "npm": "@ai-sdk/openai-compatible",
      "name": "Pointsman",
      "options": {"baseURL": "ADDRESS/v1", "apiKey": "{env:POINTSMAN_API_KEY}"},
      "models": {"gpt-5.5": {}}
    }
  }
}
"""

PYTHON = """\
import os
from openai import OpenAI

client = OpenAI(base_url="{address}/v1", api_key=os.environ["POINTSMAN_API_KEY"])
print(client.responses.create(model="gpt-5.5", input="Hello").output_text)
"""

NODE = """\
import OpenAI from "openai";

const client = new OpenAI({baseURL: "ADDRESS/v1", apiKey: process.env.POINTSMAN_API_KEY});
const response = await client.responses.create({model: "gpt-5.5", input: "Hello"});
console.log(response.output_text);
"""

CURL = """\
curl -N ADDRESS/v1/responses -H "Authorization: Bearer $POINTSMAN_API_KEY" \\
  -H "Content-Type: application/json" -d '{"model": "gpt-5.5", "input": "Hello", "stream": true}'
"""

USAGE = """\
curl ADDRESS/v1/usage -H "Authorization: Bearer $POINTSMAN_API_KEY"
"""

"""An upstream that behaves like the Codex backend and the OpenAI Responses API, strict and with faults on
request.

It serves demo, tests and benchmark; traffic code never imports it. From a request to its bytes:

    wire → http or websocket → backend (rules → script → plan with faults) → runner → sse or websocket → wire

`rules`, `options`, `reply`, `sample`, `envelope`, `items`, `script`, `faults` and `plan` are pure.
"""

from gateway.simulator.accounts import SimulatedAccount
from gateway.simulator.faults import FaultError
from gateway.simulator.options import Options
from gateway.simulator.plan import Outcome
from gateway.simulator.server import Simulator

__all__ = ["FaultError", "Options", "Outcome", "SimulatedAccount", "Simulator"]

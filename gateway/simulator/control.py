"""The simulator's own paths, for tests and people in other processes.

| request | answer |
|---|---|
| `POST /_simulator/faults` with `{"fault": "…"}` or `{"faults": ["…", …]}` | adds all or none |
| `GET /_simulator/faults` | the active faults, and the known ones with what they do |
| `DELETE /_simulator/faults` | clears them |
| `GET /_simulator/observed` | everything seen, and the sockets and streams that are open now |
| `DELETE /_simulator/observed` | forgets what has ended |

"""

from __future__ import annotations

from gateway.simulator.backend import Backend
from gateway.simulator.faults import FaultError, parse_fault
from gateway.simulator.kinds import KINDS
from gateway.simulator.values import Json, decode_object

CONTROL_PATH = "/_simulator/"


def control(backend: Backend, method: str, path: str, body: bytes) -> tuple[int, Json]:
    """Carry out one control request; returns the status and the JSON object to answer."""
    match method, path.removeprefix(CONTROL_PATH):
        case "POST", "faults":
            return _add_faults(backend, body)
        case "GET", "faults":
            known = {name: kind.summary for name, kind in KINDS.items()}
            return 200, {"faults": list(backend.faults), "known": known}
        case "DELETE", "faults":
            backend.faults.clear()
            return 200, {"faults": []}
        case "GET", "observed":
            return 200, backend.observed.to_json()
        case "DELETE", "observed":
            backend.observed.clear()
            return 200, {}
    return 404, {"error": f"There is no control {method} {path}; the paths are faults and observed."}


def _add_faults(backend: Backend, body: bytes) -> tuple[int, Json]:
    try:
        asked = decode_object(body)
        many = asked.get("faults", [])
        texts = [asked["fault"]] if "fault" in asked else many if isinstance(many, list) else []
        wanted = [text for text in texts if isinstance(text, str)]
        if not wanted or len(wanted) != len(texts):
            raise ValueError('Send {"fault": "name"} or {"faults": ["name", …]}.')
        for text in wanted:
            parse_fault(text)
    except (ValueError, FaultError) as error:
        return 400, {"error": str(error)}
    for text in wanted:
        backend.faults.add(text)
    return 200, {"faults": list(backend.faults)}

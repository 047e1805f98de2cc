"""What the upstream does besides responses: one request, one document."""

from __future__ import annotations

from dataclasses import dataclass, field

from gateway.simulator.refusal import Refusal, Refused, invalid
from gateway.simulator.seal import seal
from gateway.simulator.values import Json, decode_object, text

_USAGE: Json = {
    "input_tokens": 100,
    "input_tokens_details": {"cached_tokens": 0},
    "output_tokens": 20,
    "total_tokens": 120,
}


@dataclass(slots=True)
class Files:
    """Uploaded files, by the account that has each."""

    owners: dict[str, str] = field(default_factory=dict)

    def add(self, account: str) -> str:
        """Keep a file of `account`; its id."""
        name = f"file_{account}_{len(self.owners) + 1}"
        self.owners[name] = account
        return name

    def require(self, name: str, account: str) -> None:
        """Raise `Refused` (404) unless `account` has the file."""
        if self.owners.get(name) != account:
            raise Refused(Refusal(404, f"No such file: {name}.", code="file_not_found"))


def is_operation(method: str, path: str) -> bool:
    """Whether the request is one of these."""
    return _name(path) in _ANSWERS or "/files" in path


def operate(method: str, path: str, body: bytes, account: str, files: Files) -> Json:
    """The document for a request of `account`; raises `Refused`."""
    if "/files" in path:
        return _file(method, path.partition("/files")[2].strip("/"), account, files)
    if path.endswith("/responses/compact"):
        return _compact(body, account)
    return {**_ANSWERS[_name(path)], "served_by": account, "received": len(body)}


def _name(path: str) -> str:
    return "/".join(path.split("/")[-2:])


def _file(method: str, name: str, account: str, files: Files) -> Json:
    if not name:
        made = files.add(account)
        return {"id": made, "file_id": made, "object": "file", "upload_url": "https://uploads.example.org/1"}
    name = name.split("/")[0]
    files.require(name, account)
    if method == "DELETE":
        del files.owners[name]
    return {"id": name, "file_id": name, "object": "file", "status": "success", "deleted": method == "DELETE"}


def _compact(body: bytes, account: str) -> Json:
    try:
        given = decode_object(body)
    except ValueError as error:
        raise Refused(invalid(str(error))) from error
    if not text(given.get("model")):
        raise Refused(invalid("Missing required parameter: 'model'.", param="model"))
    item = {"type": "compaction", "id": "cmp_1", "encrypted_content": seal(account, "compaction")}
    return {"id": "resp_compacted", "object": "response.compaction", "output": [item], "usage": _USAGE}


_ANSWERS: dict[str, Json] = {
    "responses/compact": {},
    "alpha/search": {"output": "Found nothing, as nothing was searched.", "results": []},
    "images/generations": {"created": 1_790_000_000, "data": [{"b64_json": "aW1hZ2U="}], "usage": _USAGE},
    "images/edits": {"created": 1_790_000_000, "data": [{"b64_json": "aW1hZ2U="}], "usage": _USAGE},
    "memories/trace_summarize": {"output": []},
    "goal/get": {"goal": None},
    "goal/set": {"goal": {"objective": "none"}},
    "goal/clear": {"goal": None},
    "backend-api/transcribe": {"text": "Nothing was said."},
    "audio/transcriptions": {"text": "Nothing was said."},
}

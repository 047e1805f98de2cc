"""What besides responses is passed through to an account: a list of what is allowed, and nothing else is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from accounts.states import Kind

MOUNTS = {"codex": "/backend-api/codex", "chatgpt": "/backend-api", "v1": "/v1"}


@dataclass(frozen=True, slots=True)
class Operation:
    """One thing that can be asked for, answered by one document.

    `mount` says under which root clients ask for `path`, and under which of an account's it is asked upstream. `kind`
    is the only kind of account that knows it, None for any. With `names_model` the key must be open for the model in
    it. `resource` is the id in the path: whoever made it gets the request.
    """

    name: str
    method: str
    mount: str
    path: str
    kind: Kind | None
    names_model: bool = False
    resource: str = ""

    @property
    def route(self) -> str:
        """The path of clients; `{id}` stands for one segment."""
        return MOUNTS[self.mount] + self.path

    def url(self, base_url: str) -> str:
        """Where an account with this base URL is asked."""
        root = base_url.removesuffix("/codex") if self.mount == "chatgpt" else base_url
        return root + self.path.replace("{id}", self.resource)


def _codex(name: str, path: str, *, names_model: bool = False, mount: str = "codex") -> Operation:
    return Operation(name, "POST", mount, path, Kind.CODEX, names_model)


def _v1(name: str, path: str, method: str = "POST", *, names_model: bool = False) -> Operation:
    return Operation(name, method, "v1", path, Kind.OPENAI, names_model)


OPERATIONS = (
    Operation("compact", "POST", "codex", "/responses/compact", None, names_model=True),
    Operation("compact", "POST", "v1", "/responses/compact", None, names_model=True),
    _codex("search", "/alpha/search", names_model=True),
    _codex("image", "/images/generations", names_model=True),
    _codex("image", "/images/edits", names_model=True),
    _codex("memories", "/memories/trace_summarize", names_model=True),
    _codex("goal", "/thread/goal/get"),
    _codex("goal", "/thread/goal/set"),
    _codex("goal", "/thread/goal/clear"),
    _codex("file", "/files", mount="chatgpt"),
    _codex("file", "/files/{id}/uploaded", mount="chatgpt"),
    _codex("transcription", "/transcribe", mount="chatgpt"),
    _v1("image", "/images/generations", names_model=True),
    _v1("image", "/images/edits", names_model=True),
    _v1("transcription", "/audio/transcriptions", names_model=True),
    _v1("file", "/files"),
    _v1("file", "/files/{id}", "GET"),
    _v1("file", "/files/{id}", "DELETE"),
    _v1("file", "/files/{id}/content", "GET"),
)

_BY_ROUTE: Mapping[tuple[str, str], Operation] = {(each.method, each.route): each for each in OPERATIONS}
_WITH_ID = [each for each in OPERATIONS if "{id}" in each.path]


def find_operation(method: str, path: str) -> Operation | None:
    """The operation that is asked for by `method` and `path`, with the id in the path as its `resource`."""
    found = _BY_ROUTE.get((method, path))
    if found is not None and "{id}" not in found.path:
        return found
    for each in _WITH_ID:
        before, _, after = each.route.partition("{id}")
        if each.method == method and path.startswith(before) and path.endswith(after):
            resource = path[len(before) : len(path) - len(after)]
            if resource and resource.replace("-", "").replace("_", "").isalnum() and resource.isascii():
                return Operation(each.name, each.method, each.mount, each.path, each.kind, resource=resource)
    return None


def is_known_path(path: str) -> bool:
    """Whether any method is allowed on `path`."""
    return any(find_operation(method, path) is not None for method in ("GET", "POST", "DELETE"))

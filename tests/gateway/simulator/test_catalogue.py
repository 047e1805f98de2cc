import json

from gateway.simulator.catalogue import MODELS, catalogue, openai_list, wants_catalogue

REQUIRED = {
    "slug", "display_name", "supported_reasoning_levels", "shell_type", "visibility", "supported_in_api", "priority",
    "support_verbosity", "truncation_policy", "experimental_supported_tools", "base_instructions",
}  # fmt: skip


def test_codex_is_known_by_its_path_or_its_version() -> None:
    assert wants_catalogue("/backend-api/codex/models", "")
    assert wants_catalogue("/v1/models", "client_version=0.171.0")
    assert not wants_catalogue("/v1/models", "limit=5")


def test_every_entry_of_the_catalogue_has_what_codex_requires() -> None:
    body, etag = catalogue()

    models = json.loads(body)["models"]

    assert [model["slug"] for model in models] == list(MODELS)
    assert all(model.keys() >= REQUIRED for model in models)
    assert etag == catalogue()[1]
    assert etag.startswith('"')


def test_the_openai_list_has_the_same_models() -> None:
    listed = json.loads(openai_list())

    assert listed["object"] == "list"
    assert [model["id"] for model in listed["data"]] == list(MODELS)

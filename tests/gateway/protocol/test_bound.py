import pytest

from gateway.protocol.bound import (
    Bound,
    Reference,
    fingerprint,
    is_bound_item,
    reasons_in_input,
    reasons_in_tools,
    reasons_in_value,
    references_in,
)

CALL = {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "f", "arguments": "{}"}
OUTPUT = {"type": "function_call_output", "id": "fco_1", "call_id": "c1", "output": "done"}
CUSTOM_CALL = {"type": "custom_tool_call", "call_id": "c1", "name": "exec", "input": "file_id"}
CUSTOM_OUTPUT = {"type": "custom_tool_call_output", "call_id": "c1", "output": "done"}
PLAIN_PARTS = [{"type": "input_text", "text": "hi"}]
PLAIN = {"type": "message", "role": "user", "content": PLAIN_PARTS}
SCHEMA = {"type": "object", "properties": {"file_id": {"type": "string"}, "container_id": {"type": "string"}}}
FUNCTION = {"type": "function", "name": "f", "parameters": SCHEMA}


def message(*parts: object) -> dict[str, object]:
    return {"type": "message", "id": "msg_1", "role": "user", "content": list(parts)}


def image(**members: object) -> dict[str, object]:
    return message({"type": "input_image", **members})


def file(**members: object) -> dict[str, object]:
    return message({"type": "input_file", **members})


@pytest.mark.parametrize(
    "items",
    [
        [],
        [message({"type": "input_text", "text": "hi"})],
        [message({"type": "output_text", "text": "hi", "annotations": []}, {"type": "refusal", "refusal": "no"})],
        [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]}],
        [{"type": "message", "role": "user", "content": "text"}, {"type": "message", "role": "user", "content": []}],
        [{"role": "developer", "content": "text"}],
        [{"type": None, "role": "assistant", "content": "text"}],
        [{"type": "message", "role": "assistant", "phase": "final", "status": "completed", "content": None}],
        [image(image_url="data:image/png;base64,AAAA", detail="high")],
        [image(image_url="HTTPS://example.org/a.png", file_id=None)],
        [image(image_url="http://example.org/a.png")],
        [file(file_data="AAAA", filename="a.pdf")],
        [file(file_data="data:application/pdf;base64,AAAA", file_url=None)],
        [file(file_url="https://example.org/a.pdf")],
        [CALL, OUTPUT],
        [CALL, message(), OUTPUT],
        [CALL, CUSTOM_CALL, OUTPUT, CUSTOM_OUTPUT],
        [CALL, {**OUTPUT, "output": [{"type": "input_text", "text": "done"}]}],
        [{"type": "additional_tools", "id": "at_1", "role": "developer", "tools": [FUNCTION]}],
        [{"type": "additional_tools"}],
        [{"type": "agent_message", "content": [{"type": "input_text", "text": "mail"}]}],
        [{"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "thought"}]}],
        [{"type": "reasoning", "encrypted_content": None, "content": [{"type": "reasoning_text", "text": "t"}]}],
        [{"type": "configuration_update", "model": "gpt-5.5"}],
        [{"type": "compaction_trigger"}],
    ],
)
def test_input_that_carries_all_it_needs_is_free(items):
    assert reasons_in_input(items, is_delta=False) == set()


@pytest.mark.parametrize(
    ("items", "reason"),
    [
        ([{"type": "item_reference", "id": "msg_1"}], Bound.ITEM_REFERENCE),
        ([{"id": "msg_1"}], Bound.ITEM_REFERENCE),
        ([{"type": "reasoning", "summary": [], "encrypted_content": "gAAA"}], Bound.ENCRYPTED_CONTENT),
        ([{"type": "compaction", "encrypted_content": "gAAA"}], Bound.ENCRYPTED_CONTENT),
        ([{"type": "compaction"}], Bound.ENCRYPTED_CONTENT),
        ([image(image_url="https://example.org/a.png", file_id="file-1")], Bound.FILE),
        ([file(file_data="AAAA", file_ids=["file-1"])], Bound.FILE),
        ([{"type": "web_search_call", "id": "ws_1", "status": "completed"}], Bound.HOSTED_TOOL),
        ([{"type": "file_search_call"}], Bound.HOSTED_TOOL),
        ([{"type": "code_interpreter_call"}], Bound.HOSTED_TOOL),
        ([{"type": "computer_call"}], Bound.HOSTED_TOOL),
        ([{"type": "computer_call_output"}], Bound.HOSTED_TOOL),
        ([{"type": "image_generation_call"}], Bound.HOSTED_TOOL),
        ([{"type": "mcp_call"}], Bound.HOSTED_TOOL),
        ([{"type": "mcp_list_tools"}], Bound.HOSTED_TOOL),
        ([{"type": "mcp_approval_request"}], Bound.HOSTED_TOOL),
        ([{"type": "mcp_approval_response"}], Bound.HOSTED_TOOL),
        ([{"type": "local_shell_call"}], Bound.HOSTED_TOOL),
        ([{"type": "shell_call"}], Bound.HOSTED_TOOL),
        ([{"type": "apply_patch_call"}], Bound.HOSTED_TOOL),
        ([{"type": "tool_search_call"}], Bound.HOSTED_TOOL),
        ([{"type": "something_new"}], Bound.UNKNOWN_ITEM),
        ([{"type": 7, "call_id": "c"}], Bound.UNKNOWN_ITEM),
        (["text"], Bound.UNKNOWN_ITEM),
        ([None], Bound.UNKNOWN_ITEM),
        ([message({"type": "something_new"})], Bound.UNKNOWN_PART),
        ([message({"type": None})], Bound.UNKNOWN_PART),
        ([message("text")], Bound.UNKNOWN_PART),
        ([PLAIN, {**PLAIN, "content": [*PLAIN_PARTS, {"type": "something_new", "text": "hi"}]}], Bound.UNKNOWN_PART),
        ([{**PLAIN, "content": [*PLAIN_PARTS, {"type": ["input_text"], "text": "hi"}]}], Bound.UNKNOWN_PART),
        ([{**PLAIN, "content": [{**PLAIN_PARTS[0], "file_id": "file-1"}]}], Bound.FILE),
        ([{**PLAIN, "content": [{"type": "input_text", "text": {"file_id": "file-1"}}]}], Bound.FILE),
        ([{**PLAIN, "role": {"file_id": "file-1"}}], Bound.FILE),
        ([{**PLAIN, "encrypted_content": "gAAA"}], Bound.ENCRYPTED_CONTENT),
        ([{"role": "user", "content": {"type": "input_text"}}], Bound.UNKNOWN_PART),
        ([image()], Bound.UNKNOWN_PART),
        ([image(image_url={"url": "https://example.org"})], Bound.UNKNOWN_PART),
        ([image(image_url="sediment://file_1")], Bound.UNKNOWN_PART),
        ([image(image_url="")], Bound.UNKNOWN_PART),
        ([file(file_url="data:,x")], Bound.UNKNOWN_PART),
        ([file(file_url="ftp://example.org/a")], Bound.UNKNOWN_PART),
        ([file(file_data="AAAA", file_url="file:///a")], Bound.UNKNOWN_PART),
        ([file(file_data=7)], Bound.UNKNOWN_PART),
        ([file(filename="a.pdf")], Bound.UNKNOWN_PART),
        ([CALL, {**OUTPUT, "output": [{"type": "something_new"}]}], Bound.UNKNOWN_PART),
        ([CALL, {**OUTPUT, "output": {"a": 1}}], Bound.UNKNOWN_PART),
        ([{"type": "additional_tools", "tools": [{"type": "something_new"}]}], Bound.UNKNOWN_TOOL),
        ([{"type": "additional_tools", "tools": [FUNCTION], "file_id": "file-1"}], Bound.FILE),
    ],
)
def test_input_that_relies_on_one_account_is_bound(items, reason):
    assert reasons_in_input(items, is_delta=False) == {reason}


@pytest.mark.parametrize(
    "items",
    [
        [CALL],
        [OUTPUT],
        [OUTPUT, CALL],
        [CALL, CUSTOM_OUTPUT],
        [CALL, {**OUTPUT, "call_id": "c2"}],
        [CALL, OUTPUT, OUTPUT],
        [CALL, CALL, OUTPUT],
        [CALL, OUTPUT, CALL, OUTPUT],
        [{**CALL, "call_id": None}, {**OUTPUT, "call_id": None}],
        [CUSTOM_CALL],
        [CUSTOM_OUTPUT],
    ],
)
def test_a_call_without_its_one_output_is_bound_unless_it_continues_a_response(items):
    assert reasons_in_input(items, is_delta=False) == {Bound.UNPAIRED_CALL}
    assert reasons_in_input(items, is_delta=True) == set()


def test_every_reason_is_told():
    items = [
        {"type": "file_search_call", "results": [{"file_id": "file-1", "vector_store_id": "vs_1"}]},
        {"type": "agent_message", "content": [{"type": "encrypted_content", "encrypted_content": "gAAA"}]},
        CALL,
    ]
    assert reasons_in_input(items, is_delta=False) == {
        Bound.HOSTED_TOOL,
        Bound.FILE,
        Bound.VECTOR_STORE,
        Bound.UNKNOWN_PART,
        Bound.ENCRYPTED_CONTENT,
        Bound.UNPAIRED_CALL,
    }


def test_a_citation_of_a_stored_file_is_bound():
    citation = {"type": "container_file_citation", "container_id": "cntr_1", "file_id": "cfile_1"}
    text = {"type": "output_text", "text": "see", "annotations": [citation]}
    assert reasons_in_input([message(text)], is_delta=False) == {Bound.FILE, Bound.CONTAINER}


@pytest.mark.parametrize(
    "tools",
    [
        None,
        [],
        [FUNCTION],
        [{"type": "custom", "name": "exec", "format": {"type": "grammar"}}],
        [{"type": "namespace", "name": "functions", "tools": [FUNCTION]}],
        [{"type": "namespace", "name": "functions"}],
        [{"type": "web_search", "external_web_access": True}],
        [{"type": "web_search_preview"}, {"type": "local_shell"}, {"type": "image_generation"}],
        [{"type": "code_interpreter", "container": {"type": "auto", "file_ids": []}}],
        [{"type": "mcp", "server_label": "a", "server_url": "https://example.org"}],
    ],
)
def test_tools_that_hold_no_state_are_free_whatever_their_schemas_are_called(tools):
    assert reasons_in_tools(tools) == set()


@pytest.mark.parametrize(
    ("tools", "reason"),
    [
        ([{"type": "file_search", "vector_store_ids": ["vs_1"]}], Bound.VECTOR_STORE),
        ([{"type": "code_interpreter", "container": "cntr_1"}], Bound.CONTAINER),
        ([{"type": "code_interpreter", "container": {"type": "auto", "file_ids": ["file-1"]}}], Bound.FILE),
        ([{"type": "image_generation", "input_image_mask": {"file_id": "file-1"}}], Bound.FILE),
        ([{"type": "mcp", "server_label": "a", "connector_id": "connector_dropbox"}], Bound.CONNECTOR),
        ([{"type": "something_new"}], Bound.UNKNOWN_TOOL),
        ([{"type": ["function"]}], Bound.UNKNOWN_TOOL),
        ([{}], Bound.UNKNOWN_TOOL),
        (["function"], Bound.UNKNOWN_TOOL),
        ([{"type": "namespace", "tools": [{"type": "file_search", "vector_store_ids": ["v"]}]}], Bound.VECTOR_STORE),
    ],
)
def test_tools_that_rely_on_one_account_are_bound(tools, reason):
    assert reasons_in_tools(tools) == {reason}


def test_references_are_found_at_any_depth_and_empty_ones_bind_nothing():
    value: object = {"file_id": "file-1"}
    for _ in range(5_000):
        value = [{"x": value}]
    assert reasons_in_value(value) == {Bound.FILE}
    assert reasons_in_value({"file_id": None, "file_ids": [], "encrypted_content": ""}) == set()
    assert reasons_in_value("file_id") == set()


def test_things_that_one_account_keeps_are_told_apart_by_their_names():
    items = [
        file(file_id="file_1"),
        {"type": "reasoning", "encrypted_content": "sealed"},
        {"type": "code_interpreter_call", "container_id": "cntr_1"},
        [{"deep": {"vector_store_ids": ["vs_1", "vs_2", "", None]}}],
        {"connector_id": "connector_gmail", "file_id": None, "encrypted_content": ""},
    ]
    assert references_in(items) == {
        Reference(Bound.FILE, "file_1"),
        Reference(Bound.ENCRYPTED_CONTENT, fingerprint("sealed")),
        Reference(Bound.CONTAINER, "cntr_1"),
        Reference(Bound.VECTOR_STORE, "vs_1"),
        Reference(Bound.VECTOR_STORE, "vs_2"),
    }


def test_an_item_is_bound_by_its_type_alone() -> None:
    assert [is_bound_item(name) for name in ("item_reference", "message")] == [True, False]


def test_what_is_neither_object_nor_list_names_nothing() -> None:
    assert references_in("file_id") == set()


def test_a_fingerprint_tells_sealed_content_by_its_length_its_beginning_and_its_end():
    long = "a" * 1000
    others = [f"b{long[1:]}", f"{long[1:]}b", long[1:], "\ud800" + long]
    assert len({fingerprint(each) for each in [long, *others]}) == 5
    assert len(fingerprint(long)) == 24

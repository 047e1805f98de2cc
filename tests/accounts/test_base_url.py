import pytest

from accounts.base_url import DEFAULT_BASE_URLS, InvalidBaseURL, clean_base_url, usage_url
from accounts.states import Kind


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("https://api.openai.com/v1", "https://api.openai.com/v1"),
        ("https://api.openai.com/v1//", "https://api.openai.com/v1"),
        ("HTTPS://API.OpenAI.com:8443/V1", "https://api.openai.com:8443/V1"),
        ("https://example.com/", "https://example.com"),
    ],
)
def test_scheme_and_host_become_lower_case_and_trailing_slashes_go(text, clean):
    assert clean_base_url(text) == clean


@pytest.mark.parametrize(
    "text", ["http://localhost:9000/v1", "http://127.0.0.1/v1", "http://127.9.8.7:80", "http://[::1]:9000/v1"]
)
def test_plain_http_is_accepted_for_this_machine(text):
    assert clean_base_url(text) == text


@pytest.mark.parametrize(
    "text",
    [
        "http://api.openai.com/v1",
        "http://10.0.0.1/v1",
        "http://localhost.example.com",
        "http://[::2]",
        "http://0.0.0.0",
    ],
)
def test_plain_http_is_refused_for_any_other_host(text):
    with pytest.raises(InvalidBaseURL, match="plain http"):
        clean_base_url(text)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("https://ada:secret@example.com/v1", "user info"),
        ("https://@example.com/v1", "user info"),
        ("https://:secret@example.com/v1", "user info"),
        ("https://example.com/v1?key=1", "query"),
        ("https://example.com/v1?", "query"),
        ("https://example.com/v1#top", "fragment"),
        ("https://", "no host"),
        ("example.com/v1", "no host"),
        ("", "no host"),
        ("ws://localhost/v1", "begin with https"),
        ("ftp://example.com", "begin with https"),
        ("https://example.com:port", "broken host or port"),
        ("https://example.com:70000", "broken host or port"),
        ("https://[::1", "broken host or port"),
        ("https://example.com/a b", "spaces"),
        ("https://exam\nple.com", "spaces"),
        ("https://example.com\\@evil.example", "backslashes"),
        ("https://exämple.com", "outside ASCII"),
        ("https://example.com/v1/responses", "/responses"),
    ],
)
def test_what_cannot_be_a_base_url_is_refused_with_the_remedy(text, sentence):
    with pytest.raises(InvalidBaseURL, match=sentence) as caught:
        clean_base_url(text)
    assert str(caught.value).endswith(".")
    assert "secret" not in str(caught.value)


def test_each_kind_has_a_default_that_is_clean():
    for kind in Kind:
        assert clean_base_url(DEFAULT_BASE_URLS[kind]) == DEFAULT_BASE_URLS[kind]


@pytest.mark.parametrize(
    ("base_url", "url"),
    [
        ("https://chatgpt.com/backend-api/codex", "https://chatgpt.com/backend-api/wham/usage"),
        ("http://localhost:9000/backend-api/codex", "http://localhost:9000/backend-api/wham/usage"),
        ("https://codex.example.com/codex", "https://codex.example.com/api/codex/usage"),
        ("https://codex.example.com", "https://codex.example.com/api/codex/usage"),
    ],
)
def test_usage_is_told_beside_the_base_url_in_the_backend_s_own_way(base_url, url):
    assert usage_url(base_url) == url

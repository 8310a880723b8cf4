"""Errors have OpenAI's format, the right status, and no internal details."""

import asyncio
import gzip
import json
import logging
import os
from dataclasses import replace

import pytest
from scripted_triton import FACTS, FOREVER, HELLO, MODELS, statistics

from tandem.gateway.errors import ApiError
from tandem.gateway.models import TargetCapabilities
from tandem.gateway.triton.backend import ResponseChunk

from .conftest import COMPLETIONS, error_of, events

pytestmark = pytest.mark.anyio
PROMPT = {"prompt": "hi"}
KEY = "s3cret"
NAMES = ("cache_salt", "lookup_pool")
TOOL = {"type": "function", "function": {"name": "add"}}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "invalid_request_error"),
        (404, "not_found_error"),
        (429, "rate_limit_error"),
        (503, "server_error"),
        (504, "server_error"),
    ],
)
async def test_an_error_before_the_first_chunk_sets_the_status(post, triton, status, kind, stream):
    triton.script = lambda _: [ApiError(status, "why", code="some_code")]
    response = await post("/v1/completions", {**PROMPT, "stream": stream})
    assert response.status_code == status
    assert response.json() == {
        "error": {"message": "why", "type": kind, "param": None, "code": "some_code"}
    }
    assert ("retry-after" in response.headers) == (status == 429)


async def test_an_error_after_the_first_chunk_is_sent_as_an_event(post, triton):
    triton.script = lambda _: [HELLO[0], ApiError(500, "why")]
    response = await post("/v1/completions", {**PROMPT, "stream": True})
    assert response.status_code == 200
    chunk, error = events(response)
    assert chunk["choices"][0]["text"] == "Hel"
    assert error["error"]["message"] == "why"


async def test_one_failed_choice_ends_the_request(post, triton):
    triton.script = lambda inputs: [ApiError(500, "why")] if inputs["seed"] == 1 else [FOREVER]
    response = await post("/v1/completions", {**PROMPT, "n": 4, "seed": 1})
    assert response.status_code == 500
    assert triton.running == 0


@pytest.mark.parametrize("error", [RuntimeError, asyncio.CancelledError])
@pytest.mark.parametrize("stream", [False, True])
async def test_an_unexpected_error_is_an_internal_error(post, triton, caplog, stream, error):
    def broken(_):
        raise error("a secret of the inside")

    triton.script = broken
    with caplog.at_level(logging.ERROR, "gateway"):
        response = await post("/v1/completions", {**PROMPT, "stream": stream})
    assert response.status_code == 500
    assert response.json()["error"]["message"] == "internal error; see the gateway's log"
    assert response.headers["x-request-id"]
    assert "a secret of the inside" in caplog.text


@pytest.mark.parametrize(
    "path", ["/v1/responses/resp_1", "/v1/embeddings", "/v1/completions/", "/v2/health/ready"]
)
async def test_unknown_endpoints_are_not_found(post, path):
    response = await post(path, {})
    assert response.status_code == 404
    assert response.json()["error"]["message"].startswith(f"POST {path}: ")
    assert response.json()["error"]["code"] == "not_found"


async def test_a_wrong_http_method_is_not_allowed(client):
    async with client() as opened:
        response = await opened.get("/v1/completions")
    assert response.status_code == 405
    assert response.headers["allow"] == "POST"
    assert response.json()["error"]["code"] == "method_not_allowed"
    assert response.json()["error"]["message"].startswith("GET /v1/completions: ")


@pytest.mark.parametrize("path", ["/", "/health", "/health/ready", "/ping", "/v1/models"])
async def test_head_requests_return_the_headers_of_get_requests(client, path):
    async with client() as opened:
        got, asked = await opened.get(path), await opened.head(path)
    assert asked.status_code == 200
    assert asked.headers["content-length"] == got.headers["content-length"]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": "x"}),
        ("/tokenize", {"prompt": "x"}),
        ("/tokenize", {"messages": [{"role": "user", "content": "x"}]}),
        ("/detokenize", {"tokens": [5]}),
    ],
)
async def test_an_unknown_model_is_not_found(post, path, body):
    assert (await post(path, {**body, "model": "bls"})).status_code == 200
    response = await post(path, {**body, "model": "gpt-4"})
    assert response.status_code == 404
    assert response.json()["error"]["code"] == "model_not_found"
    assert "bls_stream, bls, ensemble" in response.json()["error"]["message"]


@pytest.mark.parametrize("more", [{}, {"tools": [TOOL]}])
async def test_a_chat_without_a_template_is_rejected(post, tmp_path, tokenizer_folder, more):
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_text((tokenizer_folder / name).read_text())
    chat = {"messages": [{"role": "user", "content": "hi"}], **more}
    response = await post("/v1/chat/completions", chat, tokenizer=tmp_path)
    assert "has no chat template; use /v1/completions" in error_of(response)["message"]


async def test_a_tokenizer_that_does_not_match_the_model_is_reported(post, triton):
    from dataclasses import replace

    served = triton.models_served
    target = replace(served.loop.target, vocab_size=100)
    triton.models_served = replace(served, loop=replace(served.loop, target=target))
    response = await post("/v1/completions", PROMPT)
    assert response.status_code == 503
    assert "the gateway's tokenizer has 3072 tokens, but the model has 100" in response.text
    assert response.json()["error"]["code"] == "not_configured"


async def test_a_body_without_a_json_content_type_is_rejected(client):
    """Browsers let pages from other origins send text/plain without permission (CORS)."""
    headers = {"content-type": "text/plain"}
    async with client() as opened:
        response = await opened.post("/v1/completions", content=b'{"prompt": "x"}', headers=headers)
    assert response.status_code == 400


async def test_a_compressed_body_is_rejected(client):
    headers = {"content-type": "application/json", "content-encoding": "gzip"}
    body = gzip.compress(json.dumps(PROMPT).encode())
    async with client() as opened:
        response = await opened.post("/v1/completions", content=body, headers=headers)
        plain = await opened.post(
            "/v1/completions", json=PROMPT, headers={"content-encoding": "identity"}
        )
    assert plain.status_code == 200
    assert response.status_code == 415
    assert "content-encoding gzip isn't supported" in response.json()["error"]["message"]


async def chunked():
    for _ in range(10):
        yield b" " * 1000


@pytest.mark.parametrize("body", [b" " * 10_000, chunked()], ids=["with length", "without length"])
async def test_a_large_body_is_rejected(client, body):
    headers = {"content-type": "application/json"}
    async with client(max_body_bytes=5000) as opened:
        response = await opened.post("/v1/completions", content=body, headers=headers)
    assert response.status_code == 413
    assert response.json()["error"]["code"] == "body_too_large"


@pytest.mark.parametrize(
    "sent", [None, KEY, f"Bearer {KEY}x", "Bearer ", "Basic s3cret", "Bearer \u00e9"]
)
@pytest.mark.parametrize("path", ["/v1/completions", "/tokenize"])
async def test_requests_without_the_key_are_rejected(post, sent, path):
    headers = {} if sent is None else {"authorization": sent.encode()}
    response = await post(path, PROMPT, headers, api_keys=(KEY,))
    assert response.status_code == 401
    assert response.json()["error"]["code"] == "invalid_api_key"


@pytest.mark.parametrize("key", [KEY, "clé", "cl\udce9"])
async def test_requests_with_the_key_are_accepted(client, key):
    async with client(api_keys=("other", key)) as opened:
        headers = {"authorization": os.fsencode(f"Bearer {key}")}
        response = await opened.post("/v1/completions", json=PROMPT, headers=headers)
        assert response.status_code == 200
        for path in ("/health", "/metrics", "/"):
            assert (await opened.get(path)).status_code == 200


@pytest.mark.parametrize(
    ("sent", "taken"), [("abc-1", True), ("", False), ("a" * 129, False), ("a b", False)]
)
async def test_the_response_contains_the_request_id_if_it_is_valid(post, sent, taken):
    response = await post("/v1/completions", PROMPT, {"x-request-id": sent})
    assert (response.headers["x-request-id"] == sent) == taken
    rejected = await post("/v1/completions", {}, {"x-request-id": sent})
    assert (rejected.headers["x-request-id"] == sent) == taken


async def test_only_listed_origins_are_allowed(client):
    asked = {"origin": "http://elsewhere", "access-control-request-method": "POST"}
    for origins, allowed in (((), False), (("http://elsewhere",), True)):
        async with client(allowed_origins=origins) as opened:
            response = await opened.options("/v1/completions", headers=asked)
            assert ("access-control-allow-origin" in response.headers) == allowed


POOLS = "/lookup_pools"


async def test_only_an_operators_key_lists_and_empties_lookup_pools(client, triton):
    triton.pools = [{"id": "a", "outputs": 1, "tokens": 9}]
    async with client(api_keys=("client",), operator_keys=("operator",)) as opened:
        for method, path in (("GET", POOLS), ("DELETE", POOLS), ("DELETE", f"{POOLS}/a")):
            for key, status in ((None, 401), ("client", 401), ("operator", 200)):
                headers = {"authorization": f"Bearer {key}"} if key else {}
                response = await opened.request(method, path, headers=headers)
                assert response.status_code == status
            assert response.json() == {"object": "list", "data": triton.pools}
        assert triton.commands == ["list", "clear", "clear a"]
        headers = {"authorization": "Bearer operator"}
        assert (await opened.get("/v1/models", headers=headers)).status_code == 401
        triton.pools = []
        assert (await opened.delete(f"{POOLS}/b", headers=headers)).status_code == 404


async def test_lookup_pools_are_closed_without_an_operators_key(client, triton):
    async with client() as opened:
        response = await opened.delete(POOLS)
    assert response.status_code == 403
    assert response.json()["error"]["code"] == "no_operator_key"
    assert triton.commands == []


@pytest.fixture
def ask_with_keys(client, triton):
    """A function that sends a request per key, and returns the names it sent, and the usages."""

    async def ask(*, salts, keys, sent, **asked):
        target = replace(FACTS.target, capabilities=TargetCapabilities(cache_salt=salts))
        triton.models_served = replace(MODELS, loop=replace(FACTS, target=target))
        names, usages = [], []

        def script(inputs):
            names.append({inputs[name] for name in NAMES if name in inputs})
            return [ResponseChunk("x", [5], 1, 0, 0, "stop", statistics(0, cached=3))]

        triton.script = script
        async with client(api_keys=keys) as opened:
            for key in sent:
                headers = {"authorization": f"Bearer {key}"}
                response = await opened.post(COMPLETIONS, json=PROMPT | asked, headers=headers)
                usages.append(response.json()["usage"])
        return names, usages

    return ask


@pytest.mark.parametrize("asked", [{}, {"cache_salt": "s"}, {"lookup_pool": "p"}])
async def test_clients_with_different_keys_share_no_kv_cache_and_no_pool(ask_with_keys, asked):
    names, _ = await ask_with_keys(salts=True, keys=("a", "b"), sent="aab", **asked)
    assert names[0] == names[1]
    assert not names[0] & names[2]
    assert not {"s", "p"} & names[0]


async def test_clients_share_a_kv_cache_unless_there_are_several_keys(ask_with_keys):
    for keys in ((), ("a",)):
        assert (await ask_with_keys(salts=True, keys=keys, sent="a"))[0] == [set()]
        names, _ = await ask_with_keys(salts=True, keys=keys, sent="a", cache_salt="s")
        assert names == [{"s"}]


@pytest.mark.parametrize(
    ("salts", "keys", "shown"),
    [
        (True, ("a", "b"), True),
        (False, ("a",), True),
        (False, (), True),
        (False, ("a", "b"), False),
    ],
)
async def test_reuse_is_hidden_if_the_target_cannot_separate_clients(
    ask_with_keys, salts, keys, shown
):
    names, usages = await ask_with_keys(salts=salts, keys=keys, sent="a")
    assert ("prompt_tokens_details" in usages[0]) == shown
    assert salts or names == [set()]


PAGE_OF_ANOTHER_SITE = [
    {"origin": "http://evil.example"},
    {"origin": "http://gateway.evil.example"},
    {"origin": "http://["},
    {"origin": "null"},
    {"origin": "http://evil.example", "sec-fetch-site": "cross-site"},
    {"origin": "http://localhost:3000", "sec-fetch-site": "same-site"},
    {"sec-fetch-site": "cross-site"},
]


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/messages", "/tokenize"])
@pytest.mark.parametrize("headers", PAGE_OF_ANOTHER_SITE)
async def test_a_page_of_another_site_cannot_send_blind_requests(client, path, headers):
    async with client() as opened:  # a page can send a body without a type
        response = await opened.post(path, content=json.dumps(PROMPT), headers=headers)
    assert response.status_code == 403
    assert "--allow-origin" in response.text


@pytest.mark.parametrize(
    "headers",
    [
        {},  # not a browser
        {"origin": "http://gateway"},
        {"origin": "https://gateway"},  # behind a proxy for TLS
        {"origin": "https://chat.example", "sec-fetch-site": "same-origin"},  # the proxy sets Host
        {"sec-fetch-site": "none"},
    ],
)
async def test_the_gateways_own_page_and_other_clients_can_send_requests(post, headers):
    assert (await post("/v1/completions", PROMPT, headers)).status_code == 200


@pytest.mark.parametrize("headers", PAGE_OF_ANOTHER_SITE[:-1])
@pytest.mark.parametrize("every", [False, True])
async def test_pages_of_allowed_origins_can_send_requests(post, headers, every):
    origins = ("*",) if every else (headers["origin"],)
    response = await post("/v1/completions", PROMPT, headers, allowed_origins=origins)
    assert response.status_code == 200


async def test_a_link_from_another_site_opens_the_page(client):
    async with client() as opened:
        response = await opened.get("/", headers={"sec-fetch-site": "cross-site"})
    assert response.status_code == 200


@pytest.mark.parametrize("path", ["/", "/v1/models", "/metrics"])
@pytest.mark.parametrize("host", ["evil.example", "evil.example:8080", "127.0.0.1.evil.example"])
async def test_a_site_cannot_read_responses_through_dns_rebinding(client, path, host):
    async with client(allowed_hosts=()) as opened:
        response = await opened.get(path, headers={"host": host})
    assert response.status_code == 403
    assert "--allow-host" in response.text


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1:8080",
        "[::1]:8080",
        "192.168.1.5",
        "localhost",
        "LOCALHOST.:8080",
        "app.localhost",
        "host.docker.internal:8080",
        "box.local",
        "gateway",
        "",
        "chat.example:443",
    ],
)
async def test_local_and_allowed_hosts_are_served(client, host):
    async with client(allowed_hosts=("chat.example",)) as opened:
        assert (await opened.get("/v1/models", headers={"host": host})).status_code == 200
    async with client(allowed_hosts=("*",)) as opened:
        assert (await opened.get("/v1/models", headers={"host": "any.example"})).status_code == 200

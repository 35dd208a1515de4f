"""Where an endpoint is, how to log in there, and what its errors mean."""

import errno
import json
import os
import socket
import ssl
from typing import Any

import httpx2
import pytest
from openai import APIConnectionError, APIStatusError

from nexus.adapters.llm_endpoint import FormatRefusedError, read_address, read_error, read_error_text
from nexus.core.errors import ConfigError, ModelUnavailableError, PromptTooLongError

REQUEST = httpx2.Request("POST", "http://user:canary@127.0.0.1/v1?key=canary")
# As the servers of those names say it.
TOO_LONG: list[tuple[str, int, Any]] = [
    ("OpenAI", 400, {"message": "This model's", "code": "context_length_exceeded"}),
    ("vLLM", 400, {"message": "This model's maximum context length is 16384 tokens.", "code": 400}),
    ("vLLM of 2024", 400, {"message": "max_tokens must be at least 1, got -186.", "code": 400}),
    ("llama.cpp", 500, {"message": "the request exceeds the available", "type": "exceed_context_size_error"}),
    ("llama.cpp at work", 500, {"message": "Context size has been exceeded.", "type": "server_error"}),
    ("its binding", 400, {"message": "Requested tokens (2285) exceed context window of 2048"}),
    ("LM Studio", 400, "The number of tokens to keep from the initial prompt is greater than the context length"),
    ("Ollama", 400, {"message": "the input length exceeds the context length"}),
    ("TGI", 422, "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4096. Given: 5000"),
    ("Anthropic", 400, {"message": "prompt is too long: 210000 tokens > 200000 maximum"}),
    ("Gemini", 400, [{"error": {"message": "The input token count (1200000) exceeds the maximum number of tokens"}}]),
    ("Groq", 413, {"message": "Request too large for model", "code": "rate_limit_exceeded"}),
    ("a proxy", 413, "<html>"),
]
FORMS: list[tuple[str, int, Any]] = [
    ("DeepSeek", 400, {"message": "This response_format type is unavailable now", "type": "invalid_request_error"}),
    ("DeepSeek of 2025", 422, "Failed to deserialize: response_format.type `json_schema` is unavailable now"),
    ("Groq", 400, {"message": "The model only supports response formats: [json text]."}),
    ("LM Studio", 400, "'response_format.type' must be 'json_schema' or 'text'"),
    ("Qwen", 400, {"message": "'messages' must contain the word 'json' to use 'response_format' of 'json_object'"}),
    ("llama.cpp", 400, {"message": "failed to parse grammar"}),
]


def refused(status: int, error: Any, **fields: str) -> APIStatusError:
    """What the SDK makes of an answer with that status."""
    body = {"error": error}
    response = httpx2.Response(status, headers=fields, content=json.dumps(body), request=REQUEST)
    return APIStatusError("canary", response=response, body=error)


@pytest.mark.parametrize(("status", "error"), [case[1:] for case in TOO_LONG], ids=[case[0] for case in TOO_LONG])
def test_a_prompt_that_does_not_fit(status: int, error: Any) -> None:
    """However an endpoint says so."""
    assert isinstance(read_error(refused(status, error), 1), PromptTooLongError)


@pytest.mark.parametrize(("status", "error"), [case[1:] for case in FORMS], ids=[case[0] for case in FORMS])
def test_a_form_that_is_not_known(status: int, error: Any) -> None:
    """However an endpoint says so."""
    assert isinstance(read_error(refused(status, error), 1), FormatRefusedError)


@pytest.mark.parametrize(
    ("status", "error", "text"),
    [
        (401, {"message": "Incorrect API key: canary", "code": "invalid_api_key"}, "401 invalid_api_key"),
        (401, "canary", "401 Unauthorized"),
        (400, {"message": "canary", "code": "canary"}, "400 Bad Request"),
        (403, None, "403 Forbidden"),
        (404, {"message": "no", "code": "model_not_found"}, "404 model_not_found"),
        (422, {"message": "canary"}, "422 Unprocessable Entity"),
        (408, None, "408 Request Timeout"),
        (409, None, "409 Conflict"),
        (429, {"code": "rate_limit_exceeded"}, "429 rate_limit_exceeded"),
        (429, {"type": "insufficient_quota"}, "429 insufficient_quota"),
        (500, "canary", "500 Internal Server Error"),
        (503, None, "503 Service Unavailable"),
        (501, None, "501 Not Implemented"),
        (599, None, "599"),
        (302, None, "302 Found"),
    ],
)
def test_a_refusal(status: int, error: Any, text: str) -> None:
    """Its status and a well-known code, and nothing that the endpoint said."""
    read = read_error(refused(status, error), 1)
    assert isinstance(read, ModelUnavailableError)
    assert str(read) == text


def test_errors_without_a_status() -> None:
    """A call that took too long, a connection that broke, a certificate, and an answer that is something else."""
    broken, untrusted = APIConnectionError(request=REQUEST), APIConnectionError(request=REQUEST)
    broken.__cause__ = httpx2.ConnectError("canary")
    untrusted.__cause__ = httpx2.ConnectError("[SSL: CERTIFICATE_VERIFY_FAILED] canary")
    errors = (TimeoutError(), broken, APIConnectionError(request=REQUEST), untrusted, ValueError("canary"))
    assert [str(read_error(error, 1.5)) for error in errors] == [
        "no answer within 1.5 s",
        "no connection (ConnectError)",
        "no connection (APIConnectionError)",
        "the certificate of the endpoint is not trusted",
        "the answer is no chat completion",
    ]


@pytest.mark.parametrize(
    ("cause", "reason"),
    [
        (ConnectionRefusedError(errno.ECONNREFUSED, "canary"), os.strerror(errno.ECONNREFUSED)),
        (OSError(errno.EHOSTUNREACH, "canary"), os.strerror(errno.EHOSTUNREACH)),
        (
            ExceptionGroup("canary", [OSError(errno.ENETUNREACH, "canary"), OSError(errno.EACCES, "canary")]),
            os.strerror(errno.ENETUNREACH),
        ),
        (socket.gaierror(socket.EAI_NONAME, "canary"), "the name of the host cannot be resolved"),
        (ssl.SSLError(1, "[SSL: WRONG_VERSION_NUMBER] canary"), "TLS failed"),
        (OSError("canary"), "ConnectError"),
        (OSError(10**6, "canary"), "ConnectError"),
    ],
)
def test_why_there_is_no_connection(cause: Exception, reason: str) -> None:
    """It is what the operating system said of it, without the address that it said it of."""
    broken, within = APIConnectionError(request=REQUEST), OSError("canary")
    broken.__cause__, within.__cause__ = httpx2.ConnectError("canary"), cause
    broken.__cause__.__context__ = within
    assert str(read_error(broken, 1)) == f"no connection ({reason})"


def test_an_error_with_the_status_of_a_success() -> None:
    """A prompt that does not fit, or something else, which is not quoted."""
    assert isinstance(read_error_text("greater than the context length"), PromptTooLongError)
    read = read_error_text("canary")
    assert isinstance(read, ModelUnavailableError)
    assert "canary" not in str(read)


@pytest.mark.parametrize(
    ("base_url", "api_key", "expected"),
    [
        ("http://h:1/v1", "", ("http://h:1/v1", {}, "")),
        ("https://h/v1/", " sk-1\n", ("https://h/v1/", {}, "Bearer sk-1")),
        ("http://u:p%40%3A@h/v1", "", ("http://h/v1", {}, "Basic dTpwQDo=")),
        ("http://u@h/v1", "", ("http://h/v1", {}, "Basic dTo=")),
        ("http://u:p@h/v1", "sk-1", ("http://h/v1", {}, "Bearer sk-1")),
        (
            "https://h/openai?api-version=2026&empty=",
            "",
            ("https://h/openai", {"api-version": "2026", "empty": ""}, ""),
        ),
        ("http://[::1]:11434", "", ("http://[::1]:11434", {}, "")),
    ],
)
def test_an_address_in_its_parts(base_url: str, api_key: str, expected: tuple[str, dict[str, str], str]) -> None:
    """What is secret is apart from it, and a key comes before user and password."""
    address = read_address(base_url, api_key)
    assert (address.url, address.query, address.authorization) == expected
    assert not {"sk-1", "p@", "dTpw"} & {*repr(address).split("'")}


@pytest.mark.parametrize(
    "base_url",
    ["http://", "http://canary:x/v1", "http://h:99999/", "http://h:0/", "http://[::canary", "http://u:p@/v1"],
)
def test_an_address_that_cannot_be_used(base_url: str) -> None:
    """It is refused, and not repeated."""
    with pytest.raises(ConfigError, match=r"^llm\.base_url: ") as refused:
        read_address(base_url, "")
    assert "canary" not in str(refused.value)


@pytest.mark.parametrize("key", ["канарейка", "canary\r\nX-Evil: 1", "canary\0"])
def test_a_key_that_cannot_be_sent(key: str) -> None:
    """It is refused at the start, and not repeated."""
    with pytest.raises(ConfigError, match=r"^llm\.api_key: ") as refused:
        read_address("http://h/v1", key)
    assert key not in str(refused.value)

"""What an error of the SDK, or an answer of an endpoint, means."""

import errno
import json
import os
import socket
import ssl
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai import APIConnectionError, APIStatusError

from nexus.adapters.llm_faults import CallFailedError, FormRefusedError, fault_of, fault_said, retry_after
from nexus.core.errors import PromptTooLongError

REQUEST = httpx2.Request("POST", "http://user:canary@127.0.0.1/v1?key=canary")
# As the servers of those names say it.
TOO_LONG: list[tuple[str, int, Any]] = [
    (
        "OpenAI",
        400,
        {"message": "This model's maximum context length is 8192 tokens.", "code": "context_length_exceeded"},
    ),
    (
        "vLLM",
        400,
        {"message": "This model's maximum context length is 16384 tokens. However, you requested", "code": 400},
    ),
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
    assert isinstance(fault_of(refused(status, error), 1), PromptTooLongError)


@pytest.mark.parametrize(("status", "error"), [case[1:] for case in FORMS], ids=[case[0] for case in FORMS])
def test_a_form_that_is_not_known(status: int, error: Any) -> None:
    """However an endpoint says so."""
    assert isinstance(fault_of(refused(status, error), 1), FormRefusedError)


@pytest.mark.parametrize(
    ("status", "error", "text", "passing"),
    [
        (401, {"message": "Incorrect API key: canary", "code": "invalid_api_key"}, "401 invalid_api_key", False),
        (401, "canary", "401 Unauthorized", False),
        (400, {"message": "canary", "code": "canary"}, "400 Bad Request", False),
        (403, None, "403 Forbidden", False),
        (404, {"message": "no", "code": "model_not_found"}, "404 model_not_found", False),
        (422, {"message": "canary"}, "422 Unprocessable Entity", False),
        (408, None, "408 Request Timeout", True),
        (409, None, "409 Conflict", True),
        (429, {"code": "rate_limit_exceeded"}, "429 rate_limit_exceeded", True),
        (429, {"type": "insufficient_quota"}, "429 insufficient_quota", False),
        (500, "canary", "500 Internal Server Error", True),
        (503, None, "503 Service Unavailable", True),
        (501, None, "501 Not Implemented", False),
        (599, None, "599", True),
        (302, None, "302 Found", False),
    ],
)
def test_a_refusal(status: int, error: Any, text: str, *, passing: bool) -> None:
    """It has its status and a well-known code, is tried again or not, and repeats nothing that was said."""
    fault = fault_of(refused(status, error), 1)
    assert isinstance(fault, CallFailedError)
    assert (str(fault), fault.passing, fault.retry_after_s) == (text, passing, None)


def test_what_is_no_refusal() -> None:
    """A call that took too long, a connection that broke, a certificate, and an answer that is something else."""
    broken, untrusted = APIConnectionError(request=REQUEST), APIConnectionError(request=REQUEST)
    broken.__cause__ = httpx2.ConnectError("canary")
    untrusted.__cause__ = httpx2.ConnectError("[SSL: CERTIFICATE_VERIFY_FAILED] canary")
    told = [
        (str(fault), fault.passing)
        for error in (TimeoutError(), broken, APIConnectionError(request=REQUEST), untrusted, ValueError("canary"))
        if isinstance(fault := fault_of(error, 1.5), CallFailedError)
    ]
    assert told == [
        ("no answer within 1.5 s", True),
        ("no connection (ConnectError)", True),
        ("no connection (APIConnectionError)", True),
        ("the certificate of the endpoint is not trusted", False),
        ("the answer is no chat completion", False),
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
    assert str(fault_of(broken, 1)) == f"no connection ({reason})"


def test_an_error_with_the_status_of_a_success() -> None:
    """A prompt that does not fit is one that does not fit; another error may pass."""
    assert isinstance(fault_said("greater than the context length"), PromptTooLongError)
    fault = fault_said("canary")
    assert isinstance(fault, CallFailedError)
    assert fault.passing
    assert "canary" not in str(fault)


@pytest.mark.parametrize(
    ("field", "seconds"),
    [
        ("7", 7),
        ("0.5", 0.5),
        ("-3", 0),
        ("1e400", None),
        ("nan", None),
        ("soon", None),
        ("", None),
        ("Wed, 21 Oct 2015 07:28:00 GMT", 0),
        ("Wed, 21 Oct 99999 07:28:00 GMT", None),
        (None, None),
    ],
)
def test_when_to_come_again(field: str | None, seconds: float | None) -> None:
    """Seconds, or a moment; what is past is now, and what is neither counts for nothing."""
    assert retry_after(field) == seconds


def test_a_moment_to_come_again() -> None:
    """In about a minute."""
    seconds = retry_after(format_datetime(datetime.now(UTC) + timedelta(seconds=60), usegmt=True))
    assert seconds is not None
    assert 0 < seconds <= 60


@given(st.text())
def test_any_field(field: str) -> None:
    """Whatever it says, it is no reason to fail."""
    seconds = retry_after(field)
    assert seconds is None or seconds >= 0

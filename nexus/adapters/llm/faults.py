"""Errors of the SDK and of endpoints, translated into ours.

Their texts name a status and a well-known code, and nothing else of the answer, which may quote the key or the prompt.
"""

import os
import re
import socket
import ssl
from errno import errorcode
from http import HTTPStatus
from http.client import responses
from typing import Final

from openai import APIConnectionError, APIStatusError, APITimeoutError

from nexus.core.errors import ModelUnavailableError, PromptTooLongError

# Statuses with which endpoints refuse a prompt or a response format. llama.cpp does it with 500.
_EXPLAINED: Final = frozenset({400, 413, 415, 422, 500, 501})
# The words of OpenAI, vLLM, llama.cpp and its Python binding, Ollama, LM Studio, TGI, Mistral and gateways to others.
_TOO_LONG: Final = re.compile(
    r"context_length_exceeded|exceed_context_size|context (length|size|window)|maximum context|model length"
    r"|(prompt|input|message|request)s? (is |are )?too (long|large)|too many (input )?tokens|input token count"
    r"|reduce the length|max_new_tokens` must be <=|max_tokens must be at least 1",
    re.IGNORECASE,
)
_FORMAT: Final = re.compile(r"response[_ ]?formats?|json_schema|json_object|structured.outputs?|grammar", re.IGNORECASE)
_READ_CHARS: Final = 4_096
_CODES: Final = frozenset(
    {
        "billing_hard_limit_reached",
        "insufficient_quota",
        "invalid_api_key",
        "model_not_found",
        "permission_denied",
        "rate_limit_exceeded",
        "server_error",
        "unsupported_country_region_territory",
    }
)


class FormatRefusedError(Exception):
    """The endpoint does not know the `response_format` that was asked for."""


def read_error(error: Exception, timeout_s: float) -> Exception:
    """The error of ours that an exception of the SDK, or of the HTTP client below it, means."""
    if isinstance(error, TimeoutError | APITimeoutError):
        return ModelUnavailableError(f"no answer within {timeout_s:g} s")
    if isinstance(error, APIStatusError):
        return _read_status(error)
    if isinstance(error, APIConnectionError):
        if "CERTIFICATE" in str(error.__cause__).upper():
            return ModelUnavailableError("the certificate of the endpoint is not trusted")
        return ModelUnavailableError(f"no connection ({_reason(error)})")
    return not_a_completion()


def not_a_completion() -> ModelUnavailableError:
    """The endpoint answered with something else."""
    return ModelUnavailableError("the answer is no chat completion")


def read_error_text(text: str) -> Exception:
    """The error that a text means which an endpoint gave in place of an answer, with the status of a success."""
    if _TOO_LONG.search(text[:_READ_CHARS]):
        return PromptTooLongError("the prompt does not fit")
    return ModelUnavailableError("an error in the place of an answer")


def _read_status(error: APIStatusError) -> Exception:
    status, text = error.status_code, error.response.text[:_READ_CHARS]
    if status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE or (status in _EXPLAINED and _TOO_LONG.search(text)):
        return PromptTooLongError(f"the prompt does not fit ({status})")
    if status in _EXPLAINED and _FORMAT.search(text):
        return FormatRefusedError()
    code = next((code for code in (error.code, error.type) if code in _CODES), None)
    return ModelUnavailableError(f"{status} {code or responses.get(status, '')}".strip())


def _reason(error: Exception) -> str:
    """The reason in the operating system's general words, since an error's own text holds addresses."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLError):
            return "TLS failed"
        if isinstance(cause, socket.gaierror):
            return "the name of the host cannot be resolved"
        code = cause.errno if isinstance(cause, OSError) else None
        if code is not None and code in errorcode:
            return os.strerror(code)
        # A host with several addresses gives an error for each.
        cause = cause.exceptions[0] if isinstance(cause, BaseExceptionGroup) else cause.__cause__ or cause.__context__
    return type(error.__cause__ or error).__name__

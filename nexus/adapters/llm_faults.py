"""What went wrong with a call of a model, told from what the SDK raised or the endpoint answered.

Texts name a status and a well-known code. They repeat nothing that the endpoint said, which may quote key or prompt.
"""

import math
import os
import re
import socket
import ssl
from email.utils import parsedate_to_datetime
from errno import errorcode
from http import HTTPStatus
from http.client import responses
from typing import Final

from openai import APIConnectionError, APIStatusError, APITimeoutError

from nexus.core.errors import ModelUnavailableError, PromptTooLongError
from nexus.core.models import utc_now

# Statuses after which the same call may succeed; so may it after those from 500 on.
_PASSING: Final = frozenset({408, 409, 425, 429})
_LASTING: Final = frozenset({501, 505})
# Where the endpoint says what it thinks of the prompt, or of the form of the answer. llama.cpp says it with 500.
_SPEAKING: Final = frozenset({400, 413, 415, 422, 500, 501})
# What OpenAI, vLLM, llama.cpp and its Python binding, Ollama, LM Studio, TGI, Mistral and gateways to others say.
_TOO_LONG: Final = re.compile(
    r"context_length_exceeded|exceed_context_size|context (length|size|window)|maximum context|model length"
    r"|(prompt|input|message|request)s? (is |are )?too (long|large)|too many (input )?tokens|input token count"
    r"|reduce the length|max_new_tokens` must be <=|max_tokens must be at least 1",
    re.IGNORECASE,
)
_FORM: Final = re.compile(r"response[_ ]?formats?|json_schema|json_object|structured.outputs?|grammar", re.IGNORECASE)
# How much of what an endpoint says is looked at.
_LOOKED_AT: Final = 4_096
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
_HOPELESS: Final = frozenset({"billing_hard_limit_reached", "insufficient_quota"})


class CallFailedError(ModelUnavailableError):
    """A call that brought no answer.

    Attributes:
        passing: the same call may succeed in a moment.
        retry_after_s: when, if the endpoint said so.
    """

    def __init__(self, text: str, *, passing: bool, retry_after_s: float | None = None) -> None:
        super().__init__(text)
        self.passing = passing
        self.retry_after_s = retry_after_s


class FormRefusedError(Exception):
    """The endpoint does not know the form in which an answer was asked for."""


def fault_of(error: Exception, timeout_s: float) -> Exception:
    """What an exception of the SDK, or of what it stands on, means."""
    if isinstance(error, TimeoutError | APITimeoutError):
        return CallFailedError(f"no answer within {timeout_s:g} s", passing=True)
    if isinstance(error, APIStatusError):
        return _of_status(error)
    if isinstance(error, APIConnectionError):
        if "CERTIFICATE" in str(error.__cause__).upper():
            return CallFailedError("the certificate of the endpoint is not trusted", passing=False)
        return CallFailedError(f"no connection ({_reason(error)})", passing=True)
    return no_completion()


def _reason(error: Exception) -> str:
    """What the operating system says of it, in its general words: those of the moment hold addresses."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLError):
            return "TLS failed"
        if isinstance(cause, socket.gaierror):
            return "the name of the host cannot be resolved"
        code = cause.errno if isinstance(cause, OSError) else None
        if code is not None and code in errorcode:
            return os.strerror(code)
        # Where a host has several addresses, there is an error of each.
        cause = cause.exceptions[0] if isinstance(cause, BaseExceptionGroup) else cause.__cause__ or cause.__context__
    return type(error.__cause__ or error).__name__


def no_completion() -> CallFailedError:
    """What was answered is something else."""
    return CallFailedError("the answer is no chat completion", passing=False)


def fault_said(said: str) -> Exception:
    """What an error means that comes where an answer should be, with the status of a success."""
    if _TOO_LONG.search(said[:_LOOKED_AT]):
        return PromptTooLongError("the prompt does not fit")
    return CallFailedError("an error in the place of an answer", passing=True)


def _of_status(error: APIStatusError) -> Exception:
    status, said = error.status_code, error.response.text[:_LOOKED_AT]
    if status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE or (status in _SPEAKING and _TOO_LONG.search(said)):
        return PromptTooLongError(f"the prompt does not fit ({status})")
    if status in _SPEAKING and _FORM.search(said):
        return FormRefusedError()
    code = next((code for code in (error.code, error.type) if code in _CODES), None)
    passing = (status in _PASSING or status >= HTTPStatus.INTERNAL_SERVER_ERROR) and status not in _LASTING
    return CallFailedError(
        f"{status} {code or responses.get(status, '')}".strip(),
        passing=passing and code not in _HOPELESS,
        retry_after_s=retry_after(error.response.headers.get("Retry-After")),
    )


def retry_after(field: str | None) -> float | None:
    """The seconds that a header field `Retry-After` means: a number, or a moment. None where it means neither."""
    if field is None:
        return None
    try:
        seconds = float(field)
    except ValueError:
        try:
            seconds = (parsedate_to_datetime(field) - utc_now()).total_seconds()
        except (ValueError, TypeError, OverflowError):
            # A moment without a zone is no moment.
            return None
    return max(seconds, 0.0) if math.isfinite(seconds) else None

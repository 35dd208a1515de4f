"""The envelopes of answers (CONTRACT §1.4). Pure, but for the id and the time that every message gets."""

from collections.abc import Mapping
from typing import Any

from nexus.core.errors import RequestError
from nexus.core.models import Message, Role

# An envelope cannot be without these ids; a request that could not be read may be.
_UNKNOWN = "unknown"


def answer(request_id: str, run_id: str, owner_key: str, content: Mapping[str, Any]) -> Message:
    """The answer with this content to the request of that id."""
    return Message(
        run_id=run_id or _UNKNOWN,
        owner_key=owner_key or _UNKNOWN,
        role=Role.SYSTEM,
        content=content,
        metadata={"request_id": request_id},
    )


def error_answer(request_id: str, run_id: str, owner_key: str, error: RequestError) -> Message:
    """The answer that tells a requester what is wrong."""
    described: dict[str, Any] = {"code": error.code.value, "message": error.message, "retryable": error.code.retryable}
    if error.retry_after_ms is not None:
        described["retry_after_ms"] = error.retry_after_ms
    return answer(request_id, run_id, owner_key, {"status": "error", "error": described, "messages": [], "tools": []})

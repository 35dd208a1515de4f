"""What a payload of `tools.requests` asks of Nexus, and what it is answered (CONTRACT §7).

The topic belongs to whoever runs tools: what does not name one of ours is nobody's business here, whatever it is. What
does, and is no usable call, gets an error result as far as anybody can be told; what its sender may not say, and what
nobody can be told, is a fault that is not answered.
"""

import hashlib
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from nexus.core.compact_json import compact
from nexus.core.errors import ErrorCode, UnreadablePayloadError
from nexus.core.models import Message, Role
from nexus.core.ports import Delivery
from nexus.core.signing import Signing
from nexus.core.topics import Topics
from nexus.core.wire import EnvelopeError, EnvelopeIds, encode
from nexus.services.asks import read_message
from nexus.services.context.agents import internal_marks, named_agent
from nexus.services.context.annotations import as_id
from nexus.services.session_state.merge import read_session
from nexus.services.tools.memory_tools import MEMORY_TOOLS

_ID_CHARS: Final = 256
_DIGEST_CHARS: Final = 32
_NAMES: Final = tuple(name.encode() for name in sorted(MEMORY_TOOLS))
# JSON may spell the letters of a name like this.
_ESCAPED_LETTER: Final = b"\\u00"
# In a payload that cannot be parsed. Within a text the quotation marks have a backslash before them.
_NAME: Final = re.compile(rb'(?<!\\)"name"\s*+:\s*+"(' + b"|".join(_NAMES) + rb')"')
_CALL_ID: Final = re.compile(rb'(?<!\\)"call_id"\s*+:\s*+"([\x20\x21\x23-\x5b\x5d-\x7e]{1,256})"')


@dataclass(frozen=True, slots=True)
class ToolSource:
    """Where a call comes from.

    Attributes:
        delivery: what brought it.
        at: when it arrived, on the monotonic clock.
        fingerprint: SHA-256 of the payload.
        signing: with what answers are signed.
    """

    delivery: Delivery
    at: float
    fingerprint: str
    signing: Signing | None = None


@dataclass(frozen=True, slots=True)
class ToolAsk:
    """A call of one of our tools that can be answered.

    Attributes:
        ids: who asks. The answer repeats run and owner.
        name: of the tool.
        call_id: the model's own name of the call; `""` where it has none.
        result_id: of the answer, so that it is recorded once. It names the call within the memory, too.
        source: where it comes from.
        args: as they were given.
        session_id: which the request names itself; None where it does not.
        sub_agent: whose own business the request says it is; None where it does not.
        wrong: why it cannot be done; None where nothing is known to be wrong.
    """

    ids: EnvelopeIds
    name: str
    call_id: str
    result_id: str
    source: ToolSource
    args: Any = None
    session_id: str | None = None
    sub_agent: str | None = None
    wrong: str | None = None

    @property
    def key(self) -> str:
        """What the ledger knows it by; no build request has such a key."""
        return f"tool:{self.result_id}"

    @property
    def waited_s(self) -> float:
        """For how many seconds it has been here."""
        return time.monotonic() - self.source.at

    def as_conflict(self) -> "ToolAsk":
        """This, as one whose message id belongs to another call; with a key of its own."""
        result_id = _digest("conflict", self.result_id, self.source.fingerprint)
        return replace(self, result_id=result_id, wrong="id: belongs to another call; every call needs its own")

    def result(self, text: str, *, done: bool, retryable: bool = False, session_id: str | None = None) -> Message:
        """The message that answers it.

        Args:
            text: for the model.
            done: whether what was asked for is so.
            retryable: the same call may succeed later.
            session_id: where it is recorded; None where that is told by its run.
        """
        content: dict[str, Any] = {
            "result": text,
            "tool_name": self.name,
            "status": "success" if done else "error",
            "execution_success": done,
            "call_id": self.call_id,
        }
        if not done:
            content["error"] = {"message": text, "retryable": retryable}
        session = {"session_id": session_id} if session_id else {}
        return Message(
            id=self.result_id,
            run_id=self.ids.run_id,
            owner_key=self.ids.owner_key,
            role=Role.TOOL,
            content=content,
            metadata={"request_id": self.ids.id, **session, **internal_marks(self.sub_agent)},
        )

    def encoded(self, result: Message) -> bytes:
        """The bytes of an answer to this."""
        return encode(result, topic=Topics.TOOLS_RESULTS, signing=self.source.signing)


def may_be_ours(payload: bytes) -> bool:
    """Whether the payload may name one of our tools. Quick, and never wrong where it says no."""
    return any(name in payload for name in _NAMES) or _ESCAPED_LETTER in payload


def read_tool_ask(delivery: Delivery, at: float, *, max_bytes: int, signing: Signing | None = None) -> ToolAsk | None:
    """The call in a delivery, which arrived at `at`; None where it is none of ours.

    Raises:
        EnvelopeError: it is ours, and its sender may not say it (`UNAUTHENTICATED`).
        UnreadablePayloadError: it is ours, and nobody can be answered.
    """
    fingerprint = hashlib.sha256(delivery.payload).hexdigest()
    try:
        message = read_message(delivery, max_bytes=max_bytes, signing=signing)
    except (EnvelopeError, UnreadablePayloadError) as error:
        named = _NAME.search(delivery.payload)
        if named is None:
            return None
        if not isinstance(error, EnvelopeError) or error.code is ErrorCode.UNAUTHENTICATED:
            raise
        return _unusable(error, named[1].decode(), ToolSource(delivery, at, fingerprint, signing))
    return _read(message, ToolSource(delivery, at, fingerprint, signing))


def _unusable(error: EnvelopeError, name: str, source: ToolSource) -> ToolAsk:
    ids = error.ids
    if not ids.run_id or not ids.owner_key:
        raise UnreadablePayloadError(error.message)
    call_id = _CALL_ID.search(source.delivery.payload)
    # Whoever sent it may not be who the id belongs to.
    result_id = _digest(ids.owner_key, ids.run_id, ids.id, source.fingerprint)
    return ToolAsk(ids, name, call_id[1].decode() if call_id else "", result_id, source, wrong=error.message)


def _read(message: Message, source: ToolSource) -> ToolAsk | None:
    content: Mapping[str, Any] = message.content if isinstance(message.content, Mapping) else {}
    name = content.get("name")
    if not isinstance(name, str) or name not in MEMORY_TOOLS:
        return None
    session_id, wrong = None, None
    try:
        session_id = read_session(message.metadata) if message.metadata.get("session_id") else None
    except ValueError as error:
        wrong = str(error)
    call_id = as_id(content.get("call_id"))
    if len(call_id) > _ID_CHARS:
        call_id, wrong = "", f"content.call_id: {len(call_id)} characters, at most {_ID_CHARS} are allowed"
    return ToolAsk(
        EnvelopeIds(message.id, message.run_id, message.owner_key),
        name,
        call_id,
        _digest(message.owner_key, message.run_id, message.id),
        source,
        # Models' own calls have `arguments`, and whoever passes one on may leave that as it is.
        args=content.get("arguments") if content.get("args") is None else content["args"],
        session_id=session_id,
        sub_agent=named_agent(message.metadata),
        wrong=wrong,
    )


def _digest(*parts: str) -> str:
    return f"msg_{hashlib.sha256(compact([*parts])).hexdigest()[:_DIGEST_CHARS]}"

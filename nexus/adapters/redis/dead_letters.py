"""Dead letters on Redis (contract §1.6): a stream of limited length, one entry a letter.

Any client may have written to the stream: an entry of another shape is read as far as possible.
"""

import hashlib
import re
from collections.abc import Mapping
from datetime import datetime
from functools import partial
from itertools import chain
from typing import Any, Final

from redis.asyncio import Redis

from nexus.adapters.redis.client import repeated
from nexus.adapters.redis.scripts import DEAD_LETTER_ADD, Script
from nexus.core.ports import DeadLetter

_SAME_LETTER_MS: Final = 60_000
_ENTRY_ID = re.compile(r"([0-9]{1,20})-([0-9]{1,20})")
_LARGEST_PART: Final = (1 << 64) - 1


class RedisDeadLetters:
    """`nexus.core.ports.DeadLetters` on Redis, at most `most` of them.

    While Redis does not answer, an operation is tried again for `repeated_s` seconds.
    """

    def __init__(self, client: Redis, *, prefix: str = "", most: int = 10_000, repeated_s: float = 5.0) -> None:
        self._client = client
        self._prefix = prefix
        self._stream = f"{prefix}nexus:dead-letters"
        self._most = most
        self._repeated_s = repeated_s
        self._add = Script(client, DEAD_LETTER_ADD)

    async def keep(self, letter: DeadLetter) -> None:
        """Keep a dead letter, unless the same was kept within the last minute."""
        fields: dict[str, Any] = {
            "topic": _encoded(letter.topic),
            "reason": _encoded(letter.reason),
            "deliveries": letter.deliveries,
            "sha256": letter.sha256,
            "size": letter.size,
        }
        if letter.message_id:
            fields["message_id"] = _encoded(letter.message_id)
        if letter.body is not None:
            fields["body"] = letter.body
        arguments = [_SAME_LETTER_MS, self._most, *chain.from_iterable(fields.items())]
        await repeated(self._add, [self._mark(letter), self._stream], arguments, for_s=self._repeated_s)

    async def count(self) -> int:
        """How many there are."""
        return int(await repeated(self._client.xlen, self._stream, for_s=self._repeated_s))

    async def newest(self, limit: int, *, before: str = "") -> list[DeadLetter]:
        """Up to `limit` letters, newest first. None before an id that cannot be one."""
        end = _as_entry_id(before) if before else None
        # Redis takes it for a mistake to ask for what stands before the first id there can be.
        if limit < 1 or (before and end in {None, "0-0"}):
            return []
        return await self._between("-", f"({end}" if end else "+", limit)

    async def find(self, letter_id: str) -> DeadLetter | None:
        """The letter with that id."""
        entry = _as_entry_id(letter_id)
        found = await self._between(entry, entry, 1) if entry else []
        return found[0] if found else None

    async def drop(self, letter_id: str) -> bool:
        """Remove a letter. The same bytes become a letter again from now on."""
        letter = await self.find(letter_id)
        if letter is None:
            return False
        tries = 0

        async def remove() -> bool:
            nonlocal tries
            tries += 1
            # Gone at a second try, it was most likely the first that removed it, whose reply was lost.
            return bool(await self._client.xdel(self._stream, letter.letter_id)) or tries > 1

        await self.expect_again(letter)
        return await repeated(remove, for_s=self._repeated_s)

    async def drop_before(self, before: datetime) -> int:
        """Remove the letters that were kept before then. Returns how many."""
        oldest, dropped = int(before.timestamp() * 1_000), 0
        # Whole nodes of the stream first, some at a time: many letters one by one would hold up Redis.
        while trimmed := await self._trim(oldest, approximate=True):
            dropped += trimmed
        return dropped + await self._trim(oldest, approximate=False)

    async def expect_again(self, letter: DeadLetter) -> None:
        """Let the same bytes become a letter of their own at once, should they come and fail again."""
        await self._delete(self._mark(letter))

    async def forget_answer(self, key: str) -> None:
        """Let the request `key` be answered anew: neither its answer nor that it was enqueued is known any longer."""
        # One by one: on a Redis Cluster they may be in different places.
        await self._delete(f"{self._prefix}nexus:request:{key}")
        await self._delete(f"{self._prefix}nexus:enqueued:{key}")

    async def _between(self, oldest: str, newest: str, limit: int) -> list[DeadLetter]:
        found: Any = await repeated(self._client.xrevrange, self._stream, newest, oldest, limit, for_s=self._repeated_s)
        return [_letter(entry, fields) for entry, fields in found]

    async def _trim(self, oldest_ms: int, *, approximate: bool) -> int:
        trim = partial(self._client.xtrim, self._stream, minid=str(oldest_ms), approximate=approximate)
        return int(await repeated(trim, for_s=self._repeated_s))

    async def _delete(self, key: str) -> None:
        await repeated(self._client.delete, key, for_s=self._repeated_s)

    def _mark(self, letter: DeadLetter) -> str:
        """The key that says that the letter was kept a moment ago. It shares a slot with the stream."""
        reason = hashlib.sha256(_encoded(letter.reason)).hexdigest()
        return f"{self._prefix}nexus:dead-letter:{{{self._stream}}}:{letter.sha256}:{reason[:16]}"


def _letter(entry: bytes, fields: Mapping[bytes, bytes]) -> DeadLetter:
    letter_id = entry.decode()
    body = fields.get(b"body")
    return DeadLetter(
        topic=_text(fields, b"topic"),
        reason=_text(fields, b"reason"),
        sha256=_text(fields, b"sha256"),
        size=_number(fields, b"size", len(body or b"")),
        deliveries=_number(fields, b"deliveries", 1),
        message_id=_text(fields, b"message_id"),
        body=body,
        letter_id=letter_id,
        at_ms=int(letter_id.partition("-")[0]),
    )


def _as_entry_id(text: str) -> str | None:
    """An id as Redis writes it; None when no entry can have it."""
    parts = _ENTRY_ID.fullmatch(text)
    if parts is None or any(int(part) > _LARGEST_PART for part in parts.groups()):
        return None
    return f"{int(parts[1])}-{int(parts[2])}"


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "replace")


def _text(fields: Mapping[bytes, bytes], name: bytes) -> str:
    return fields.get(name, b"").decode("utf-8", "replace")


def _number(fields: Mapping[bytes, bytes], name: bytes, otherwise: int) -> int:
    text = fields.get(name, b"")
    return int(text) if text.isdigit() and len(text) <= len(str(_LARGEST_PART)) else otherwise

"""What Redis says of the entries of a stream, as deliveries; and how long it may take to say it."""

from collections.abc import Sequence
from typing import Any, Final

from nexus.core.ports import Delivery

# How long a read may wait. Shorter than the time-out of the socket, which would end the read with an error.
BLOCK_MS: Final = 1_000


def delivery_of(
    topic: str, entry: bytes, fields: Any, *, shared: bool = False, deliveries: int = 1, surplus: bool = False
) -> Delivery:
    """An entry of a stream as a delivery. One without a `message` is an empty payload, which nobody can read."""
    payload = bytes((fields or {}).get(b"message", b""))
    name = entry.decode()
    return Delivery(topic, payload, name, int(name.partition("-")[0]), deliveries, shared, surplus)


def entries_of(found: Any) -> list[tuple[bytes, Any]]:
    """The entries in a reply to a read of one stream."""
    return [entry for _, entries in by_stream(found) for entry in entries]


def entries_in(reply: Any) -> list[tuple[bytes, Any]]:
    """The same of what Redis itself replies: a map, or pairs in the older protocol; None when there is nothing."""
    listed = reply.values() if isinstance(reply, dict) else [entries for _, entries in reply or ()]
    return [(entry, pairs(fields)) for entries in listed for entry, fields in entries]


def pairs(fields: list[bytes] | None) -> dict[bytes, bytes]:
    """A script's reply holds names and values in one list."""
    flat = fields or []
    return dict(zip(flat[::2], flat[1::2], strict=True))


def by_stream(found: Any) -> Sequence[tuple[bytes, Any]]:
    """What XREAD gives, in both of redis-py's forms."""
    return [(key, listed[0]) for key, listed in found.items()] if isinstance(found, dict) else found or []


def moment(entry: bytes) -> tuple[int, int]:
    """An entry's place in time: milliseconds, and the number within them."""
    ms, _, number = entry.partition(b"-")
    return int(ms), int(number)

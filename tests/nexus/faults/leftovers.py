"""What a service shows to whoever looks: its output, its metrics, its dead letters, its error answers."""

import json
from collections.abc import Iterator
from pathlib import Path

import anyio
from redis.asyncio import Redis

from tests.nexus.faults.fleet import Fleet, Replica

HISTORY = "history.jsonl"


async def keep_what_shows(folder: Path, fleet: Fleet, redis_url: str, prefix: str) -> None:
    """Put metrics and dead letters beside the output of the replicas."""
    for replica in fleet.running:
        page = await metrics_of(replica)
        (folder / f"{replica.name}.metrics").write_bytes(page)
    async with Redis.from_url(redis_url) as redis:
        letters = await redis.xrange(f"{prefix}nexus:dead-letters")
    (folder / "dead-letters.txt").write_text("\n".join(repr(letter) for letter in letters or ()), encoding="utf-8")


async def metrics_of(replica: Replica) -> bytes:
    """The page of metrics with its head; empty where the service has none or does not answer now."""
    port = next((line["http_port"] for line in replica.events("http_listening")), None)
    page = b""
    if port is None:
        return page
    with anyio.move_on_after(5):
        try:
            async with await anyio.connect_tcp("127.0.0.1", port) as stream:
                await stream.send(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
                async for piece in stream:
                    page += piece
        except OSError:
            pass
    return page


def what_shows(folder: Path) -> Iterator[tuple[Path, str]]:
    """Everything that services have shown, with where it stands; of the histories the error answers alone."""
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.name != HISTORY:
            yield path, path.read_text(encoding="utf-8", errors="replace")
        elif path.is_file():
            lines = (json.loads(line) for line in path.read_text(encoding="utf-8").splitlines())
            yield path, "\n".join(json.dumps(line["error"]) for line in lines if line["type"] == "fail")

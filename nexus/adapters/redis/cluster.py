"""A client for Redis Cluster: one plain client a node, and a map that tells which node owns a key's slot.

redis-py's own asyncio cluster client is not used, see decision 10.

- Nothing is sent twice, except after a node has said that it did not do it (MOVED, ASK, TRYAGAIN, NOSCRIPT).
- All keys of a command or script are in one slot. What asks several nodes (SCAN, FLUSHALL) or needs one connection for
  several commands (pipelines, WATCH) is refused.
- PUBLISH goes to the node that owns the slot of the channel, which keeps the order of a channel, or to another node
  while that one does not answer: nodes pass messages on. A subscription is on any node, on another one each time.
"""

import random
from typing import Any, Final, NoReturn

import anyio
from redis.asyncio import Redis
from redis.asyncio.client import PubSub
from redis.crc import REDIS_CLUSTER_HASH_SLOTS, key_slot
from redis.exceptions import (
    AskError,
    ClusterDownError,
    ClusterError,
    MovedError,
    RedisError,
    TryAgainError,
)
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from nexus.adapters.redis.urls import Address

_MOST_TRIES: Final = 16
_TRY_AGAIN_S: Final = 0.05
# The map is read again at most this often, however many commands fail at once.
_MAP_LASTS_S: Final = 0.1
# How long a node that did not answer is passed over where another will do.
_PASSED_OVER_S: Final = 2.0

_ANY_NODE: Final = {"PING", "TIME", "INFO", "CLIENT", "CONFIG", "CLUSTER", "SCRIPT", "ACL"}
_REFUSED: Final = {"SCAN", "KEYS", "DBSIZE", "RANDOMKEY", "FLUSHALL", "FLUSHDB", "SELECT", "MULTI", "EXEC", "WATCH"}
_KEY_IS_THIRD: Final = {"XGROUP", "XINFO", "OBJECT", "MEMORY"}


class ClusterRedis(Redis):
    """Sends each command to the node that owns its key. Otherwise used like any client."""

    def __init__(self, seeds: tuple[Address, ...], open_node: Any) -> None:
        self._seeds = seeds
        self._open_node = open_node
        self._nodes: dict[Address, Redis] = {}
        self._owners: list[Address] = []
        self._members: list[Address] = [*seeds]
        self._stale = True
        self._learned_at = float("-inf")
        self._learning = anyio.Lock()
        self._failed_at: dict[Address, float] = {}
        self._listened_to: Address | None = None
        super().__init__(connection_pool=self._node(seeds[0]).connection_pool)

    async def execute_command(self, *args: Any, **options: Any) -> Any:
        """Have the right node execute a command, following redirections."""
        key = key_of(args)
        await self._learn()
        address = self._place(args, key)
        asking = False
        for _ in range(_MOST_TRIES):
            try:
                return await self._send(address, args, options, asking=asking)
            except MovedError as error:
                address, asking, self._stale = (error.host or address[0], error.port), False, True
                self._owners[error.slot_id] = address
            except AskError as error:
                address, asking = (error.host or address[0], error.port), True
            except TryAgainError:
                await anyio.sleep(_TRY_AGAIN_S)
            except ClusterDownError:
                self._stale = True
                raise
            except (RedisConnectionError, RedisTimeoutError, OSError):
                self._failed(address)
                raise
        raise ClusterError("sent from node to node too often")

    async def masters(self) -> list[Redis]:
        """A client of each node that owns keys, for what asks all of them."""
        await self._learn()
        return [self._node(address) for address in dict.fromkeys(self._owners)]

    def pubsub(self, **kwargs: Any) -> PubSub:
        """A subscription on another node than the last one, if there is another."""
        others = [member for member in self._members if member != self._listened_to]
        self._listened_to = random.choice(self._reachable(others) or self._members)  # noqa: S311  # no secret
        return self._node(self._listened_to).pubsub(**kwargs)

    def pipeline(self, *_args: Any, **_kwargs: Any) -> NoReturn:
        """Raise: commands of a pipeline may belong to several nodes."""
        raise NotImplementedError("no pipelines on a cluster: use a script")

    async def aclose(self, *_args: Any, **_kwargs: Any) -> None:
        """Close the connections to every node."""
        for node in self._nodes.values():
            await node.aclose()

    def _node(self, address: Address) -> Redis:
        if address not in self._nodes:
            self._nodes[address] = self._open_node(address)
        return self._nodes[address]

    async def _send(self, address: Address, args: tuple[Any, ...], options: dict[str, Any], *, asking: bool) -> Any:
        node: Any = self._node(address)
        if not asking:
            return await node.execute_command(*args, **options)
        # ASKING holds for the next command of the same connection.
        async with node.client() as connection:
            await connection.execute_command("ASKING")
            return await connection.execute_command(*args, **options)

    def _place(self, args: tuple[Any, ...], key: Any) -> Address:
        if key is None:
            return random.choice(self._reachable(self._members) or self._members)  # noqa: S311  # no secret
        slot = key_slot(key if isinstance(key, bytes) else str(key).encode())
        owner = self._owners[slot]
        if args[0] != "PUBLISH" or self._reachable([owner]):
            return owner
        others = self._reachable(self._members)
        return others[slot % len(others)] if others else owner

    def _failed(self, address: Address) -> None:
        self._stale = True
        self._failed_at[address] = anyio.current_time()

    def _reachable(self, addresses: list[Address]) -> list[Address]:
        since = anyio.current_time() - _PASSED_OVER_S
        return [address for address in addresses if self._failed_at.get(address, since) <= since]

    async def _learn(self) -> None:
        if not self._stale:
            return
        async with self._learning:
            if self._stale and anyio.current_time() > self._learned_at + _MAP_LASTS_S:
                await self._read_map()

    async def _read_map(self) -> None:
        known = [*{*self._members, *self._seeds}]
        random.shuffle(known)
        known.sort(key=lambda address: self._failed_at.get(address, 0.0))
        failure: Exception = ClusterError("no node answers")
        for address in known:
            try:
                await self._take_map(await self._send(address, ("CLUSTER", "SLOTS"), {}, asking=False), address)
            except (RedisError, OSError) as error:
                self._failed(address)
                failure = error
            else:
                self._stale = False
                self._learned_at = anyio.current_time()
                return
        raise failure

    async def _take_map(self, ranges: list[Any], told_by: Address) -> None:
        owners: list[Address | None] = [None] * REDIS_CLUSTER_HASH_SLOTS
        members: dict[Address, None] = {}
        for first, last, *nodes in ranges:
            addresses = [_address(node, told_by) for node in nodes]
            owners[first : last + 1] = [addresses[0]] * (last + 1 - first)
            members.update(dict.fromkeys(addresses))
        if not members:
            raise ClusterDownError("no slots are assigned")
        # A node that is asked for a slot without an owner says so.
        self._owners = [owner or told_by for owner in owners]
        self._members = [*members]
        await self._forget_all_but({*members, told_by})

    async def _forget_all_but(self, known: set[Address]) -> None:
        """Close the connections to all other nodes; those in use are closed when they are released."""
        kept = {*known, *self._seeds}
        self._failed_at = {address: at for address, at in self._failed_at.items() if address in kept}
        for address in self._nodes.keys() - known:
            node = self._nodes[address]
            if address not in self._seeds:
                del self._nodes[address]
                pool: Any = node.connection_pool
                await pool.update_active_connections_for_reconnect()
            # A seed stays, to be asked for the map again.
            await node.connection_pool.disconnect(inuse_connections=False)


def key_of(args: tuple[Any, ...]) -> Any:
    """The first key of a command; for PUBLISH the channel; None where any node will do.

    NotImplementedError for a command that is not for one node.
    """
    name, *further = str(args[0]).upper().split()
    rest: list[Any] = [*further, *args[1:]]
    if name in _REFUSED:
        raise NotImplementedError(f"{name} is not for one node of a cluster")
    if name in _ANY_NODE:
        return None
    match name:
        case "EVAL" | "EVALSHA":
            return rest[2] if int(rest[1]) else None
        case "XREAD" | "XREADGROUP":
            return rest[rest.index(b"STREAMS") + 1]
        case _:
            return rest[name in _KEY_IS_THIRD]


def _address(node: list[Any], told_by: Address) -> Address:
    host = node[0].decode() if isinstance(node[0], bytes) else node[0]
    # A node without a name has the host of the node that listed it.
    return (told_by[0] if host in {None, "", "?"} else host), int(node[1])

"""Redis as it stands in earnest, on this machine: watched by Sentinel, as a cluster, and behind TLS with users.

The servers are the packaged Valkey, or `redis-server` where there is one and the tests run on a real Redis.
"""

import shutil
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import trustme
from redis.crc import REDIS_CLUSTER_HASH_SLOTS

from tests.nexus.support.redis_server import HOST, RedisServer, binary, free_port
from tests.nexus.support.waiting import until

SERVICE = "nexus-bus"
DOWN_AFTER_MS = 1_000


@dataclass(frozen=True)
class Watched:
    """A master and its replica, and the sentinels that watch them."""

    master: RedisServer
    replica: RedisServer
    sentinels: list[RedisServer]

    @property
    def url(self) -> str:
        """How to reach the master by way of the sentinels."""
        return f"redis+sentinel://{','.join(f'{HOST}:{server.port}' for server in self.sentinels)}/{SERVICE}"

    async def promoted(self, server: RedisServer) -> None:
        """Wait until every sentinel names this one the master, and it is."""

        async def agreed() -> bool:
            for sentinel in self.sentinels:
                _, port = await sentinel.ask("SENTINEL", "GET-MASTER-ADDR-BY-NAME", SERVICE)
                if int(port) != server.port:
                    return False
            return bool((await server.ask("ROLE"))[0] == b"master")

        await until(agreed)

    async def in_step(self) -> None:
        """Wait until the replica follows and every sentinel knows it and the others."""

        async def follows() -> bool:
            if (await self.replica.ask("ROLE"))[3] != b"connected":
                return False
            states = [await sentinel.ask("SENTINEL", "MASTER", SERVICE) for sentinel in self.sentinels]
            return all(_state(state) == ("1", "2") for state in states)

        await until(follows)


@dataclass(frozen=True)
class Cluster:
    """Masters that share the slots, and a replica of each when `replicas` is not empty."""

    masters: list[RedisServer]
    replicas: list[RedisServer]

    @property
    def url(self) -> str:
        """How to reach it; two nodes are named, of which one may be down."""
        return f"redis+cluster://{','.join(f'{HOST}:{server.port}' for server in self.masters[:2])}"

    async def owner_of(self, key: str) -> RedisServer:
        """The master that has the key's slot, as the last node sees it."""
        everybody = [*self.masters, *self.replicas]
        slot = await everybody[-1].ask("CLUSTER", "KEYSLOT", key)
        for first, last, (_, port, *_), *_ in await everybody[-1].ask("CLUSTER", "SLOTS"):
            if first <= slot <= last:
                return next(server for server in everybody if server.port == port)
        raise LookupError(key)

    async def move_slot(self, key: str, to: RedisServer) -> None:
        """Give the slot of the key to another master, its keys included, while it is in use."""
        source = await self.owner_of(key)
        slot = await source.ask("CLUSTER", "KEYSLOT", key)
        await self.begin_moving(key, to)
        while keys := await source.ask("CLUSTER", "GETKEYSINSLOT", slot, 100):
            await source.ask("MIGRATE", HOST, to.port, "", 0, 5_000, "KEYS", *keys)
        for server in (to, source, *self.masters):
            await server.ask("CLUSTER", "SETSLOT", slot, "NODE", await _name(to))

    async def begin_moving(self, key: str, to: RedisServer) -> None:
        """Leave the slot of the key half way: keys that do not exist are asked for at `to`."""
        source = await self.owner_of(key)
        slot = await source.ask("CLUSTER", "KEYSLOT", key)
        await to.ask("CLUSTER", "SETSLOT", slot, "IMPORTING", await _name(source))
        await source.ask("CLUSTER", "SETSLOT", slot, "MIGRATING", await _name(to))


@dataclass(frozen=True)
class Secured:
    """A server behind TLS, and the certificates of the authority that vouches for it and of one that does not."""

    server: RedisServer
    ca: Path
    other_ca: Path

    def url(self, ca: Path) -> str:
        """How to reach it, trusting that authority."""
        return f"rediss://{HOST}:{self.server.port}/0?ssl_ca_certs={ca}"


@asynccontextmanager
async def sentinel_servers(down_after_ms: int = DOWN_AFTER_MS) -> AsyncIterator[Watched]:
    """Run a master, its replica and three sentinels, which call a server down that is silent for so long."""
    async with _folder() as (folder, stack):
        master = await _started(stack, folder, _options(port := free_port()), port)
        port = free_port()
        replica = await _started(stack, folder, [*_options(port), "--replicaof", HOST, str(master.port)], port)
        sentinels = []
        for _ in range(3):
            port = free_port()
            file = folder / f"sentinel-{port}.conf"
            file.write_text(
                f"bind {HOST}\nport {port}\nsentinel monitor {SERVICE} {HOST} {master.port} 2\n"
                f"sentinel down-after-milliseconds {SERVICE} {down_after_ms}\n"
                f"sentinel failover-timeout {SERVICE} 3000\n",
                "utf-8",
            )
            sentinels.append(await _started(stack, folder, [str(file), "--sentinel"], port))
        watched = Watched(master, replica, sentinels)
        await watched.in_step()
        yield watched


@asynccontextmanager
async def cluster_servers(*, replicas: bool = False) -> AsyncIterator[Cluster]:
    """Run a cluster of three masters, each with a replica if asked for."""
    async with _folder() as (folder, stack):
        nodes = []
        for _ in range(6 if replicas else 3):
            port, bus = free_port(), free_port()
            options = ["--cluster-enabled", "yes", "--cluster-node-timeout", str(DOWN_AFTER_MS)]
            options += ["--cluster-port", str(bus), "--cluster-replica-validity-factor", "0"]
            nodes.append((await _started(stack, folder, [*_options(port), *options], port), bus))
        for node, _ in nodes[1:]:
            await node.ask("CLUSTER", "MEET", HOST, nodes[0][0].port, nodes[0][1])
        servers = [node for node, _ in nodes]
        cluster = Cluster(servers[:3], servers[3:])
        size = REDIS_CLUSTER_HASH_SLOTS
        for number, master in enumerate(cluster.masters):
            await master.ask("CLUSTER", "ADDSLOTSRANGE", size * number // 3, size * (number + 1) // 3 - 1)
        await _all(servers, lambda info: int(info["cluster_known_nodes"]) == len(servers))
        for master, replica in zip(cluster.masters, cluster.replicas, strict=False):
            await replica.ask("CLUSTER", "REPLICATE", await _name(master))
        for replica in cluster.replicas:
            await until(lambda replica=replica: _follows(replica))  # type: ignore[misc]  # bound in this turn
        await _all(servers, lambda info: info["cluster_state"] == "ok")
        await until(lambda: _listed(cluster))
        yield cluster


@asynccontextmanager
async def secured_server() -> AsyncIterator[Secured]:
    """Run a server behind TLS whose certificate is of an authority made for this test. Needs a `redis-server`."""
    async with _folder() as (folder, stack):
        authority, other = trustme.CA(), trustme.CA()
        authority.cert_pem.write_to_path(folder / "ca.pem")
        other.cert_pem.write_to_path(folder / "other.pem")
        certificate = authority.issue_cert(HOST)
        certificate.private_key_pem.write_to_path(folder / "key.pem")
        certificate.cert_chain_pems[0].write_to_path(folder / "certificate.pem")
        port = free_port()
        files = {"tls-cert-file": "certificate.pem", "tls-key-file": "key.pem", "tls-ca-cert-file": "ca.pem"}
        options = [*_options(0), "--tls-port", str(port), "--tls-auth-clients", "no"]
        options += [word for name, file in files.items() for word in (f"--{name}", str(folder / file))]
        server = await _started(stack, folder, options, port, ssl=True, ssl_ca_certs=str(folder / "ca.pem"))
        yield Secured(server, folder / "ca.pem", folder / "other.pem")


def tls_is_possible() -> bool:
    """Whether there is a server that was built with TLS. The packaged Valkey was not."""
    return shutil.which("redis-server") is not None


def _options(port: int) -> list[str]:
    options = {"bind": HOST, "port": str(port), "save": "", "appendonly": "no", "repl-diskless-sync-delay": "0"}
    # A replica is told of once it has been pinged.
    options["repl-ping-replica-period"] = "1"
    return [word for name, value in options.items() for word in (f"--{name}", value)]


@asynccontextmanager
async def _folder() -> AsyncIterator[tuple[Path, AsyncExitStack]]:
    with TemporaryDirectory(ignore_cleanup_errors=True) as name:
        async with AsyncExitStack() as stack:
            yield Path(name), stack


async def _started(stack: AsyncExitStack, folder: Path, options: Sequence[str], port: int, **login: Any) -> RedisServer:
    command = [binary(real="ssl" in login), *options]
    server = RedisServer(folder / str(port), port, command, **login)
    stack.push_async_callback(server.kill)
    await server.start()
    return server


def _state(fields: list[bytes] | dict[bytes, bytes]) -> tuple[str, str]:
    pairs = fields if isinstance(fields, dict) else dict(zip(fields[::2], fields[1::2], strict=True))
    state = {_text(name): _text(value) for name, value in pairs.items()}
    return state["num-slaves"], state["num-other-sentinels"]


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


async def _name(server: RedisServer) -> str:
    return _text(await server.ask("CLUSTER", "MYID"))


async def _all(servers: list[RedisServer], holds: Any) -> None:
    async def everywhere() -> bool:
        for server in servers:
            lines = _text(await server.ask("CLUSTER", "INFO")).split()
            if not holds(dict(line.split(":", 1) for line in lines)):
                return False
        return True

    await until(everywhere)


async def _follows(replica: RedisServer) -> bool:
    role = await replica.ask("ROLE")
    return bool(role[0] == b"slave" and role[3] == b"connected")


async def _listed(cluster: Cluster) -> bool:
    """Whether every node tells of every replica."""
    wanted = 3 if cluster.replicas else 2
    for server in (*cluster.masters, *cluster.replicas):
        ranges = await server.ask("CLUSTER", "SLOTS")
        if len(ranges) < len(cluster.masters) or any(len(entry) < wanted + 1 for entry in ranges):
            return False
    return True

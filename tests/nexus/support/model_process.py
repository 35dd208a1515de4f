"""A model server as a process of its own, for services that are processes too."""

import json
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import anyio
import httpx2

from tests.nexus.support.model_server import HOST
from tests.nexus.support.waiting import until


class ModelProcess:
    """A model that runs elsewhere.

    Attributes:
        base_url: what `llm.base_url` is set to.
    """

    def __init__(self, port: int) -> None:
        self.base_url = f"http://{HOST}:{port}/v1"
        self._control = f"http://{HOST}:{port}"

    async def behave(self, name: str, *arguments: Any, times: int | None = None) -> None:
        """Do this from now on, or with the next `times` calls. The names are those of BEHAVIOURS."""
        async with httpx2.AsyncClient() as client:
            order = {"name": name, "args": arguments, "times": times}
            (await client.put(f"{self._control}/behaviour", json=order)).raise_for_status()

    async def asked(self) -> list[dict[str, Any]]:
        """The bodies of the calls until now."""
        async with httpx2.AsyncClient() as client:
            bodies: list[dict[str, Any]] = json.loads((await client.get(f"{self._control}/asked")).content)
            return bodies


@asynccontextmanager
async def model_process() -> AsyncIterator[ModelProcess]:
    """A server that listens; killed at the end."""
    root = Path(__file__).parents[3]
    with TemporaryDirectory() as folder:
        port_file = anyio.Path(folder, "port")
        command = [sys.executable, "-m", "tests.nexus.support.model_server", "--port-file", str(port_file)]
        async with await anyio.open_process(command, cwd=root, stdout=subprocess.DEVNULL, stderr=None) as process:
            try:
                await until(port_file.exists)
                yield ModelProcess(int(await port_file.read_text()))
            finally:
                process.kill()

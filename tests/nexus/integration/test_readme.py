"""The README's loop does what the README says, on the servers that `nexus serve --embedded` starts."""

import os
import re
import sys
from pathlib import Path

import anyio
import pytest

from nexus.bootstrap import open_nexus
from nexus.config.loading import load_settings
from nexus.embedded import embedded_servers

pytestmark = pytest.mark.once

README = Path(__file__).parents[3] / "README.md"


async def test_the_loop_remembers() -> None:
    """The second context holds the first question and the answer to it."""
    (loop,) = re.findall(r"```python\n(.*?)```", README.read_text("utf-8"), re.DOTALL)
    async with embedded_servers(None) as servers:
        variables = {"NEXUS_BUS__URL": servers.redis_url, "NEXUS_DATABASE__URI": servers.mongo_uri}
        async with open_nexus(load_settings(None, variables)):
            done = await anyio.run_process([sys.executable, "-c", loop], env={**os.environ, **variables})
    first, second = done.stdout.decode().split("[SHARED_MEMORY ")[1:]
    assert first.startswith("count=0]")
    assert second.startswith("count=2]")
    assert "Human: The beans are ripe.\n  Nexus: You said: The beans are ripe. []" in second

"""The loops that the pages print do what the pages say: they are run as they stand there."""

import json
import os
import re
import shlex
import shutil
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio.streams.text import TextReceiveStream
from pymongo import MongoClient

from nexus.bootstrap import open_nexus
from nexus.client import new_run
from nexus.config.loading import load_settings
from nexus.connections import open_client
from tests.nexus.support.provider_endpoints import ANSWER, REMEMBERED, provider_endpoints
from tests.nexus.support.redis_server import redis_server
from tests.nexus.support.waiting import PATIENCE_S, until

ROOT = Path(__file__).parents[3]
MEMORY = """[SHARED_MEMORY count=2]
Recent conversation memory:

[TIME] Human: Do I need an umbrella in Oslo?
  Nexus: [tool_use:weather, city:Oslo]
Yes, it rains from noon."""


def blocks(page: str, language: str) -> list[str]:
    """The program texts of a page in a language."""
    fenced = re.findall(r"^```(\w*)\n(.*?)^```", (ROOT / page).read_text("utf-8"), re.DOTALL | re.MULTILINE)
    return [text for named, text in fenced if named == language]


def of_mode(block: str, mode: str) -> list[str]:
    """The lines of a block without those for the other mode."""
    other = "streams" if mode == "pubsub" else "pubsub"
    return [line for line in block.splitlines() if not line.endswith(f"# bus.mode: {other}")]


def without_times(text: str) -> str:
    """The memory, which begins with a time."""
    return re.sub(r"\[\d{4}-\d\d-\d\d \d\d:\d\d\]", "[TIME]", text)


@pytest.fixture(params=["pubsub", "streams"])
def mode(request: pytest.FixtureRequest) -> str:
    """The mode of the bus."""
    return str(request.param)


@asynccontextmanager
async def served(url: str, mode: str, mongo_uri: str, database: str) -> AsyncIterator[None]:
    """A service on that Redis, without a prefix."""
    variables = {
        "NEXUS_BUS__URL": url,
        "NEXUS_BUS__MODE": mode,
        "NEXUS_DATABASE__URI": mongo_uri,
        "NEXUS_DATABASE__NAME": database,
        "NEXUS_SYSTEM__HTTP_PORT": "0",
    }
    async with open_nexus(load_settings(None, variables)):
        yield


async def test_the_loop_remembers(mode: str, mongo_uri: str, database_name: str, tmp_path: Path) -> None:
    """It finds the address that an embedded service has left in its folder; the next run has the whole run before."""
    (loop,) = blocks("README.md", "python")
    async with redis_server() as server, served(server.url, mode, mongo_uri, database_name):
        (tmp_path / ".nexus").mkdir()
        (tmp_path / ".nexus" / "servers.json").write_text(json.dumps({"bus": server.url, "database": mongo_uri}))
        environment = {**os.environ, "NEXUS_BUS__MODE": mode}
        done = await anyio.run_process([sys.executable, "-c", loop], env=environment, cwd=tmp_path)
    assert without_times(done.stdout.decode()) == MEMORY + "\n"


@pytest.mark.skipif(not shutil.which("redis-cli"), reason="no redis-cli")
async def test_the_loop_without_a_library(mode: str, mongo_uri: str, database_name: str, tmp_path: Path) -> None:
    """The same by redis-cli, with the lines for the mode."""
    (loop,) = blocks("docs/orchestrators.md", "sh")
    (reads,) = [block for block in blocks("docs/orchestrators.md", "") if "subscribe" in block]
    (read,) = of_mode(reads, mode)
    async with redis_server() as server, served(server.url, mode, mongo_uri, database_name):
        command = tmp_path / "redis-cli"
        command.write_text(f'#!/bin/sh\nexec {shutil.which("redis-cli")} -u {server.url} "$@"\n')
        command.chmod(0o700)
        environment = {**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
        script = "\n".join(["set -e", *of_mode(loop, mode)])

        async def shell(text: str) -> str:
            return (await anyio.run_process(["/bin/sh", "-c", text], env=environment)).stdout.decode()

        if mode == "streams":
            await shell(script)

            async def answered() -> str:
                found = await shell(read)
                return found if '"ask_3"' in found else ""

            answers = await until(answered)
        else:
            async with await anyio.open_process(["/bin/sh", "-c", f"exec {read}"], env=environment) as reading:
                assert reading.stdout is not None
                heard = TextReceiveStream(reading.stdout)
                with anyio.fail_after(PATIENCE_S):
                    # It says that it has subscribed.
                    answers = await heard.receive()
                    await shell(script)
                    while '"ask_3"' not in answers or not answers.endswith("\n"):
                        answers += await heard.receive()
                reading.terminate()
    last = next(line for line in answers.splitlines() if '"ask_3"' in line)
    assert without_times(json.loads(last)["content"]["messages"][2]["content"]) == MEMORY


async def test_a_search(mode: str, mongo_uri: str, database_name: str, tmp_path: Path) -> None:
    """It prints what was said, when, in which session and by whom."""
    (program,) = [each for each in blocks("docs/orchestrators.md", "python") if "search_memory" in each]
    async with redis_server() as server, served(server.url, mode, mongo_uri, database_name):
        async with open_client(server.url, mode="streams" if mode == "streams" else "pubsub") as client:
            await client.build(new_run("ada", "My umbrella is at the office.", session_id="home"), timeout=PATIENCE_S)

            async def is_found() -> bool:
                return bool((await client.search_memory("ada", "umbrella", timeout=PATIENCE_S))["hits"])

            await until(is_found)
        environment = {**os.environ, "NEXUS_BUS__URL": server.url, "NEXUS_BUS__MODE": mode}
        done = await anyio.run_process([sys.executable, "-c", program], env=environment, cwd=tmp_path)
    (line,) = done.stdout.decode().splitlines()
    assert re.fullmatch(r"\d{4}-\d\d-\d\d home HUMAN My umbrella is at the office\.", line)


@pytest.mark.once
@pytest.mark.heavy
@pytest.mark.parametrize(
    ("sdk", "mode"), [("openai", "pubsub"), ("anthropic", "streams"), ("google", "pubsub")], indirect=["mode"]
)
async def test_the_loop_with_an_sdk(sdk: str, mode: str, mongo_uri: str, database_name: str, tmp_path: Path) -> None:
    """The SDK takes the context as it is, its answers are understood whole, and the next run remembers."""
    tools, *programs = blocks("docs/orchestrators.md", "python")
    (program,) = [each for each in programs if re.search(rf"^from {sdk}\b", each, re.MULTILINE)]
    (tmp_path / "tools.py").write_text(tools)
    async with (
        redis_server() as server,
        served(server.url, mode, mongo_uri, database_name),
        provider_endpoints() as endpoints,
    ):
        variables = {"NEXUS_BUS__URL": server.url, "NEXUS_BUS__MODE": mode, **endpoints.environment}
        run = partial(anyio.run_process, env={**os.environ, **variables}, cwd=tmp_path)
        async with open_client(server.url, mode="streams" if mode == "streams" else "pubsub") as client:

            async def offered() -> bool:
                return bool((await client.build(new_run("bob", "hi"), timeout=PATIENCE_S))["tools"])

            await run([sys.executable, "tools.py"])
            await until(offered)
        done = await run([sys.executable, "-c", program], check=False)
    assert done.returncode == 0, done.stderr.decode()
    assert (done.stdout.decode().splitlines(), endpoints.faults) == ([ANSWER, REMEMBERED], [])
    assert endpoints.asked == 3


@pytest.mark.once
@pytest.mark.heavy
async def test_a_history_of_langchain(
    mongo_uri: str, database_name: str, mongo_janitor: MongoClient[dict[str, Any]], tmp_path: Path
) -> None:
    """It is written in the form that the import reads; imported twice it is stored once."""
    (program,) = [each for each in blocks("docs/orchestrators.md", "python") if "langchain" in each]
    (line,) = [each for each in blocks("docs/orchestrators.md", "") if "--from langchain" in each]
    command = shlex.split(line.partition("[")[0])
    variables = {"NEXUS_DATABASE__URI": mongo_uri, "NEXUS_DATABASE__NAME": database_name}
    run = partial(anyio.run_process, env={**os.environ, **variables}, cwd=tmp_path)
    await run([sys.executable, "-c", program])
    for _ in range(2):
        await run([sys.executable, "-m", *command])
    rows = mongo_janitor[database_name]["messages"].find({"owner_key": "ada"}).sort("_id")
    assert [(row["role"], row["content"]) for row in rows] == [
        ("HUMAN", "Do I need an umbrella in Oslo?"),
        ("AI", "Yes, it rains from noon."),
    ]

"""A client without settings finds its bus, and needs nothing but its own packages (contract §12)."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from nexus.adapters.redis.urls import parse_redis_url
from nexus.connections import open_client
from nexus.core.errors import BusUnavailableError, ConfigError

PYPROJECT = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text("utf-8"))
# Packages that are imported under another name than theirs.
MODULES = {"quicktok-v1": "quicktok", "pyyaml": "yaml", "prometheus-client": "prometheus_client"}
# Of pymongo.
MORE = ("bson", "gridfs")
NOWHERE = "redis://127.0.0.1:1/0"


async def client_at(**given: Any) -> str:
    """Why no client was had there."""
    with pytest.raises((ConfigError, BusUnavailableError)) as caught:
        async with open_client(**given, connect_s=0.2):
            pass
    return str(caught.value)


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder without an embedded service."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


async def test_without_an_address() -> None:
    """Both places are named."""
    assert await client_at() == (
        "no Redis is named: NEXUS_BUS__URL is not set, and there is no .nexus/servers.json here, "
        "which `nexus serve --embedded` leaves in the folder where it runs"
    )


@pytest.mark.parametrize("text", ["", "[]", "{", '{"database": "x"}'])
async def test_a_file_without_an_address(elsewhere: Path, text: str) -> None:
    """Is said to be one."""
    (elsewhere / ".nexus").mkdir()
    (elsewhere / ".nexus" / "servers.json").write_text(text)
    assert await client_at() == (
        "no Redis is named: NEXUS_BUS__URL is not set, and .nexus/servers.json holds no address of a bus"
    )


async def test_an_embedded_service(elsewhere: Path) -> None:
    """Of this folder is found by its file."""
    (elsewhere / ".nexus").mkdir()
    (elsewhere / ".nexus" / "servers.json").write_text(f'{{"bus": "{NOWHERE}"}}')
    assert "0.2 s" in await client_at()


async def test_the_environment(elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counts before the file, and what is given before the environment."""
    (elsewhere / ".nexus").mkdir()
    (elsewhere / ".nexus" / "servers.json").write_text("{")
    monkeypatch.setenv("NEXUS_BUS__URL", "http://x")
    assert "begins with one of" in await client_at()
    assert "0.2 s" in await client_at(url=NOWHERE)
    monkeypatch.setenv("NEXUS_BUS__MODE", "memory")
    refused = "bus.mode (NEXUS_BUS__MODE): 'memory' is not for a client; allowed: pubsub, streams"
    assert await client_at(url=NOWHERE) == refused
    assert "0.2 s" in await client_at(url=NOWHERE, mode="pubsub")


@pytest.mark.parametrize(
    ("url", "place"),
    [
        ("redis://user:secret@host:1/2", "host:1/2"),
        ("rediss://", "localhost:6379/0"),
        ("unix:///run/redis.sock?db=1", "/run/redis.sock"),
        ("redis+sentinel://a,b:2/main", "a:26379,b:2/main"),
        ("redis+cluster://:secret@a,b", "a:6379,b:6379"),
    ],
)
def test_where_it_leads(url: str, place: str) -> None:
    """Without a word of a password."""
    assert parse_redis_url(url).place == place


def test_the_client_alone() -> None:
    """It is imported where nothing of the service's own packages is."""
    named = [re.split(r"[<>=\[]", line)[0] for line in PYPROJECT["project"]["optional-dependencies"]["server"]]
    missing = {MODULES.get(name, name) for name in named} | {*MORE}
    program = f"""
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {missing}:
            raise ModuleNotFoundError(name, name=name)
sys.meta_path.insert(0, Missing())
import nexus.connections, nexus.client
try:
    import nexus.__main__
    nexus.__main__.main()
except SystemExit as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == (
        "nexus: typer is missing: pip install 'nexus-context[server]'\n",
        "",
    )


@pytest.mark.parametrize("name", ["motor", "typer", "openai"])
def test_what_is_missing_is_what_the_service_needs(name: str) -> None:
    """The service's packages are there only where they are asked for."""
    assert not any(line.startswith(name) for line in PYPROJECT["project"]["dependencies"])

"""How the programs start, and how they do not (contract §9, §10)."""

import json

import pytest

from tests.nexus.e2e.harness import PATIENCE_S, Environment, serving, starting
from tests.nexus.support.desk import Desk, run_program
from tests.nexus.support.waiting import until


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"NEXUS_BUS__MODE": "carrier pigeon"}, "environment variable NEXUS_BUS__MODE: bus.mode: "),
        ({"NEXUS_BUS__URL": "http://user:canary@host"}, "bus.url: "),
        ({"NEXUS_DATABASE__URI": "mongo://user:canary@host"}, "database.uri: "),
        ({"NEXUS_TOOLS__MODULES": "[no_such_module]"}, "tools.modules: no_such_module: cannot be imported"),
        ({"NEXUS_CONFIG": "no-such-file.yml"}, "no-such-file.yml: cannot be read"),
    ],
)
def test_wrong_settings(variables: Environment, said: str) -> None:
    """They stop the start with one line that names them, and no password."""
    refused = run_program("serve", environment=variables).fault
    assert said in refused
    assert "canary" not in refused


@pytest.mark.usefixtures("mode")
async def test_a_start_that_waits_for_redis(environment: Environment) -> None:
    """A service that finds no Redis at its start waits for it; SIGTERM ends it, and it exits 0."""
    async with starting(environment | {"NEXUS_BUS__URL": "redis://127.0.0.1:1/0"}) as service:
        await service.logged("bus_disconnected")
        assert await service.stop() == 0
    assert service.errors == []


@pytest.mark.usefixtures("mode")
async def test_the_commands(environment: Environment) -> None:
    """`nexus request` asks for a sub-agent's context, in a provider's format; `nexus doctor` finds all well."""
    agent = {"kind": "sub", "id": "scout", "role": "You look things up.", "task_prompt": "Find the last frost."}
    words = ["--owner", "ada", "--input", "Go.", "--layout", "agent", "--format", "gemini", "--json"]
    metadata = json.dumps({"agent": agent, "layout": "dialogue", "session_id": "s1"})
    async with serving(environment):
        words += ["--metadata", metadata, "--timeout", str(PATIENCE_S)]
        content = json.loads(await Desk("request", environment).said(*words))
        await Desk("doctor", environment).said()

        async def is_recorded() -> bool:
            listed = await Desk("context", environment).said("list", "--owner", "ada", "--session", "s1", "--json")
            return bool(json.loads(listed))

        await until(is_recorded)
    ((*said, meta),) = [[part["text"] for part in message["parts"]] for message in content["messages"]]
    assert said == ["Find the last frost.", "## Agent Role Definition\n\nYou look things up.", "Go."]
    assert meta.startswith("[CONTEXT_META]")
    assert (content["layout"], content["format"], "system" in content) == ("agent", "gemini", False)


async def test_a_doctor_that_finds_something_missing(environment: Environment) -> None:
    """It exits 1, and says what to do."""
    away = {"NEXUS_DATABASE__URI": "mongodb://user:canary@127.0.0.1:1"}
    ill = await Desk("doctor", environment | away).run(NEXUS_DATABASE__SERVER_SELECTION_TIMEOUT_MS="100")
    assert ill.returncode == 1
    assert "wrong  database: " in ill.stdout
    assert "To do: see that MongoDB runs" in ill.stdout
    assert "canary" not in ill.stdout + ill.stderr


async def test_the_demo() -> None:
    """It plays the conversation on servers of its own."""
    played = await Desk("demo", {"NEXUS_CONFIG": ""}).said()
    for block in ("CORE_IDENTITY", "CAPABILITIES", "SHARED_MEMORY", "FRIENDS_INFO", "THIS_MOMENT"):
        assert f"[{block}]" in played
    assert "tool_use:web_search" in played

"""`nexus demo`: plays a sample conversation over a real bus as an orchestrator, and shows the context of its end.

Only the model and the tools are simulated: their answers come from the sample.
"""

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any, Final

import anyio
import typer
from pydantic import SecretStr
from rich.console import Console

from nexus.bootstrap import Nexus, open_nexus
from nexus.cli.terminal import show_context
from nexus.client import ContextClient
from nexus.config import BusSettings, DatabaseSettings, Settings
from nexus.connections import open_client
from nexus.core.errors import NexusError
from nexus.core.models import Message, Role, Run, Topics
from nexus.core.wire import encode
from nexus.embedded import embedded_servers
from nexus.log import configure_logging
from nexus.services.records.explain import explain_content

app = typer.Typer(add_completion=False)
_TIMEOUT_S: Final = 20.0
_PAUSE_S: Final = 0.02


def load_sample(name: str) -> Any:
    """A shipped sample: `conversation`, `tools`, `agent_session` (rows as they are stored), or `turns` of it."""
    return json.loads(resources.files("nexus").joinpath("samples", f"{name}.json").read_text(encoding="utf-8"))


@app.command()
def command() -> None:
    """Play a sample conversation through servers of its own and show the context that comes out."""
    configure_logging("error", "console")
    anyio.run(play, Console())


async def play(console: Console) -> None:
    """Start servers and the service, play the conversation, and show the answer to its closing question."""
    conversation, tools = load_sample("conversation"), load_sample("tools")
    console.print("Starting a Valkey and a MongoDB-compatible server on free loopback ports ...")
    async with embedded_servers(None) as servers:
        settings = Settings(
            bus=BusSettings(url=SecretStr(servers.redis_url)),
            # The packaged store is slow.
            database=DatabaseSettings(uri=SecretStr(servers.mongo_uri), timeout_ms=10_000),
        )
        console.print("Starting Nexus on them ...")
        async with open_nexus(settings) as nexus, open_client(servers.redis_url) as client:
            await _Orchestrator(console, nexus, client, conversation, conversation["owner_key"]).play(tools)


@dataclass(slots=True)
class _Orchestrator:
    console: Console
    nexus: Nexus
    client: ContextClient
    conversation: Mapping[str, Any]
    owner: str
    published: int = 0

    async def play(self, tools: Sequence[Mapping[str, Any]]) -> None:
        await self._register(tools)
        for run in self.conversation["runs"]:
            await self._play_run(run)
        question = self.conversation["question"]
        self.console.print(f"\nThe question: [bold]{question['text']}[/bold]\n")
        show_context(self.console, explain_content(await self._ask("run_demo_question", question)))

    async def _register(self, tools: Sequence[Mapping[str, Any]]) -> None:
        await self.client.register_tools(tools)
        names = [tool["function"]["name"] for tool in tools]

        async def are_registered() -> bool:
            return {*names} <= {*self.nexus.registry.list_tool_names()}

        await _until(are_registered, "the tools are registered")
        self.console.print(f"Registered {len(names)} tools over the bus: {', '.join(names)}")

    async def _play_run(self, run: Mapping[str, Any]) -> None:
        content = await self._ask(run["run_id"], run["input"])
        self.published += 1
        size = 0
        for step in run["steps"]:
            size += await self._publish(run["run_id"], step)
        await _until(self._is_recorded, "the conversation is recorded")
        history, milliseconds = content["context"]["history"], content["context"]["timings_ms"]["build"]
        self.console.print(
            f"  {run['run_id']}: context of {history['shown']:2} messages in {milliseconds:5.1f} ms, "
            f"then {len(run['steps'])} results, {size / 1024:.1f} KB"
        )

    async def _ask(self, run_id: str, input_: Mapping[str, Any]) -> dict[str, Any]:
        human = Message(
            run_id=run_id, owner_key=self.owner, role=Role.HUMAN, content=input_["text"], timestamp=input_["at"]
        )
        metadata = {
            "user_profile": self.conversation["user_profile"],
            "client_timestamp_utc": input_["at"],
            "client_timezone_offset": self.conversation["timezone_offset"],
        }
        run = Run(id=run_id, owner_key=self.owner, history=[human], metadata=metadata)
        return await self.client.build(run, timeout=_TIMEOUT_S)

    async def _publish(self, run_id: str, step: Mapping[str, Any]) -> int:
        if step["kind"] == "ai":
            topic, role = Topics.LLM_RESULTS, Role.AI
            content = {"content": step["text"], "tool_calls": step["tool_calls"]}
        else:
            topic, role = Topics.TOOLS_RESULTS, Role.TOOL
            content = {key: step[key] for key in ("status", "tool_name", "call_id")} | {"result": _result(step)}
        message = Message(run_id=run_id, owner_key=self.owner, role=role, content=content, timestamp=step["at"])
        payload = encode(message)
        await self.nexus.bus.publish(topic, payload)
        self.published += 1
        return len(payload)

    async def _is_recorded(self) -> bool:
        return len(await self.nexus.persistence.get_history(self.owner, limit=1_000)) >= self.published


async def _until(holds: Callable[[], Awaitable[bool]], what: str) -> None:
    with anyio.move_on_after(_TIMEOUT_S):
        # Nothing on a bus says that a subscriber has finished.
        while not await holds():  # noqa: ASYNC110  # there is no event to wait for
            await anyio.sleep(_PAUSE_S)
        return
    raise NexusError(f"not in time: {what}")


def _result(step: Mapping[str, Any]) -> str:
    text: str = step["result"]
    wanted = step.get("result_kb", 0) * 1024
    return text if len(text.encode()) >= wanted else (text + "\n") * (wanted // len(text.encode()) + 1)

"""`nexus demo`: the shipped conversation goes over a real bus, and the context that comes back is shown.

It does what an orchestrator does: registers tools, asks for a context at the start of each run, and publishes what the
model and the tools answered. Nothing is simulated but the model and the tools themselves.
"""

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from importlib import resources
from typing import Any, Final

import anyio
from pydantic import SecretStr
from rich.console import Console
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from nexus.bootstrap import Nexus, open_nexus
from nexus.client import ContextClient
from nexus.config import BusSettings, DatabaseSettings, Settings
from nexus.connections import open_client
from nexus.core.errors import NexusError
from nexus.core.models import Message, Role, Run
from nexus.core.topics import Topics
from nexus.core.wire import encode
from nexus.embedded import embedded_servers
from nexus.services.context.pinned import PINNED_TAGS

_SHOWN_LINES: Final = 40
_PATIENCE_S: Final = 20.0
_PAUSE_S: Final = 0.02


def load_sample(name: str) -> Any:
    """A shipped sample: `conversation`, `tools`, `agent_session` (rows as they are stored), or `turns` of it."""
    return json.loads(resources.files("nexus").joinpath("samples", f"{name}.json").read_text(encoding="utf-8"))


async def play(console: Console) -> None:
    """Start servers, play the conversation, ask the closing question and show the answer."""
    conversation, tools = load_sample("conversation"), load_sample("tools")
    console.print("Starting a Valkey and a MongoDB-compatible server on free loopback ports ...")
    async with embedded_servers(None) as servers:
        settings = Settings(
            bus=BusSettings(url=SecretStr(servers.redis_url)),
            # The packaged store is slow; see DESIGN, parts.
            database=DatabaseSettings(uri=SecretStr(servers.mongo_uri), timeout_ms=10_000),
        )
        console.print("Starting Nexus on them ...")
        async with open_nexus(settings) as nexus, open_client(servers.redis_url) as client:
            await _Orchestrator(console, nexus, client, conversation).play(tools)


class _Orchestrator:
    def __init__(self, console: Console, nexus: Nexus, client: ContextClient, conversation: Mapping[str, Any]) -> None:
        self._console = console
        self._nexus = nexus
        self._client = client
        self._conversation = conversation
        self._owner: str = conversation["owner_key"]
        self._published = 0

    async def play(self, tools: Sequence[Mapping[str, Any]]) -> None:
        await self._register(tools)
        for run in self._conversation["runs"]:
            await self._play_run(run)
        question = self._conversation["question"]
        self._console.print(f"\nThe question: [bold]{question['text']}[/bold]\n")
        content = await self._ask("run_demo_question", question)
        show_context(self._console, content)

    async def _register(self, tools: Sequence[Mapping[str, Any]]) -> None:
        for tool in tools:
            message = Message(run_id="setup", owner_key="operator", role=Role.SYSTEM, content=tool)
            await self._nexus.bus.publish(Topics.TOOLS_REGISTER, encode(message))
        names = [tool["function"]["name"] for tool in tools]

        async def all_known() -> bool:
            return all(map(self._nexus.registry.is_tool_registered, names))

        await _until(all_known, "the tools are registered")
        self._console.print(f"Registered {len(names)} tools over the bus: {', '.join(names)}")

    async def _play_run(self, run: Mapping[str, Any]) -> None:
        content = await self._ask(run["run_id"], run["input"])
        self._published += 1
        size = 0
        for step in run["steps"]:
            size += await self._publish(run["run_id"], step)
        await self._recorded()
        history, milliseconds = content["context"]["history"], content["context"]["timings_ms"]["build"]
        self._console.print(
            f"  {run['run_id']}: context of {history['shown']:2} messages in {milliseconds:5.1f} ms, "
            f"then {len(run['steps'])} results, {size / 1024:.1f} KB"
        )

    async def _ask(self, run_id: str, given: Mapping[str, Any]) -> dict[str, Any]:
        human = Message(
            run_id=run_id, owner_key=self._owner, role=Role.HUMAN, content=given["text"], timestamp=given["at"]
        )
        metadata = {
            "user_profile": self._conversation["user_profile"],
            "client_timestamp_utc": given["at"],
            "client_timezone_offset": self._conversation["timezone_offset"],
        }
        run = Run(id=run_id, owner_key=self._owner, history=[human], metadata=metadata)
        return await self._client.build(run, timeout=_PATIENCE_S)

    async def _publish(self, run_id: str, step: Mapping[str, Any]) -> int:
        if step["kind"] == "ai":
            topic, role = Topics.LLM_RESULTS, Role.AI
            content = {"content": step["text"], "tool_calls": step["tool_calls"]}
        else:
            topic, role = Topics.TOOLS_RESULTS, Role.TOOL
            content = {key: step[key] for key in ("status", "tool_name", "call_id")} | {"result": _result(step)}
        message = Message(run_id=run_id, owner_key=self._owner, role=role, content=content, timestamp=step["at"])
        payload = encode(message)
        await self._nexus.bus.publish(topic, payload)
        self._published += 1
        return len(payload)

    async def _recorded(self) -> None:
        async def all_there() -> bool:
            return len(await self._nexus.persistence.get_history(self._owner, limit=1_000)) >= self._published

        await _until(all_there, "the conversation is recorded")


async def _until(holds: Callable[[], Awaitable[bool]], what: str) -> None:
    with anyio.move_on_after(_PATIENCE_S):
        # Over a bus nobody is told that somebody else is done: it has to be looked for.
        while not await holds():  # noqa: ASYNC110  # nobody signals it
            await anyio.sleep(_PAUSE_S)
        return
    raise NexusError(f"not in time: {what}")


def show_context(console: Console, content: Mapping[str, Any]) -> None:
    """Print what is missing from an answer, its messages, each in a frame, and the manifest as a table."""
    _note(console, "Missing", content["degraded"])
    if "system" in content:
        shown = Text(_shortened(_readable(content["system"])))
        console.print(Panel(shown, title=Text("system"), title_align="left"))
    labels = _labels(content["context"]["blocks"])
    for index, message in enumerate(content["messages"]):
        label, style = labels.get(index, ("", "none")) if "format" not in content else ("", "none")
        title = Text(f"{index + 1}. {message['role']}{label}")
        console.print(Panel(Text(_shortened(_readable(message))), title=title, title_align="left", border_style=style))
    console.print(_manifest_table(content["context"]["blocks"]))
    context = content["context"]
    history, prefix = context["history"], context["prefix"]
    merged = f"{history['merged']} messages after merging, " if context["layout"] == "dialogue" else ""
    if context["layout"] != "thinking":
        console.print(
            f"History: {history['fetched']} rows read, {merged}{history['shown']} messages shown, "
            f"{history['repaired']} repaired or left out."
        )
    console.print(
        f"Prefix that the next build shares: {prefix['messages']} messages, sha256 {prefix['sha256'][:12]}..."
    )
    if timings := context["timings_ms"]:
        console.print("Timings: " + ", ".join(f"{stage} {ms:.1f} ms" for stage, ms in timings.items()))
    _note(console, "Notes", context["notes"])


def _labels(blocks: Sequence[Mapping[str, Any]]) -> dict[int, tuple[str, str]]:
    """By its index, what stands above each message besides its role, and the style of its frame."""
    labels: dict[int, tuple[str, str]] = {}
    for block in blocks:
        pinned = block["tag"] in PINNED_TAGS
        size = f"  [{block['tag']}]  {block['bytes']} bytes{', pinned' if pinned else ''}"
        style = "bold green" if pinned else "none"
        # Several blocks may be one message.
        before, _ = labels.get(block["index"], ("", style))
        labels[block["index"]] = (before + size, style)
        for index in range(block["index"] + 1, block["index"] + block.get("messages", 1)):
            labels[index] = (f"  [{block['tag']}]", style)
    return labels


def _note(console: Console, label: str, items: Sequence[str]) -> None:
    if items:
        console.print(f"{label}: {'; '.join(items)}", style="yellow", markup=False)


def _manifest_table(blocks: Sequence[Mapping[str, Any]]) -> Table:
    table = Table(title="Where it came from", title_justify="left")
    table.add_column("block")
    names = ("bytes", "tokens", "sources", "truncated", "dropped", "escaped")
    for name in names:
        table.add_column(name, justify="right")
    for block in blocks:
        counts = [len(block[name]) if name == "sources" else block.get(name, "") for name in names]
        table.add_row(block["tag"], *map(str, counts))
    return table


def _readable(message: Any) -> str:
    """A message of the OpenAI form as text and its calls, one a line; anything else as JSON."""
    content = message.get("content", "") if isinstance(message, Mapping) and "parts" not in message else message
    if content is not None and not isinstance(content, str):
        return json.dumps(content, ensure_ascii=False, indent=2)
    lines = [content] if content else []
    for call in message.get("tool_calls") or ():
        function = call["function"]
        lines.append(f"-> {function['name']}({function['arguments']})  {call['id']}")
    if message["role"] == "tool":
        lines.insert(0, f"<- {message['tool_call_id']}")
    return "\n".join(lines)


def _shortened(text: str) -> str:
    lines = text.split("\n")
    if len(lines) <= _SHOWN_LINES:
        return text
    half = _SHOWN_LINES // 2
    return "\n".join([*lines[:half], f"... ({len(lines) - 2 * half} lines not shown here) ...", *lines[-half:]])


def _result(step: Mapping[str, Any]) -> str:
    text: str = step["result"]
    wanted = step.get("result_kb", 0) * 1024
    return text if len(text.encode()) >= wanted else (text + "\n") * (wanted // len(text.encode()) + 1)

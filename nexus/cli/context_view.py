"""Shows a context that Nexus answered with in a terminal: its messages, its manifest, its timings."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from rich.console import Console
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from nexus.services.context.pinned import PINNED_TAGS

_SHOWN_LINES: Final = 40


def show_context(console: Console, content: Mapping[str, Any]) -> None:
    """Print the missing parts of an answer, its messages, each in a frame, and the manifest as a table."""
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
    """The title of each message besides its role, and the style of its frame, by the index of the message."""
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

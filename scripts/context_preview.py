"""Assemble a context from the shipped sample conversation, by the real code and without servers, and show it."""

import json
from typing import Annotated, Any

import typer
from rich.console import Console

from nexus.demo import load_sample, show_context
from nexus.services.context.layouts import DialogueInput, assemble_dialogue
from nexus.services.context.request import LAYOUTS


def main(
    raw: Annotated[bool, typer.Option("--raw", help="Print the messages as JSON.")] = False,
    layout: Annotated[str, typer.Option(help=f"One of: {', '.join(LAYOUTS)}.")] = "dialogue",
    limit: Annotated[int, typer.Option(min=0, max=200, help="Messages in the memory.")] = 20,
) -> None:
    """Show what a model would be given for the closing question of the sample conversation."""
    if layout not in LAYOUTS:
        raise typer.BadParameter(f"{layout!r} is unknown; allowed: {', '.join(LAYOUTS)}", param_hint="--layout")
    sample = load_sample("conversation")
    assembled = assemble_dialogue(
        DialogueInput(
            tools=sorted(load_sample("tools"), key=lambda tool: str(tool["function"]["name"])),
            history=[row for run in sample["runs"] for row in _rows(run)],
            user_profile=sample["user_profile"],
            current_input=sample["question"]["text"],
            current_run_id="run_preview",
            timestamp_utc=sample["question"]["at"],
            timezone_offset=sample["timezone_offset"],
            history_size=limit,
            input_id="preview",
        )
    )
    if raw:
        typer.echo(json.dumps(assembled.messages, ensure_ascii=False, indent=2))
        return
    manifest = {**assembled.manifest, "notes": [], "timings_ms": {}}
    show_context(Console(), {"messages": assembled.messages, "context": manifest, "degraded": []})


def _rows(run: dict[str, Any]) -> list[dict[str, Any]]:
    """The rows that would have been recorded of a run of the sample."""
    first = {"role": "HUMAN", "content": run["input"]["text"], "timestamp": run["input"]["at"], "metadata": {}}
    rows = [first]
    for step in run["steps"]:
        if step["kind"] == "ai":
            metadata = {"tool_calls": step["tool_calls"] or None}
            rows.append({"role": "AI", "content": step["text"], "timestamp": step["at"], "metadata": metadata})
        else:
            rows.append({"role": "TOOL", "content": step["result"], "timestamp": step["at"], "metadata": {}})
    return [{"id": f"{run['run_id']}_{i}", "run_id": run["run_id"], **row} for i, row in enumerate(rows)]


if __name__ == "__main__":
    typer.run(main)

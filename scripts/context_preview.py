"""Assemble a context from a shipped sample, by the real code and without servers, and show it."""

import json
from collections.abc import Collection, Sequence
from typing import Annotated, Any, Final, get_args

import typer
from rich.console import Console

from nexus.adapters.tokenizer import open_tokenizer
from nexus.cli.demo import load_sample
from nexus.cli.terminal import show_context
from nexus.core.turns import LEVELS, Level, ThinkingRound
from nexus.core.working_memory import Detail, Overview, Snapshot
from nexus.services.context.agent import AgentInput, fit_agent
from nexus.services.context.blocks import Assembled, listed
from nexus.services.context.budget import Budget, close
from nexus.services.context.dialogue import DialogueInput, assemble_dialogue
from nexus.services.context.formats import FORMATS
from nexus.services.context.memory_blocks import Meta, Remembered
from nexus.services.context.pinned import PINNED_FROM_END, Placement, what_to_pin
from nexus.services.context.request import DEFAULT_FORMAT, LAYOUTS
from nexus.services.context.run_prefix import in_format
from nexus.services.context.thinking import ThinkingInput, assemble_thinking
from nexus.services.history.rows import MAIN
from nexus.services.history.transcript import Window
from nexus.services.records.explain import explain_content
from nexus.services.session_state.state import SessionState, read_state
from nexus.services.text.tokens import Measure
from nexus.services.turns.documents import read_turns

_PLACEMENTS: Final[tuple[Placement, ...]] = get_args(Placement)
_LIMIT: Final = 20
_LEVEL: Final[Level] = "detailed"
# The window of a small model, of which the sample takes a share that is worth showing.
_WINDOW: Final = 32_000
_VOCABULARY: Final = "o200k_base"
# The layouts in which an option has an effect.
_OPTIONS: Final = {
    "--limit": {"dialogue"},
    "--placement": {"agent"},
    "--from-end": {"agent"},
    "--level": {"agent", "thinking"},
}


def main(  # noqa: PLR0917  # typer makes options of them
    raw: Annotated[bool, typer.Option("--raw", help="Print the messages as JSON.")] = False,
    layout: Annotated[str, typer.Option(help=f"One of: {', '.join(LAYOUTS)}.")] = "dialogue",
    form: Annotated[str, typer.Option("--format", help=f"One of: {', '.join(FORMATS)}.")] = DEFAULT_FORMAT,
    limit: Annotated[
        int | None, typer.Option(min=0, max=200, help=f"Layout dialogue: messages in the memory ({_LIMIT}).")
    ] = None,
    placement: Annotated[
        str | None, typer.Option(help=f"Layout agent: one of {', '.join(_PLACEMENTS)} ({_PLACEMENTS[0]}).")
    ] = None,
    from_end: Annotated[
        int | None, typer.Option(min=0, help=f"Layout agent: pinned_from_end ({PINNED_FROM_END}).")
    ] = None,
    level: Annotated[
        str | None, typer.Option(help=f"Layouts agent and thinking: one of {', '.join(LEVELS)} ({_LEVEL}).")
    ] = None,
) -> None:
    """Show what a model would be given for the closing question of the sample conversation."""
    for option, value, allowed in (
        ("--layout", layout, LAYOUTS),
        ("--format", form, FORMATS),
        ("--placement", placement, (None, *_PLACEMENTS)),
        ("--level", level, (None, *LEVELS)),
    ):
        if value not in allowed:
            raise typer.BadParameter(
                f"{value!r} is unknown; allowed: {', '.join(filter(None, allowed))}", param_hint=option
            )
    options = {"--limit": limit, "--placement": placement, "--from-end": from_end, "--level": level}
    for option, given in options.items():
        if given is not None and layout not in _OPTIONS[option]:
            raise typer.BadParameter(f"says nothing in the layout {layout}", param_hint=option)
    tools = sorted(load_sample("tools"), key=lambda tool: str(tool["function"]["name"]))
    detail = next((known for known in LEVELS if known == level), _LEVEL)
    if layout == "agent":
        chosen = next((known for known in _PLACEMENTS if known == placement), _PLACEMENTS[0])
        assembled = _agent(chosen, PINNED_FROM_END if from_end is None else from_end, detail)
    elif layout == "thinking":
        assembled = _thinking(detail)
    else:
        assembled = _dialogue(tools, _LIMIT if limit is None else limit)
    context = {**assembled.manifest, "notes": assembled.repairs, "left_out": assembled.left_out, "timings_ms": {}}
    content: dict[str, Any] = {"messages": assembled.messages, "tools": tools, "context": context, "degraded": []}
    if layout == "agent":
        content = close(content, Measure(open_tokenizer(_VOCABULARY), form), _WINDOW, _meta())
    content = in_format(form, content)
    context = content["context"]
    content = {**content, "context": {**context, "left_out": listed(context["left_out"])}}
    if raw:
        shown = {name: content[name] for name in ("system", "messages") if name in content}
        typer.echo(json.dumps(shown if "system" in shown else shown["messages"], ensure_ascii=False, indent=2))
        return
    show_context(Console(), explain_content(content))


def _dialogue(tools: Sequence[dict[str, Any]], limit: int) -> Assembled:
    sample = load_sample("conversation")
    return assemble_dialogue(
        DialogueInput(
            tools=tools,
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


def _agent(placement: Placement, from_end: int, level: Level) -> Assembled:
    sample = load_sample("agent_session")
    role, state = what_to_pin(MAIN, read_state(sample["state"], "state"), SessionState())
    window = Window.of(sample["rows"])
    return fit_agent(
        AgentInput(
            window=window,
            remembered=_remembered(level, window.runs),
            current_input=sample["question"]["text"],
            role=role,
            state=state,
            placement=placement,
            pinned_from_end=from_end,
            input_id="preview",
            snapshot=_snapshot(),
        ),
        Budget(_WINDOW, measure=Measure(open_tokenizer(_VOCABULARY))),
    )


def _snapshot() -> Snapshot:
    kept = load_sample("working_memory")
    overview = Overview.model_validate(kept["overview"])
    details = tuple(map(Detail.model_validate, kept["details"]))
    return Snapshot(overview, details, detail_count=len(details))


def _meta() -> Meta:
    overview = _snapshot().overview
    size = len(overview.content.encode()) if overview else 0
    return Meta(_WINDOW, overview_bytes=size, turns_since_overview_update=1, has_tools=True, is_template=False)


def _thinking(level: Level) -> Assembled:
    sample = load_sample("turns")
    return assemble_thinking(
        ThinkingInput(
            current_input=load_sample("agent_session")["question"]["text"],
            remembered=_remembered(level),
            workspace=sample["workspace_context"],
            rounds=[ThinkingRound(**item) for item in sample["thinking_rounds"]],
            input_id="preview",
        )
    )


def _remembered(level: Level, shown: Collection[str] = ()) -> Remembered:
    """The goal, and the turns of other runs than those that are shown."""
    sample = load_sample("turns")
    turns, _ = read_turns([turn for turn in sample["turns"] if turn["run_id"] not in shown], level)
    return Remembered(sample["task_context"], sample["turns"][-1]["id"], level, turns)


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

"""How a context of the dialogue layout comes about: once for a run, and kept for later builds (CONTRACT §4, §4.6)."""

from nexus.core.metrics import Part, Stage
from nexus.services.context.build_memory import offered
from nexus.services.context.build_parts import Build, BuildParts
from nexus.services.context.counting import fitted
from nexus.services.context.fitting import fit_dialogue
from nexus.services.context.gathering import Gathered, gather
from nexus.services.context.layouts import DialogueInput
from nexus.services.context.prefix import RunPrefix


async def build_dialogue(parts: BuildParts, build: Build) -> RunPrefix:
    """The messages that every build of the run begins with. A context with something missing is not kept."""
    kept = await parts.kept(build)
    if kept:
        parts.go_on(build)
        return RunPrefix.from_bytes(kept)
    begun = await parts.begin_run(build)
    prefix, complete = await _fresh(parts, build)
    prefix.notes.extend(begun.notes)
    if complete and not prefix.degraded:
        mine = prefix.to_bytes()
        if not parts.keep_with_answer(build, mine):
            prefix = RunPrefix.from_bytes(await parts.keep(build, mine))
    if not parts.journal(begun, build):
        await parts.written(begun, prefix, build.deadline)
    # Nothing of it is shown here, so what the answer needs comes first.
    parts.begin_turn(build.request)
    return prefix


async def fresh_dialogue(parts: BuildParts, build: Build) -> RunPrefix:
    """The five messages as of now. Nothing is recorded or kept.

    Raises:
        RequestError: HISTORY_UNAVAILABLE, as for `BuildParts.take_note`.
    """
    return (await _fresh(parts, build))[0]


async def _fresh(parts: BuildParts, build: Build) -> tuple[RunPrefix, bool]:
    """The five messages, and whether everything that was heard before is in them."""
    with parts.measured(Stage.GATHER, build.timings_ms):
        gathered = await gather(
            build.request,
            parts.conversation,
            parts.documents,
            history_size=build.settings.history_size,
            excerpt_chars=build.settings.truncate_chars,
            seconds=build.seconds,
            ahead=build.ahead,
        )
        parts.take_note(gathered.degraded, build.settings)
    with parts.measured(Stage.ASSEMBLE, build.timings_ms):
        return _assemble(parts, build, gathered), gathered.complete


def _assemble(parts: BuildParts, build: Build, gathered: Gathered) -> RunPrefix:
    request, tools = build.request, offered(parts.tools, build.request)
    given = DialogueInput(
        tools=tools,
        history=gathered.rows,
        user_profile=gathered.profile,
        current_input=request.current_input,
        current_run_id=request.run_id,
        timestamp_utc=request.timestamp_utc,
        timezone_offset=request.timezone_offset,
        history_size=gathered.history_size,
        truncate_chars=build.settings.truncate_chars,
        default_profile=build.settings.default_profile,
        tools_complete=Part.TOOLS not in gathered.degraded,
        input_id=request.human.id,
    )
    assembled = fitted(fit_dialogue, given, tools, build)
    return RunPrefix(assembled.messages, assembled.manifest, tools, gathered.degraded, gathered.notes)

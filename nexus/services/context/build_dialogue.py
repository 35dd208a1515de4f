"""How a context of the dialogue layout comes about: once for a run, and kept for later builds (CONTRACT §4, §4.6).

A first build that brings its profile, and whose owner's past is at hand, waits for nothing: it is made in one step.
"""

from typing import Any, NamedTuple

from nexus.core.metrics import Part, Stage
from nexus.core.ports import LONGEST_JOURNALED, THE_ANSWER, Past, RunOrigin
from nexus.services.context.assembled import Assembled
from nexus.services.context.build_memory import offered
from nexus.services.context.build_parts import Build, BuildParts, Journalable
from nexus.services.context.counting import fitted, whole
from nexus.services.context.fitting import fit_dialogue
from nexus.services.context.gathering import STOPPED_EARLY, Gathered, gather, gathered_besides
from nexus.services.context.layouts import DialogueFrame, DialogueInput, assemble_dialogue, dialogue_frame
from nexus.services.context.prefix import RunPrefix
from nexus.services.context.request import DEFAULT_FORMAT, DEFAULT_SESSION, BuildRequest

_USUAL: RunOrigin = RunOrigin(DEFAULT_SESSION)


async def build_dialogue(parts: BuildParts, build: Build) -> RunPrefix:
    """The messages that every build of the run begins with. A context with something missing is not kept."""
    kept = await parts.kept(build)
    if kept:
        parts.go_on(build)
        return RunPrefix.from_bytes(kept)
    begun = await parts.begin_run(build, journaled=build.ahead is not None and build.ahead.standing is not None)
    prefix, complete = await _fresh(parts, build)
    prefix.notes.extend(begun.notes)
    if complete and not prefix.degraded:
        mine = prefix.to_bytes()
        if not parts.keep_with_answer(build, mine):
            prefix = RunPrefix.from_bytes(await parts.keep(build, mine))
    if not (build.ahead and build.ahead.row):
        await parts.written(begun, prefix, build.deadline)
        # Nothing of it is shown here, so what the answer needs comes first.
        parts.begin_turn(build.request)
    return prefix


class Prepared(NamedTuple):
    """A run's first build, but for the past.

    Attributes:
        build: that nobody has claimed, or that is claimed and of which nothing is kept.
        given: what the messages are made of, without a history.
        frame: those that do not depend on it.
        tools: that go with them.
        input: that of the run.
        notes: for the manifest.
    """

    build: Build
    given: DialogueInput
    frame: DialogueFrame
    tools: list[dict[str, Any]]
    input: Journalable
    notes: list[str]


def prepare_dialogue(parts: BuildParts, build: Build) -> Prepared | None:
    """What is needed of a run's first build beside the past; None where it needs more than that and what came along."""
    request, ahead = build.request, build.ahead
    if not may_be_at_once(parts, request) or (made := parts.for_journal(request)) is None:
        return None
    gathered = gathered_besides(request, build.settings.history_size)
    if ahead and (ahead.history_size, ahead.excerpt_chars) != (gathered.history_size, build.settings.truncate_chars):
        # Settings were replaced since that much of the past was asked for.
        return None
    tools = offered(parts.tools, request)
    given = _given(build, tools, gathered)
    return Prepared(build, given, dialogue_frame(given), tools, made, gathered.notes)


def dialogue_at_once(parts: BuildParts, prepared: Prepared, past: Past) -> dict[str, Any] | None:
    """The content of the answer to a run's first build, of what is at hand.

    Args:
        parts: for the build.
        prepared: the build.
        past: of the owner.

    Returns:
        None where that has to be looked at more closely; then nothing has happened.
    """
    build, given, frame, tools, made, notes = prepared
    assembled = assemble_dialogue(given._replace(history=past.rows), frame)
    stopped = [STOPPED_EARLY] if past.stopped_early else []
    prefix = RunPrefix(assembled.messages, assembled.manifest, tools, [], [*notes, *stopped])
    content = whole(prefix, build)
    if content is None or not parts.journal(build, made):
        return None
    # Another format says less than is needed to go on.
    parts.keep_with_answer(build, THE_ANSWER if build.request.form == DEFAULT_FORMAT else prefix.to_bytes())
    return content


def may_be_at_once(parts: BuildParts, request: BuildRequest) -> bool:
    """Whether nothing but the past is missing for an answer."""
    # What nobody knows of a run is just this origin.
    usual = request.user_profile is not None and request.origin == _USUAL
    return usual and parts.tools.complete and len(request.current_input) <= LONGEST_JOURNALED


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
        tools = offered(parts.tools, build.request)
        assembled = fitted(fit_dialogue, _given(build, tools, gathered), tools, build)
        return _prefix(assembled, tools, gathered), gathered.complete


def _given(build: Build, tools: list[dict[str, Any]], gathered: Gathered) -> DialogueInput:
    request, settings = build.request, build.settings
    return DialogueInput(
        tools=tools,
        history=gathered.rows,
        user_profile=gathered.profile,
        current_input=request.current_input,
        current_run_id=request.run_id,
        timestamp_utc=request.moment or "",
        timezone_offset=request.timezone_offset,
        history_size=gathered.history_size,
        truncate_chars=settings.truncate_chars,
        default_profile=settings.default_profile,
        tools_complete=Part.TOOLS not in gathered.degraded,
        input_id=request.human.id,
    )


def _prefix(assembled: Assembled, tools: list[dict[str, Any]], gathered: Gathered) -> RunPrefix:
    return RunPrefix(assembled.messages, assembled.manifest, tools, gathered.degraded, gathered.notes)

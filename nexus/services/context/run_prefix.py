"""The first messages of a run, which are the same bytes in every build of it (contract §4.6). Pure."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from pydantic import TypeAdapter

from nexus.core.erasure import owner_mark
from nexus.core.models import LeftOut, Row, Why
from nexus.core.person import Constraint
from nexus.core.wire import compact
from nexus.core.working_memory import Snapshot
from nexus.services.context.blocks import Block, Passage
from nexus.services.context.budget import RUN
from nexus.services.context.formats import FORMATS
from nexus.services.context.memory_blocks import Meta, Remembered
from nexus.services.context.person_blocks import CONSTRAINTS
from nexus.services.context.recall_block import RecallBlock
from nexus.services.context.request import DEFAULT_FORMAT, BuildRequest
from nexus.services.context.run_messages import RunMessages
from nexus.services.history.forms import left_out_of, native
from nexus.services.history.parts import Media
from nexus.services.history.reader import UntilShown
from nexus.services.history.rows import row_of
from nexus.services.text.tokens import Measure

# The version of the kept form, a part of its key: replicas of another release cannot read it and do not find it.
_FORM: Final = "7"
# More than what any provider counts for an image of the usual size.
IMAGE_TOKENS: Final = 1_600


class RunPrefix(NamedTuple):
    """The messages that every build of a run begins with; in the layout `dialogue` they are kept.

    Attributes:
        messages: the layout's own messages.
        manifest: without notes and timings.
        tools: the definitions that go with them.
        degraded: parts that are missing; a prefix with any is not kept.
        notes: on omissions and repairs.
        left_out: what the messages do not show.
        constraints: those that were stored.
        meta: the figures of `[CONTEXT_META]`; None without it.
        results: tokens to which the results of the run's later messages are cut; None if they need not be.
    """

    messages: list[dict[str, Any]]
    manifest: dict[str, Any]
    tools: list[dict[str, Any]]
    degraded: list[str]
    notes: list[str]
    left_out: list[LeftOut]
    constraints: tuple[Constraint, ...] = ()
    meta: Meta | None = None
    results: int | None = None

    def to_bytes(self) -> bytes:
        """The prefix as it is kept."""
        return compact(_PREFIX.dump_python(self, mode="json"))

    @staticmethod
    def from_bytes(kept: bytes) -> "RunPrefix":
        """The prefix of which `kept` is the `to_bytes`; ValueError for anything else."""
        return _PREFIX.validate_python(json.loads(kept))

    @property
    def shown_constraints(self) -> str:
        """The text of `[CONSTRAINTS]`; `""` without it."""
        places = [block["index"] for block in self.manifest["blocks"] if block["tag"] == CONSTRAINTS]
        return "".join(self.messages[place]["content"] for place in places)

    def continued(self, request: BuildRequest, run: RunMessages, measure: Measure | None = None) -> dict[str, Any]:
        """The content of the answer (contract §1.4): this prefix, and after it the run's own later messages.

        `left_out` of its manifest has `LeftOut` values; `listed` makes them what is published.
        """
        # The shares of the first build, where this one counts, too.
        manifest = {name: value for name, value in self.manifest.items() if measure or name != "budget"}
        blocks = [_counted(block, self.messages, measure) for block in manifest["blocks"]]
        messages, notes, left_out = self.messages, [*self.notes], [*self.left_out]
        left_out += [
            LeftOut("tool result" if item.role == "tool" else "call", item.source, Why.UNMATCHED)
            for item in run.not_shown
        ]
        if request.later:
            later = run.admitted(after=self.messages)
            notes += later.repairs
            left_out += later.left_out
            if later.messages:
                blocks += Passage.of(RUN, later).describe(len(self.messages), measure)
                messages = [*self.messages, *later.messages]
        return {
            "status": "success",
            "layout": request.layout,
            "messages": messages,
            "tools": self.tools,
            "context": {**manifest, "notes": notes, "left_out": left_out, "blocks": blocks},
            "degraded": list(self.degraded),
        }


@dataclass(frozen=True, slots=True)
class RunView:
    """What all builds of a run of the layouts `agent` and `thinking` show of session and memory; their lists are new.

    Attributes:
        tools: the definitions at the time of the first build.
        remembered: the goal and earlier turns in that build.
        recall: what that build recalled; None for nothing.
        constraints: those that were stored then, for builds that cannot read them.
        until: in `agent`, as all that follow: the last rows of the session in that build.
        cut: that build left older rows out.
        snapshot: the working memory in that build; None for none.
        mood: `[MOOD]` of that build; None for none.
        progress: by the `_id` of its row, the metadata of each call's progress that it showed.
        turn_number: of the run's turn; None where it was not read.
    """

    tools: list[dict[str, Any]]
    remembered: Remembered
    recall: RecallBlock | None = None
    constraints: tuple[Constraint, ...] = ()
    until: UntilShown | None = None
    cut: bool = False
    snapshot: Snapshot | None = None
    mood: Block | None = None
    progress: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    turn_number: int | None = None

    def as_shown(self, row: Row) -> Row:
        """A row of the session as the first build showed it: what is said of a call's progress changes its row."""
        shown = self.progress.get(row["_id"])
        return row if shown is None else {**row, "metadata": shown}

    def to_bytes(self) -> bytes:
        """The view as it is kept."""
        return compact(_VIEW.dump_python(self, mode="json"))

    @staticmethod
    def from_bytes(kept: bytes) -> "RunView":
        """The view of which `kept` is the `to_bytes`; ValueError for anything else."""
        return _VIEW.validate_python(json.loads(kept))


_PREFIX: Final = TypeAdapter(RunPrefix)
_VIEW: Final = TypeAdapter(RunView)


def images_of(request: BuildRequest, limit: int) -> tuple[list[Media], list[LeftOut]]:
    """The images of the current input that are passed on, in at most half of `limit` tokens, and what is left out."""
    images = [media for media in request.media if media.kind == "image" and media.url]
    most = limit // 2 // IMAGE_TOKENS
    where = f"{request.place} {request.human.id}"
    others = [LeftOut(media.kind, where, Why.MEDIA) for media in request.media if media not in images]
    # In the layout `agent` results are shown, and named, with the history.
    parts = [part for part in native(row_of(request.human)) if part["role"] != "TOOL" or request.layout != "agent"]
    others += [each for part in parts for each in left_out_of(part, where)]
    return images[:most], others + [LeftOut("image", where, Why.NO_ROOM)] * len(images[most:])


def with_images(
    content: dict[str, Any], index: int, images: Sequence[Media], left_out: list[LeftOut]
) -> dict[str, Any]:
    """The content of an answer with the images behind the text of the message at this index."""
    if not images and not left_out:
        return content
    messages, manifest = [*content["messages"]], {**content["context"]}
    if images:
        parts = [
            {"type": "image_url", "image_url": {"url": each.url, "media_type": each.mime, "detail": each.detail}}
            for each in images
        ]
        text = {"type": "text", "text": messages[index]["content"]}
        messages[index] = {**messages[index], "content": [text, *parts]}
    if images and "tokens" in manifest:
        more, counted = IMAGE_TOKENS * len(images), manifest["tokens"]
        # The limit of all else is without them.
        manifest["tokens"] = {**counted, "used": counted["used"] + more, "limit": counted["limit"] + more}
        at_index = [block for block in manifest["blocks"] if block["index"] == index]
        # Where the input is the goal, in the layout `thinking`, no block is named for it.
        holder = next((block for block in at_index if block["tag"] == "INPUT"), at_index[0])
        manifest["blocks"] = [
            {**block, "tokens": block["tokens"] + more} if block is holder else block for block in manifest["blocks"]
        ]
    manifest["left_out"] = [*manifest["left_out"], *left_out]
    return {**content, "messages": messages, "context": manifest}


def compactions_of(snapshot: Snapshot | None) -> int:
    """How often the session had been compacted; 0 if unknown."""
    return snapshot.compaction.number if snapshot and snapshot.compaction else 0


def since_constraints(shown: str) -> str:
    """What has changed, for `prefix_key`, where contexts show this text of `[CONSTRAINTS]`, which may be `""`."""
    return f"constraints: {shown}"


def _counted(
    block: Mapping[str, Any], messages: Sequence[Mapping[str, Any]], measure: Measure | None
) -> Mapping[str, Any]:
    """The manifest entry of a block, with its tokens only if this build counts."""
    if (measure is None) == ("tokens" not in block):
        return block
    if measure is None:
        return {name: value for name, value in block.items() if name != "tokens"}
    # Only prefixes of the dialogue layout are kept, and each of their blocks is a message.
    return {**block, "tokens": measure.text(messages[block["index"]]["content"])}


def in_format(form: str, content: dict[str, Any]) -> dict[str, Any]:
    """The content of an answer with its messages and tools in that format.

    The manifest still counts the messages of the OpenAI form; each block names its place in the other, too.
    """
    manifest = content["context"]
    converted = FORMATS[form](
        content["messages"],
        content["tools"],
        stable=manifest["prefix"]["messages"],
        goes_on=any(block["tag"] == RUN for block in manifest["blocks"]),
    )
    notes = [*manifest["notes"], *(f"{form}: {note}" for note in converted.notes)]
    left_out = [*manifest["left_out"], *converted.left_out]
    context = {
        **manifest,
        "notes": notes,
        "left_out": left_out,
        **({"renamed": converted.renamed} if converted.renamed else {}),
    }
    shown = {**content, "messages": converted.messages, "tools": converted.tools, "context": context}
    if form == DEFAULT_FORMAT:
        return shown
    context["blocks"] = [{**block, "place": converted.places[block["index"]]} for block in manifest["blocks"]]
    return {**shown, "format": form, **({} if converted.system is None else {"system": converted.system})}


def prefix_key(request: BuildRequest, since: str = "") -> str:
    """The key under which a run's prefix is kept: the same for every build of the run by an agent, and for no other.

    `since` names what has changed since the run's first build, so that the run goes on with another prefix: in the
    layout `agent` the number of compactions of a session that was compacted, in `dialogue` the constraints.
    """
    identity = [_FORM, request.owner_key, request.session_id, request.run_id, request.layout, request.current_input]
    # Agents have internal rows, and tools, of their own.
    agent = request.agent.sub_agent if request.layout == "agent" else None
    identity += [since] if since or agent is not None else []
    identity += [] if agent is None else [agent]
    return f"{hashlib.sha256(compact(identity)).hexdigest()}:{owner_mark(request.owner_key)}"

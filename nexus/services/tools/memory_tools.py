"""Definitions of the tools with which a model keeps its working memory (contract §7).

Nexus sees to it that nothing is lost and that there is room in time; the model decides what is worth keeping in view.
So each description says when the tool is of use, and what happens to its arguments.
"""

from dataclasses import dataclass
from typing import Any, Final

from nexus.core.ports.memory import LONGEST_QUERY
from nexus.core.working_memory import STRATEGIES, TARGETS

COMPACT_HISTORY: Final = "compact_history"
UPDATE_WORKING_MEMORY: Final = "update_working_memory"
WRITE_MEMORY_DETAIL: Final = "write_memory_detail"
READ_MEMORY_DETAIL: Final = "read_memory_detail"
SEARCH_MEMORY: Final = "search_memory"

# Tools that change nothing.
READING_TOOLS: Final = frozenset({READ_MEMORY_DETAIL, SEARCH_MEMORY})
MEMORY_TOOLS: Final = READING_TOOLS | {COMPACT_HISTORY, UPDATE_WORKING_MEMORY, WRITE_MEMORY_DETAIL}

DEFAULT_KEEP_RECENT: Final = 5
MOST_KEPT: Final = 1_000
NAME_CHARS: Final = 64
# Of one part of a detail: a small window has room for several.
DEFAULT_CHARACTERS: Final = 8_000
FEWEST_CHARACTERS, MOST_CHARACTERS = 1_000, 65_536


@dataclass(frozen=True, slots=True)
class MemoryLimits:
    """The largest overview and detail (contract §9, section `memory`), in bytes of UTF-8."""

    overview_max_bytes: int = 5_120
    detail_max_bytes: int = 65_536


def definitions(limits: MemoryLimits | None = None) -> list[dict[str, Any]]:
    """The definitions of all five in the OpenAI function form, by name."""
    most = limits or MemoryLimits()
    return [
        _definition(
            COMPACT_HISTORY,
            "Replace earlier messages of this conversation by a summary, to make room. Call it when a piece of work "
            "is finished, or when [CONTEXT_META] advises it; a conversation that grows too long is compacted without "
            "being asked. Nothing is lost: search_memory finds what was said. The current exchange and the newest "
            "messages stay as they are. First put what you still need into the overview with update_working_memory.",
            target=_choice(
                TARGETS,
                "tools: only calls of tools and what they gave, usually the bulk. conversation: everything else. all: "
                "both.",
            ),
            strategy=_choice(
                STRATEGIES,
                "summarize: a summary takes their place. archive: besides, they are kept word for word as details, to "
                "be opened with read_memory_detail; for what may have to be quoted.",
            ),
            keep_recent=_whole_number(
                "How many of the newest messages stay in any case.", most=MOST_KEPT, default=DEFAULT_KEEP_RECENT
            ),
            required=("target", "strategy"),
        ),
        _definition(
            READ_MEMORY_DETAIL,
            "Open a detail that is listed in [WORKING_MEMORY]: a note of yours, or archived messages word for word. "
            "Call it before you rely on something that you remember only in outline.",
            name=_text("Its name as it is listed.", NAME_CHARS),
            from_character=_whole_number(
                "Where to begin. The answer to a long detail says where it goes on, and search_memory at which "
                "character of a detail a phrase stands.",
                default=0,
            ),
            characters=_whole_number(
                "How much of it to show at once, at most. More takes more of the window.",
                FEWEST_CHARACTERS,
                MOST_CHARACTERS,
                DEFAULT_CHARACTERS,
            ),
            required=("name",),
        ),
        _definition(
            SEARCH_MEMORY,
            "Find a phrase in everything that is remembered of this session: the overview and its earlier revisions, "
            "details, archives, and all messages, also those that only a summary stands for. The phrase is looked for "
            "as it is written, whatever the case: a name, a number or a rare word finds more than a sentence.",
            query=_text("The phrase.", LONGEST_QUERY),
            required=("query",),
        ),
        _definition(
            UPDATE_WORKING_MEMORY,
            "Write the overview anew: the text under [WORKING_MEMORY] that you see in every context of this session. "
            "Call it when the goal, the state of the work, a decision or a fact to remember has changed. What you give "
            "replaces the whole overview, so repeat what still holds and drop what does not; put long material into a "
            "detail.",
            content=_text(f"The whole overview, as Markdown, at most {most.overview_max_bytes} bytes."),
            base_revision=_whole_number(
                "The revision that your text goes out from: the one that the last result of this tool told you, or "
                "else the one in [WORKING_MEMORY], which is that of the start of this exchange. If somebody has "
                "written another since then, nothing is changed and you are shown that one. Leave it out to write over "
                "whatever there is."
            ),
            required=("content",),
        ),
        _definition(
            WRITE_MEMORY_DETAIL,
            "Keep a named note that is too long for the overview: findings, a design, a log of attempts. Its name is "
            "listed in [WORKING_MEMORY], its text is read with read_memory_detail. Writing to a name that there is "
            "replaces the text.",
            name=_text("A plain name, such as flight options: letters, digits, spaces, '.', '-' and '_'.", NAME_CHARS),
            content=_text(f"The whole note, as Markdown, at most {most.detail_max_bytes} bytes."),
            required=("name", "content"),
        ),
    ]


def _definition(_tool: str, _description: str, *, required: tuple[str, ...], **properties: Any) -> dict[str, Any]:
    schema = {"type": "object", "properties": properties, "required": [*required], "additionalProperties": False}
    return {"type": "function", "function": {"name": _tool, "description": _description, "parameters": schema}}


def _choice(words: tuple[str, ...], description: str) -> dict[str, Any]:
    return {"type": "string", "enum": [*words], "description": description}


def _text(description: str, most_chars: int | None = None) -> dict[str, Any]:
    limit = {} if most_chars is None else {"maxLength": most_chars}
    return {"type": "string", **limit, "description": description}


def _whole_number(
    description: str, least: int = 0, most: int | None = None, default: int | None = None
) -> dict[str, Any]:
    bounds = {"minimum": least, "maximum": most, "default": default}
    given = {name: value for name, value in bounds.items() if value is not None}
    return {"type": "integer", **given, "description": description}

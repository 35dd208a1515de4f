"""The tools with which a model keeps its working memory: their definitions and checked calls (contract §7). Pure.

Rules of this module:

- Nexus loses nothing and makes room in time; the model decides which texts stay in view. So each description says when
  the tool is of use, and what happens to its arguments.
- Every fault of a call is a `ValueError` whose text names the fault, its place and the allowed values, so that a model
  that reads it can call again. It quotes little of the arguments.
- Names of details are plain names of any script, safe as names of files too. Only these are allowed: letters, digits
  and the marks that belong to letters, and between them spaces, dots, dashes and underscores. So no name holds a
  slash, a drive, a control character or something invisible, none begins with a dot, and none leads out of its folder.
  Characters that pass for others, such as full-width letters, are refused.
"""

import json
import re
import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from nexus.core.person import CONSTRAINT_SCOPES, KINDS, MAX_CONSTRAINT_CHARS, MAX_TOPIC_CHARS, MAX_VALUE_CHARS
from nexus.core.ports.memory import LONGEST_QUERY
from nexus.core.recall import SCOPES, Scope
from nexus.core.working_memory import STRATEGIES, TARGETS, Strategy, Target
from nexus.services.text.checks import refuse_unstorable

COMPACT_HISTORY: Final = "compact_history"
PIN_CONSTRAINT: Final = "pin_constraint"
REMEMBER: Final = "remember"
UPDATE_WORKING_MEMORY: Final = "update_working_memory"
WRITE_MEMORY_DETAIL: Final = "write_memory_detail"
READ_MEMORY_DETAIL: Final = "read_memory_detail"
READ_TOOL_RESULT: Final = "read_tool_result"
SEARCH_MEMORY: Final = "search_memory"

# Tools that change nothing.
READING_TOOLS: Final = frozenset({READ_MEMORY_DETAIL, READ_TOOL_RESULT, SEARCH_MEMORY})
MEMORY_TOOLS: Final = READING_TOOLS | {
    COMPACT_HISTORY,
    PIN_CONSTRAINT,
    REMEMBER,
    UPDATE_WORKING_MEMORY,
    WRITE_MEMORY_DETAIL,
}

_NAME_CHARS: Final = 64
_HANDLE: Final = re.compile(r"result_[0-9a-f]{16}")
# Messages that a search finds at most.
MOST_FOUND, DEFAULT_FOUND = 50, 10
# Of one part of a detail or a result: a small window has room for several.
DEFAULT_CHARACTERS: Final = 8_000


@dataclass(frozen=True, slots=True)
class MemoryLimits:
    """The largest overview and detail in bytes of UTF-8, and how many revisions are kept (contract §9, `memory`)."""

    overview_max_bytes: int = 5_120
    detail_max_bytes: int = 65_536
    keep_revisions: int = 100


def _one_of(words: tuple[str, ...], description: str, default: str | None = None) -> dict[str, Any]:
    given = {} if default is None else {"default": default}
    return {"type": "string", "enum": [*words], **given, "description": description}


def _text_of(description: str, most_chars: int | None = None) -> dict[str, Any]:
    limit = {} if most_chars is None else {"maxLength": most_chars}
    return {"type": "string", **limit, "description": description}


def _number_of(description: str, least: int = 0, most: int | None = None, default: int | None = None) -> dict[str, Any]:
    bounds = {"minimum": least, "maximum": most, "default": default}
    given = {name: value for name, value in bounds.items() if value is not None}
    return {"type": "integer", **given, "description": description}


@dataclass(frozen=True, slots=True)
class _Tool:
    """A tool as a model sees it. Descriptions of parameters may hold `{most}`, the bytes that a text may have."""

    description: str
    parameters: Mapping[str, dict[str, Any]]
    required: tuple[str, ...]


_PART: Final = _number_of(
    "How much of it to show at once, at most. More takes more of the window.",
    least=1_000,
    most=65_536,
    default=DEFAULT_CHARACTERS,
)
_TOOLS: Final[Mapping[str, _Tool]] = {
    COMPACT_HISTORY: _Tool(
        "Replace earlier messages of this conversation by a summary, to make room. Call it when a piece of work "
        "is finished, or when [CONTEXT_META] advises it; a conversation that grows too long is compacted without "
        "being asked. Nothing is lost: search_memory finds what was said. The current exchange and the newest "
        "messages stay as they are. First put what you still need into the overview with update_working_memory.",
        {
            "target": _one_of(
                TARGETS,
                "tools: only calls of tools and what they gave, usually the bulk. conversation: everything else. all: "
                "both.",
            ),
            "strategy": _one_of(
                STRATEGIES,
                "summarize: a summary takes their place. archive: besides, they are kept word for word as details, to "
                "be opened with read_memory_detail; for what may have to be quoted.",
            ),
            "keep_recent": _number_of("How many of the newest messages stay in any case.", most=1_000, default=5),
        },
        required=("target", "strategy"),
    ),
    PIN_CONSTRAINT: _Tool(
        "Keep a rule in view, word for word, among the constraints of every context from the next one on: it is never "
        "summarised or left out. Call it when the person sets a rule for your answers or your work that is to last, "
        "and give it in the person's own words. What is to be remembered but binds nobody belongs into the overview.",
        {
            "text": _text_of("The rule, alone and complete.", MAX_CONSTRAINT_CHARS),
            "kind": _one_of(
                KINDS,
                "must: what has to be done. must_not: what must not be done. format: how answers look. scope: what the "
                "work is about, and what it is not.",
                default="must",
            ),
            "scope": _one_of(
                CONSTRAINT_SCOPES,
                "For how long it holds. run: this exchange alone. session: this session. owner: all sessions of this "
                "person.",
                default="session",
            ),
        },
        required=("text",),
    ),
    READ_MEMORY_DETAIL: _Tool(
        "Open a detail that is listed in [WORKING_MEMORY]: a note of yours, or archived messages word for word. "
        "Call it before you rely on something that you remember only in outline.",
        {
            "name": _text_of("Its name as it is listed.", _NAME_CHARS),
            "from_character": _number_of(
                "Where to begin. The answer to a long detail says where it goes on, and search_memory at which "
                "character of a detail a phrase stands.",
                default=0,
            ),
            "characters": _PART,
        },
        required=("name",),
    ),
    READ_TOOL_RESULT: _Tool(
        "Read more of a tool's result that is shown with a part left out: the text in its place names the handle, and "
        "where to go on. Call it before you rely on what is not shown.",
        {
            "handle": _text_of("The handle as it is shown: result_ and 16 letters and digits.", _NAME_CHARS),
            "from": _number_of(
                "The character at which to begin. The answer says where a long result goes on.", default=0
            ),
            "characters": _PART,
        },
        required=("handle",),
    ),
    REMEMBER: _Tool(
        "Keep a fact about the person for all their sessions, such as where they live, what they like or who belongs "
        "to them. Call it when the person tells something of themselves that will matter another time; not for the "
        "work at hand, and not for what only you conclude. A topic with its sub_topic has one value: a new one "
        "supersedes the old one.",
        {
            "topic": _text_of("What it is about, in a word or two, such as home.", MAX_TOPIC_CHARS),
            "value": _text_of("What holds, in a few words, such as Porto.", MAX_VALUE_CHARS),
            "sub_topic": _text_of(
                "Which part of the topic, where it has several, such as city. Use the same words each time.",
                MAX_TOPIC_CHARS,
            ),
        },
        required=("topic", "value"),
    ),
    SEARCH_MEMORY: _Tool(
        "Find what was said or noted before: in this session the overview and its earlier revisions, details, "
        "archives, and all messages, also those that only a summary stands for; with scope owner, messages of all "
        "other sessions of the same person, too. Places that have the query as it is written, whatever the case, come "
        "first, then messages that have its words or are near it. A name, a number or a rare word finds the most.",
        {
            "query": _text_of("A phrase, some words, or a question.", LONGEST_QUERY),
            "scope": _one_of(
                SCOPES,
                "session: this session alone. owner: all sessions of the same person; for what was said another time.",
                default="session",
            ),
            "limit": _number_of("How many messages to show, at most.", least=1, most=MOST_FOUND, default=DEFAULT_FOUND),
        },
        required=("query",),
    ),
    UPDATE_WORKING_MEMORY: _Tool(
        "Write the overview anew: the text under [WORKING_MEMORY] that you see in every context of this session. "
        "Call it when the goal, the state of the work, a decision or a fact to remember has changed. What you give "
        "replaces the whole overview, so repeat what still holds and drop what does not; put long material into a "
        "detail.",
        {
            "content": _text_of("The whole overview, as Markdown, at most {most} bytes."),
            "base_revision": _number_of(
                "The revision that your text goes out from: the one that the last result of this tool told you, or "
                "else the one in [WORKING_MEMORY], which is that of the start of this exchange. If somebody has "
                "written another since then, nothing is changed and you are shown that one. Leave it out to write over "
                "whatever there is."
            ),
        },
        required=("content",),
    ),
    WRITE_MEMORY_DETAIL: _Tool(
        "Keep a named note that is too long for the overview: findings, a design, a log of attempts. Its name is "
        "listed in [WORKING_MEMORY], its text is read with read_memory_detail. Writing to a name that there is "
        "replaces the text.",
        {
            "name": _text_of(
                "A plain name, such as flight options: letters, digits, spaces, '.', '-' and '_'.", _NAME_CHARS
            ),
            "content": _text_of("The whole note, as Markdown, at most {most} bytes."),
        },
        required=("name", "content"),
    ),
}


def definitions(limits: MemoryLimits | None = None) -> list[dict[str, Any]]:
    """The definitions of all in the OpenAI function form, by name."""
    limits = limits or MemoryLimits()
    made = []
    for name, tool in _TOOLS.items():
        most = limits.overview_max_bytes if name == UPDATE_WORKING_MEMORY else limits.detail_max_bytes
        properties = {
            key: {**schema, "description": schema["description"].format(most=most)}
            for key, schema in tool.parameters.items()
        }
        schema = {
            "type": "object",
            "properties": properties,
            "required": [*tool.required],
            "additionalProperties": False,
        }
        function = {"name": name, "description": tool.description, "parameters": schema}
        made.append({"type": "function", "function": function})
    return made


# JSON numbers are exact up to here everywhere.
_LARGEST: Final = 2**53 - 1
_SHOWN_CHARS: Final = 40

# Categories of characters that show nothing where they stand alone.
_UNSEEN: Final = frozenset({"Zs", "Zl", "Zp", "Cc", "Cf", "Mn", "Me"})
# Letters and symbols by their category that show nothing.
_BLANK: Final = frozenset("\u115f\u1160\u2800\u3164\uffa0")

# Names of files have at most 255 bytes on most systems, of which an extension and a number need some.
_NAME_BYTES: Final = 200
_BETWEEN: Final = frozenset(" ._-")
# Letters and marks by their category that show nothing, or a dot or a slash.
_DECEPTIVE: Final = frozenset(
    "\u034f\u115f\u1160\u17b4\u17b5\u180b\u180c\u180d\u180f\u3164\uffa0\u3033\u3034\u3035\u2cc6\u2cc7"
    "\ua4f8\ua4f9\ua4fa\ua4fb\ua4fc\ua4fd\U0001d16d"
)
_VARIATION_SELECTORS: Final = re.compile("[\ufe00-\ufe0f\U000e0100-\U000e01ef]")
# The form of archives' names, which have to be free.
_RESERVED: Final = re.compile(r"compaction-[0-9]", re.IGNORECASE)

_ALLOWED: Final = (
    f"allowed is a plain name of 1 to {_NAME_CHARS} characters: letters, digits and, between them, spaces, '.', '-' "
    "and '_'; no path"
)

HANDLES: Final = (
    "one is result_ and 16 letters and digits, such as result_0123456789abcdef; the text that is shown in the place of "
    "a long result names it"
)

_Given = Mapping[str, Any]
_Word = TypeVar("_Word", Target, Strategy, Scope)


@dataclass(frozen=True, slots=True)
class CompactHistory:
    """Represent earlier messages by a summary; the newest `keep_recent` stay."""

    target: Target
    strategy: Strategy
    keep_recent: int


@dataclass(frozen=True, slots=True)
class UpdateOverview:
    """Replace the overview; only if `base_revision` is the newest one, where that is not None."""

    content: str
    base_revision: int | None


@dataclass(frozen=True, slots=True)
class WriteDetail:
    """Write a detail."""

    name: str
    content: str


@dataclass(frozen=True, slots=True)
class ReadDetail:
    """Read at most so many characters of a detail, from a character on."""

    name: str
    from_character: int = 0
    characters: int = DEFAULT_CHARACTERS


@dataclass(frozen=True, slots=True)
class ReadResult:
    """Read at most so many characters of the large result with this handle, from a character on."""

    handle: str
    from_character: int = 0
    characters: int = DEFAULT_CHARACTERS


@dataclass(frozen=True, slots=True)
class SearchMemory:
    """Find the query in what is remembered of the session or the owner, and up to `limit` messages near it."""

    query: str
    scope: Scope = "session"
    limit: int = DEFAULT_FOUND


@dataclass(frozen=True, slots=True)
class PinConstraint:
    """Set a constraint; what is given is read where those of messages are."""

    given: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Remember:
    """Keep what holds of the person."""

    topic: str
    value: str
    sub_topic: str = ""


MemoryCall = (
    CompactHistory | PinConstraint | Remember | UpdateOverview | WriteDetail | ReadDetail | ReadResult | SearchMemory
)


def read_call(name: str, given: Any, limits: MemoryLimits | None = None) -> MemoryCall:
    """The call of the tool `name`; its arguments are an object, or its JSON text. Faults are a ValueError."""
    if name not in _TOOLS:
        raise ValueError(f"name: {_shown(name)} is unknown; allowed: {', '.join(sorted(MEMORY_TOOLS))}")
    allowed, arguments = _TOOLS[name].parameters, _arguments(given)
    for key in arguments:
        if key not in allowed:
            raise ValueError(f"args: {_shown(key)} is unknown; allowed: {', '.join(allowed)}")
    return _READERS[name](arguments, limits or MemoryLimits())


def _read_compaction(arguments: _Given, _limits: MemoryLimits) -> MemoryCall:
    keep_recent = _whole_number(arguments, "keep_recent", _TOOLS[COMPACT_HISTORY].parameters)
    return CompactHistory(_word(arguments, "target", TARGETS), _word(arguments, "strategy", STRATEGIES), keep_recent)


def _read_part(arguments: _Given, _limits: MemoryLimits) -> MemoryCall:
    allowed = _TOOLS[READ_MEMORY_DETAIL].parameters
    return ReadDetail(
        read_name(arguments.get("name")),
        _whole_number(arguments, "from_character", allowed),
        _whole_number(arguments, "characters", allowed),
    )


def _read_result(arguments: _Given, _limits: MemoryLimits) -> MemoryCall:
    allowed = _TOOLS[READ_TOOL_RESULT].parameters
    return ReadResult(
        _handle(arguments), _whole_number(arguments, "from", allowed), _whole_number(arguments, "characters", allowed)
    )


def _read_overview(arguments: _Given, limits: MemoryLimits) -> MemoryCall:
    allowed = _TOOLS[UPDATE_WORKING_MEMORY].parameters
    content = _content(arguments, limits.overview_max_bytes, "drop what is settled, or put it into a detail")
    base = _whole_number(arguments, "base_revision", allowed) if "base_revision" in arguments else None
    return UpdateOverview(content, base)


def _read_detail(arguments: _Given, limits: MemoryLimits) -> MemoryCall:
    detail = read_name(arguments.get("name"))
    if is_reserved(detail):
        raise ValueError(f"name: {detail!r} is one that archives have, which nobody writes to; take another name")
    return WriteDetail(detail, _content(arguments, limits.detail_max_bytes, "make several details of it"))


def _read_fact(arguments: _Given, _limits: MemoryLimits) -> MemoryCall:
    sub_topic = _text(arguments, "sub_topic") if arguments.get("sub_topic") else ""
    return Remember(_text(arguments, "topic"), _text(arguments, "value"), sub_topic)


def read_search(arguments: Mapping[str, Any], *, default: Scope = "session", most: int = LONGEST_QUERY) -> SearchMemory:
    """The search with these arguments, of a query of up to `most` characters. Faults are a ValueError."""
    query = _text(arguments, "query").strip()
    if len(query) > most:
        raise ValueError(f"query: {len(query)} characters, at most {most} are allowed; a rare word is enough")
    parameters = _TOOLS[SEARCH_MEMORY].parameters
    scope = _word({"scope": default, **arguments}, "scope", SCOPES)
    return SearchMemory(query, scope, _whole_number(arguments, "limit", parameters))


_READERS: Final[Mapping[str, Callable[[_Given, MemoryLimits], MemoryCall]]] = {
    COMPACT_HISTORY: _read_compaction,
    PIN_CONSTRAINT: lambda arguments, _limits: PinConstraint(arguments),
    READ_MEMORY_DETAIL: _read_part,
    READ_TOOL_RESULT: _read_result,
    REMEMBER: _read_fact,
    SEARCH_MEMORY: lambda arguments, _limits: read_search(arguments),
    UPDATE_WORKING_MEMORY: _read_overview,
    WRITE_MEMORY_DETAIL: _read_detail,
}


def _arguments(given: Any) -> Mapping[str, Any]:
    if isinstance(given, str) and given.strip():
        try:
            given = json.loads(given, parse_constant=_refuse_constant)
        except RecursionError:
            raise ValueError("args: nested too deep; a JSON object is needed") from None
        except ValueError as error:
            raise ValueError(f"args: not JSON: {error}; a JSON object is needed") from None
    elif given is None or isinstance(given, str):
        given = {}
    if not isinstance(given, Mapping):
        raise ValueError(f"args: a JSON object is needed, not {_shown(given)}")
    # Models write null for what they leave out.
    return {key: value for key, value in given.items() if value is not None}


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no number")


def _content(arguments: Mapping[str, Any], most: int, advice: str) -> str:
    content = _text(arguments, "content")
    size = len(content.encode())
    if size > most:
        raise ValueError(f"content: {size} bytes, at most {most} are allowed; {advice}")
    return content


def _text(arguments: Mapping[str, Any], where: str) -> str:
    value = arguments.get(where)
    if value is None:
        raise ValueError(f"{where}: is missing; a text is needed")
    if not isinstance(value, str):
        raise ValueError(f"{where}: a text is needed, not {_shown(value)}")
    refuse_unstorable(value, where)
    if all(char in _BLANK or unicodedata.category(char) in _UNSEEN for char in value):
        raise ValueError(f"{where}: is empty; a text with something in it is needed")
    return value


def _handle(arguments: Mapping[str, Any]) -> str:
    handle = _text(arguments, "handle").strip()
    if not _HANDLE.fullmatch(handle):
        raise ValueError(f"handle: {_shown(handle)} is none; {HANDLES}")
    return handle


def _word(arguments: Mapping[str, Any], where: str, allowed: tuple[_Word, ...]) -> _Word:
    given = arguments.get(where)
    word = next((each for each in allowed if isinstance(given, str) and each == given), None)
    if word is None:
        fault = "is missing" if given is None else f"{_shown(given)} is unknown"
        raise ValueError(f"{where}: {fault}; allowed: {', '.join(allowed)}")
    return word


def _whole_number(arguments: Mapping[str, Any], where: str, parameters: Mapping[str, dict[str, Any]]) -> int:
    schema = parameters[where]
    given, least, most = arguments.get(where, schema.get("default")), schema["minimum"], schema.get("maximum", _LARGEST)
    whole = int(given) if isinstance(given, float) and given.is_integer() else given
    if not isinstance(whole, int) or isinstance(whole, bool) or not least <= whole <= most:
        raise ValueError(f"{where}: {_shown(given)} is not allowed; a whole number from {least} to {most} is")
    return whole


def _shown(value: Any) -> str:
    if isinstance(value, str):
        cut = repr(value[:_SHOWN_CHARS])
        return cut if len(value) <= _SHOWN_CHARS else f"{cut} and so on"
    if isinstance(value, bool | None):
        return json.dumps(value)
    if isinstance(value, int | float):
        return f"{value:.15g}" if isinstance(value, float) or abs(value) <= _LARGEST else "a number of that size"
    return f"a JSON {'object' if isinstance(value, Mapping) else 'array'}"


def read_name(given: Any, where: str = "name") -> str:
    """The name in its composed form (NFC). Where it is no plain name, a ValueError says what is allowed at `where`."""
    if not isinstance(given, str):
        kind = "null" if given is None else f"a JSON {type(given).__name__}"
        raise ValueError(f"{where}: a text is needed, not {kind}; {_ALLOWED}")
    if len(given) > 2 * _NAME_CHARS:
        # Composing a long text takes long, and none of these becomes a name.
        raise ValueError(f"{where}: {len(given)} characters are too many; {_ALLOWED}")
    name = unicodedata.normalize("NFC", given)
    if fault := _fault_of(name):
        raise ValueError(f"{where}: {fault}; {_ALLOWED}")
    return name


def is_reserved(name: str) -> bool:
    """Whether the name has the form of archives' names."""
    return _RESERVED.match(name) is not None


def _fault_of(name: str) -> str | None:
    size = len(name.encode("utf-8", "replace"))
    if not name:
        return "is empty"
    if len(name) > _NAME_CHARS:
        return f"{len(name)} characters are too many"
    if size > _NAME_BYTES:
        return f"{size} bytes are too many, at most {_NAME_BYTES} fit"
    for place, char in enumerate(name, 1):
        if not (char in _BETWEEN or _is_plain(char)):
            shown = repr(char) if char.isascii() and char.isprintable() else f"U+{ord(char):04X}"
            return f"{shown} at place {place} is not allowed"
    if ".." in name:
        return "'..' is not allowed"
    # A mark belongs to the letter before it.
    is_begun = unicodedata.category(name[0])[0] in "LN"
    return None if is_begun and name[-1] not in _BETWEEN else "a letter or a digit has to come first and last"


def _is_plain(char: str) -> bool:
    if char in _DECEPTIVE or _VARIATION_SELECTORS.match(char):
        return False
    category = unicodedata.category(char)
    if category[0] not in "LM" and category != "Nd":
        return False
    # `<compat>` is how some scripts write a vowel; the other kinds are widths, fonts, circles, raised letters.
    kind = unicodedata.decomposition(char).partition(" ")[0]
    return not kind.startswith("<") or kind == "<compat>"

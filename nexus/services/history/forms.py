"""Every form in which a message comes in, brought to the one inside (contract §11). Pure.

Results on the bus, the messages of a request's history, rows of other writers and imported transcripts all pass through
`native`. Inside, a message is a row as Nexus records it:

- `role` is HUMAN, AI or TOOL (SYSTEM and COMMAND are in no context), `content` a text; that of a TOOL row any JSON.
- An AI row has its calls in `metadata.tool_calls`, in any of the forms that `read_tool_calls` knows.
- A TOOL row has in its metadata `call_id`, `tool_name`, `status` and `execution_success`, as far as they are known.
- `metadata.left_out` names what of the message no context shows: pairs of a kind and a `Why`, by its name.

A message of Anthropic or Gemini may hold answers, calls and results at once. It becomes several rows, each with its
place under `PART`; the `_id` is that of the stored row. What a content says is found by `parts`.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any, Final, NamedTuple

from nexus.core.models import (
    ABOUT_RESULT,
    BESIDE_CONTENT,
    CALL_IDS,
    LeftOut,
    Role,
    Row,
    Why,
    gathered,
    metadata_of,
    read_role,
    role_of,
)
from nexus.services.history.parts import (
    ANSWERS,
    AsJson,
    Call,
    Media,
    Omitted,
    Piece,
    Result,
    calls_beside,
    first_of,
    is_shown_as_words,
    is_thought,
    kind_of,
    of_langchain,
    pieces,
    pieces_of_part,
    result_in,
    texts_of,
)
from nexus.services.history.tool_calls import as_id
from nexus.services.text.content import as_text, compact_json, is_envelope, is_error, opened

PART: Final = "part"
# On a row of which something was not understood, and is shown as its JSON or passed over.
REPAIRED: Final = "repaired"
LEFT_OUT: Final = "left_out"
RAW: Final = "raw"
# The `source` of a recorded result, and of an imported message.
TOOL_RESULT: Final = "tool_result"
IMPORT: Final = "import"
_RECORDED: Final = (TOOL_RESULT, IMPORT)
# Recorded for a tool or a status that was not given.
UNKNOWN: Final = "unknown"
# Metadata under other names than those of Nexus.
_ALIASES: Final = frozenset(
    {
        *("tool_call_id", "tool_use_id", "is_error", "isError", "function_call", "additional_kwargs"),
        *("invalid_tool_calls", "name"),
    }
)
_ROLES: Final = frozenset(Role)
# What an envelope has beside the result.
_ABOUT_RESULT: Final = ABOUT_RESULT | {"id", "error"}
_ABOUT_CALL: Final = _ABOUT_RESULT | {"role", "type"}
_SUCCEEDED: Final = frozenset(
    {"success", "successful", "succeeded", "ok", "okay", "completed", "complete", "done", "finished", "executed"}
)
# What providers call the tokens of the prompt, those of the answer, and both.
_USAGE: Final = (
    ("prompt_tokens", ("prompt_tokens", "input_tokens", "inputTokens", "promptTokenCount", "prompt_token_count")),
    (
        "completion_tokens",
        ("completion_tokens", "output_tokens", "outputTokens", "candidatesTokenCount", "candidates_token_count"),
    ),
    ("total_tokens", ("total_tokens", "totalTokens", "totalTokenCount", "total_token_count")),
)


class Input(NamedTuple):
    """A human input: its text, with words for what is no text, and the images and files in it, in their order."""

    text: str
    media: tuple[Media, ...] = ()


def is_native(row: Any) -> bool:
    """Whether a row is in the form inside already, as nearly all are."""
    if not isinstance(row, dict):
        return False
    role, metadata, content = row.get("role"), row.get("metadata"), row.get("content")
    return (
        isinstance(role, str)
        and role in _ROLES
        and (content is None or (isinstance(content, str) and not (role == "AI" and is_thought(content))))
        and isinstance(metadata, dict)
        and _are_calls(metadata.get("tool_calls"))
        and metadata.keys().isdisjoint(_ALIASES)
        and row.keys().isdisjoint(BESIDE_CONTENT)
    )


def _are_calls(value: Any) -> bool:
    return value is None or (isinstance(value, list) and all(isinstance(call, dict) for call in value))


def native(row: Any) -> list[Any]:
    """The rows that a message is inside, in their order; what is no message with a known role stays as it is.

    A message that says nothing is one row without content.
    """
    if is_native(row) or not isinstance(row, Mapping):
        return [row]
    role = role_of(row)
    if role is None or role in {Role.SYSTEM, Role.COMMAND}:
        return [row if role is None else {**row, "role": role.value}]
    content, metadata = gathered(row), row.get("metadata")
    known = metadata if isinstance(metadata, Mapping) else {}
    outer = {name: value for name, value in row.items() if name not in BESIDE_CONTENT}
    if "metadata" in row and not isinstance(metadata, Mapping):
        outer[REPAIRED] = True
    made = _rows_of(role, content, known)
    if len(made) == 1:
        return [{**outer, **made[0]}]
    name = row.get("id")
    return [
        {**outer, **part, PART: index, **({"id": f"{name}#{index + 1}"} if index and isinstance(name, str) else {})}
        for index, part in enumerate(made)
    ]


def not_understood(rows: Iterable[Any]) -> list[LeftOut]:
    """The rows that are no message of a known role, of which no context shows anything."""
    return [
        LeftOut("message", _place_of(row), Why.UNREADABLE)
        for row in rows
        if not is_native(row) and (not isinstance(row, Mapping) or role_of(row) is None)
    ]


def _place_of(row: Any) -> str:
    names = (row.get("id"), row.get("_id")) if isinstance(row, Mapping) else ()
    return next((name for name in names if isinstance(name, str) and name), "history")


def left_out_of(row: Mapping[str, Any], where: str) -> tuple[LeftOut, ...]:
    """What of a row in the form inside no context shows."""
    listed = metadata_of(row).get(LEFT_OUT)
    found = []
    for pair in listed if isinstance(listed, list | tuple) else ():
        match pair:
            case [str(what), str(why)] if why in Why.__members__:
                found.append(LeftOut(what, where, Why[why]))
    return tuple(found)


def read_input(content: Any) -> Input | None:
    """The text and the media of a human input in any form; None for a value that is none.

    Results of tools in it are not part of it.
    """
    said = [*pieces(content, Role.HUMAN)]
    if any(isinstance(piece, AsJson) for piece in said):
        return None
    return Input(texts_of(said), tuple(piece for piece in said if isinstance(piece, Media)))


def input_text(row: Any) -> str:
    """The text of a human's row in any form; `""` for none."""
    return next((as_text(part.get("content")) for part in native(row) if part.get("role") == Role.HUMAN.value), "")


def success_of(metadata: Mapping[str, Any]) -> bool | None:
    """Whether the call of a result with this metadata succeeded; None where it does not say."""
    if metadata.get("status", UNKNOWN) == UNKNOWN and metadata.get("execution_success") is not True:
        # For a result without a status False is recorded.
        return None
    given = metadata.get("execution_success")
    return given if isinstance(given, bool) else _is_success(metadata.get("status"))


def _is_success(status: Any) -> bool:
    if isinstance(status, int):
        # Of HTTP, or a flag.
        return status is True or status // 100 == 2  # noqa: PLR2004  # 200 to 299
    return isinstance(status, str) and status.lower() in _SUCCEEDED


def _rows_of(role: Role, content: Any, known: Mapping[str, Any]) -> list[Row]:
    """What a message says as rows without ids and times."""
    # The calls are among the pieces, and belong to one of the rows.
    metadata = {name: value for name, value in known.items() if name not in _ALIASES and name != "tool_calls"}
    if role is Role.TOOL and _is_one_result(content):
        # What was recorded here came out of its envelope then.
        is_recorded = known.get("source") in _RECORDED
        said: list[Piece] = [Result(content, known) if is_recorded else _result(content, known)]
    else:
        # Messages of results are the user's at Anthropic and Gemini, and so are words beside the results.
        role = Role.HUMAN if role is Role.TOOL else role
        said = [*pieces(content, role)]
    if role is Role.AI:
        said += calls_beside(known, said)
    rows: list[Row] = []
    shown = [piece for piece in said if not isinstance(piece, Omitted)]
    for speaker, group in groupby(shown, lambda piece: _speaker_of(piece, role)):
        together = [*group]
        results = [_result_row(piece) for piece in together if isinstance(piece, Result)]
        rows += [_row_of(speaker, together)] if speaker else results
    made = rows or [{"role": role.value, "content": None if content is None else "", "metadata": {}}]
    if omitted := _omitted(said):
        first = made[0]["metadata"]
        first[LEFT_OUT] = [*omitted, *first.get(LEFT_OUT, ())]
    usage = _usage(content) if role is Role.AI else {}
    odd = {REPAIRED: True} if any(isinstance(piece, AsJson) for piece in said) else {}
    return [{**row, "metadata": {**metadata, **usage, **row["metadata"]}, **odd} for row in made]


def _speaker_of(piece: Piece, role: Role) -> Role | None:
    """Whose row it is in; None for a result, which has its own. A call is the assistant's, whoever it comes from."""
    if isinstance(piece, Result):
        return None
    return Role.AI if isinstance(piece, Call) else role


def _row_of(role: Role, said: Sequence[Piece]) -> Row:
    calls = [piece.call for piece in said if isinstance(piece, Call)]
    return {"role": role.value, "content": texts_of(said), "metadata": {"tool_calls": calls} if calls else {}}


def _omitted(said: Iterable[Piece]) -> list[list[str]]:
    return [[piece.what, piece.why.name] for piece in said if isinstance(piece, Omitted)]


def _is_one_result(content: Any) -> bool:
    """Whether what a tool says is one result; else its parts are results."""
    # A message of Anthropic or Gemini has them further in.
    inner = first_of(content, "content", "parts", "blocks") if isinstance(content, Mapping) else content
    parts = [content, *(inner if isinstance(inner, list | tuple) else [inner])]
    return not any(kind_of(part) == "result" for part in parts)


def _result_row(result: Result) -> Row:
    about = result.about
    failed = about.get("is_error") is True or about.get("isError") is True or is_error(result.content)
    done = False if failed else about.get("execution_success")
    status = "error" if failed or (done is False and about.get("status") is None) else about.get("status")
    fields = {
        "call_id": as_id(first_of(about, *CALL_IDS)),
        "tool_name": first_of(about, "tool_name", "toolName", "name"),
        "status": status,
        "execution_success": done if isinstance(done, bool) or status is None else _is_success(status),
    }
    content, omitted = _content_of_result(result.content)
    metadata = {name: value for name, value in fields.items() if value not in (None, "")}
    return {"role": "TOOL", "content": content, "metadata": metadata | ({LEFT_OUT: omitted} if omitted else {})}


def _result(content: Any, known: Mapping[str, Any]) -> Result:
    """The result that is all of a message: in the envelope of a bus or of a provider, or any JSON by itself."""
    if not isinstance(content, Mapping):
        return Result(content, known)
    if (inner := of_langchain(content)) is not None:
        return _result(inner, known)
    if not _is_envelope(content, known):
        return Result(content, known)
    result = result_in(content, known)
    # What is in a message may be in an envelope besides, and a message of a tool in an envelope of the bus.
    answer = result.content
    if isinstance(answer, Mapping) and _names_tool(answer) and not answer.keys().isdisjoint(CALL_IDS):
        return _result(answer, {**result.about, **({"is_error": True} if answer.get("status") == "error" else {})})
    return result if read_role(content.get("role")) is None else _result(*result)


def _is_envelope(content: Mapping[str, Any], known: Mapping[str, Any]) -> bool:
    if "result" in content:
        return len(content) == 1 or not _ABOUT_RESULT.isdisjoint(content)
    ids = [content[name] for name in CALL_IDS if name in content]
    # An object that names another call than its message is what a tool has found.
    names_its_call = bool(ids) and all(known[name] in ids for name in CALL_IDS if known.get(name))
    # JavaScript leaves out what is undefined, and with it the answer.
    answers = not content.keys().isdisjoint(ANSWERS) or (bool(ids) and content.keys() <= _ABOUT_CALL)
    return (names_its_call or _names_tool(content)) and answers


def _names_tool(content: Mapping[str, Any]) -> bool:
    return Role.TOOL in {read_role(content.get("role")), read_role(content.get("type"))}


def _content_of_result(content: Any) -> tuple[Any, list[list[str]]]:
    """A result with words in the place of media, and what it leaves out; any other JSON as it is."""
    if is_envelope(content):
        # Of a server of the Model Context Protocol, whose texts should say what is structured, too.
        texts, omitted = _content_of_result(content["content"] or "")
        structured = content.get("structuredContent")
        if not isinstance(texts, str):
            return content, []
        if structured is None or opened(texts) == opened(compact_json(structured)):
            return texts, omitted
        return "\n".join(filter(None, (texts, compact_json(structured)))), omitted
    parts = [content] if is_shown_as_words(content) else content
    if not isinstance(parts, list | tuple):
        return content, []
    # Other parts are shown as their JSON, where there are some that are known: the tool may mean data of its own.
    known = [isinstance(part, str) or is_shown_as_words(part) for part in parts]
    data = [part for part, is_known in zip(parts, known, strict=True) if not is_known]
    if not any(known) or not all(isinstance(part, Mapping) and "type" in part for part in data):
        return content, []
    said = [
        piece
        for part, is_known in zip(parts, known, strict=True)
        for piece in (pieces_of_part(part, Role.TOOL) if is_known else [compact_json(part)])
    ]
    return texts_of(said), _omitted(said)


def _usage(content: Any) -> dict[str, Any]:
    """The tokens that a response says it took, under one set of names."""
    given = first_of(content, "usage", "usageMetadata", "usage_metadata") if isinstance(content, Mapping) else None
    if not isinstance(given, Mapping):
        return {}
    counts = {ours: value for ours, theirs in _USAGE if (value := first_of(given, *theirs)) is not None}
    return {"usage": counts} if counts else {}

"""Every form in which a message comes in, brought to the one inside (contract §11). Pure.

Results on the bus, the messages of a request's history, rows of other writers and imported transcripts all pass through
`native`. Inside, a message is a row as Nexus records it:

- `role` is HUMAN, AI or TOOL (SYSTEM and COMMAND are in no context), `content` a text; that of a TOOL row any JSON.
- An AI row has its calls in `metadata.tool_calls`, in any of the forms that `read_tool_calls` knows.
- A TOOL row has in its metadata `call_id`, `tool_name`, `status` and `execution_success`, as far as they are known.
- `metadata.left_out` names what of the message no context shows: pairs of a kind and a `Why`, by its name.

A message of Anthropic or Gemini may hold answers, calls and results at once. It becomes several rows, each with its
place under `PART`; the `_id` is that of the stored row.

What is not understood is never dropped: a value stays as its JSON, and an unknown part of a list is left out by name.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, NamedTuple

from pydantic_core import from_json

from nexus.core.models import BESIDE_CONTENT, LeftOut, Role, Row, Why, gathered, read_role, role_of
from nexus.services.history.tool_calls import as_id, read_tool_calls
from nexus.services.text.content import as_text, compact_json, is_envelope, is_error, opened, text_of_part

PART: Final = "part"
# On a row of which something was not understood, and is shown as its JSON or passed over.
REPAIRED: Final = "repaired"
LEFT_OUT: Final = "left_out"
RAW: Final = "raw"
# The `source` of a recorded result.
TOOL_RESULT: Final = "tool_result"
# Recorded for a result without a status.
_UNKNOWN: Final = "unknown"
_DEEPEST: Final = 6
_MEGABYTE: Final = 1_000_000
# A file of more is not believed.
_MOST_BYTES: Final = 2**63

# Names of the parts of a message, by their `type`.
_TEXTS: Final = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}
_THINKING: Final = frozenset({"thinking", "redacted_thinking", "reasoning", "reasoning_text", "summary_text"})
_CALLS: Final = frozenset(
    {
        *("tool_use", "server_tool_use", "mcp_tool_use", "tool_call", "function_call", "custom_tool_call"),
        *("tool_call_chunk", "invalid_tool_call", "server_tool_call", "non_standard_tool_call", "mcp_call"),
        # Of Vercel's AI SDK.
        *("tool-call", "tool-invocation"),
    }
)
# What OpenAI's models have a client run that is no function: the type is the name, the arguments are an action.
_ACTIONS: Final = frozenset({"computer_call", "local_shell_call", "shell_call", "apply_patch_call"})
# What OpenAI's servers ran themselves: named where it is left out.
_HOSTED: Final = frozenset({"web_search_call", "file_search_call", "code_interpreter_call"})
_RESULT_ENDINGS: Final = ("tool_result", "tool-result", "_call_output", "server_tool_call_result")
_MEDIA: Final[Mapping[str, "MediaKind"]] = {
    **dict.fromkeys(("image", "image_url", "input_image", "image_generation_call", "computer_screenshot"), "image"),
    **dict.fromkeys(("audio", "input_audio", "audio_url"), "audio"),
    **dict.fromkeys(("video", "input_video", "video_url"), "video"),
    **dict.fromkeys(("file", "input_file", "document", "container_upload", "media"), "file"),
    # Of the Model Context Protocol.
    **dict.fromkeys(("resource", "resource_link"), "file"),
    # What a search of Anthropic has found.
    **dict.fromkeys(("search_result", "web_search_result"), "file"),
}
# Where a part has its media or their address, and what it says of them.
_SOURCES: Final = frozenset(
    {
        *("source", "url", "uri", "data", "base64", "file_id", "file_url"),
        *("image_url", "audio_url", "video_url", "input_audio", "image", "audio", "video", "file", "resource"),
        *("inlineData", "inline_data", "fileData", "file_data"),
    }
)
_ABOUT_MEDIA: Final = _SOURCES | {
    *("type", "id", "index", "name", "title", "filename", "size", "detail", "status", "context"),
    *("mime_type", "mimeType", "media_type", "mediaType", "source_type", "annotations", "citations", "cache_control"),
    *("_meta", "extras", "metadata", "providerOptions", "encrypted_content", "page_age"),
}
_KINDS: Final[Mapping[str, str]] = {
    **dict.fromkeys(_TEXTS, "text"),
    **dict.fromkeys(_THINKING, "thinking"),
    **dict.fromkeys(_CALLS | _ACTIONS, "call"),
    **dict.fromkeys(_HOSTED, "hosted"),
    **dict.fromkeys(("function", "custom"), "nested call"),
    **dict.fromkeys(_MEDIA, "media"),
    "message": "message",
}
# Parts of Gemini and of Amazon's Bedrock have no type; what they are is the name of a field, in either spelling.
_CALL_FIELDS: Final = ("functionCall", "function_call", "toolCall", "tool_call", "toolUse", "toolInvocation")
_RESULT_FIELDS: Final = ("functionResponse", "function_response", "toolResponse", "tool_response", "toolResult")
_FIELDS: Final = {
    **dict.fromkeys(_CALL_FIELDS, "call"),
    **dict.fromkeys(_RESULT_FIELDS, "result"),
    "reasoningContent": "thinking",
    **dict.fromkeys(("inlineData", "inline_data", "fileData", "file_data"), "media"),
    **dict.fromkeys(("executableCode", "executable_code", "codeExecutionResult", "code_execution_result"), "code"),
}
# Fields in which a message holds what it says.
_BODY: Final = frozenset(
    {"content", "parts", "blocks", "text", "refusal", "audio", "tool_calls", "function_call", "additional_kwargs"}
)
_WORDS_OF_THOUGHT: Final = ("reasoning_content", "reasoning", "thinking", "reasoning_details")
# Where whole responses have their messages, of which a caller uses the first.
RESPONSES: Final = ("choices", "candidates")
_STOPPED: Final = ("promptFeedback", "prompt_feedback")
# Many models write what they think in front of what they say; a limit may have ended them before that.
_THOUGHT: Final = re.compile(r"\s*<(think|thinking)>.*?(?:</\1>\s*|\Z)", re.DOTALL)
# Metadata under other names than those of Nexus.
_ALIASES: Final = frozenset(
    {
        *("tool_call_id", "tool_use_id", "is_error", "isError", "function_call", "additional_kwargs"),
        *("invalid_tool_calls", "name"),
    }
)
_NATIVE_ROLES: Final = frozenset({"HUMAN", "AI", "TOOL", "SYSTEM", "COMMAND"})
_SUCCEEDED: Final = frozenset(
    {"success", "successful", "succeeded", "ok", "okay", "completed", "complete", "done", "finished", "executed"}
)
_MIME: Final = re.compile(r"[a-z]+/[a-z0-9.+-]{1,80}")
_DATA_URL: Final = re.compile(r"data:(?P<mime>[^;,]*)(?:;[^;,]*)*;base64,(?P<data>.*)", re.DOTALL)

MediaKind = Literal["image", "audio", "video", "file"]


@dataclass(frozen=True, slots=True)
class Media:
    """An image, a sound, a film or a file in a message.

    Attributes:
        mime: its type, such as `image/png`; `""` where that is not said.
        name: of a file, its name or title, and its address where there is one; `""` for none.
        size: bytes; None where they are not at hand.
        url: an address, or `data:image/png;base64,…`; `""` for one that is only named, such as by a provider's file id.
        detail: OpenAI's word for how closely a model looks at an image; `""` for none.
    """

    kind: MediaKind
    mime: str = ""
    size: int | None = None
    url: str = ""
    name: str = ""
    detail: str = ""

    @property
    def word(self) -> str:
        """What stands for it in a text, such as `[image: image/png, 20 KB]` or `[file: bill.pdf, application/pdf]`."""
        described = [*filter(None, (self.name, self.mime, _size(self.size)))]
        return f"[{self.kind}: {', '.join(described)}]" if described else f"[{self.kind}]"


class Input(NamedTuple):
    """A human input: its text, with words for what is no text, and the images and files in it, in their order."""

    text: str
    media: tuple[Media, ...] = ()


class _Call(NamedTuple):
    call: Any


class _Result(NamedTuple):
    content: Any
    known: Mapping[str, Any]


class _AsJson(str):
    """The JSON of a value that is not understood."""

    __slots__ = ()


class _Omitted(NamedTuple):
    what: str
    why: Why


# What a message says, piece by piece; a text is a text.
_Piece = str | Media | _Call | _Result | _Omitted


def is_native(row: Any) -> bool:
    """Whether a row is in the form inside already, as nearly all are."""
    if not isinstance(row, dict):
        return False
    role, metadata, content = row.get("role"), row.get("metadata"), row.get("content")
    return (
        isinstance(role, str)
        and role in _NATIVE_ROLES
        and (content is None or (isinstance(content, str) and not (role == "AI" and _THOUGHT.match(content))))
        and isinstance(metadata, dict)
        and isinstance(metadata.get("tool_calls"), list | None)
        and metadata.keys().isdisjoint(_ALIASES)
        and row.keys().isdisjoint(BESIDE_CONTENT)
    )


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
    metadata = row.get("metadata")
    listed = metadata.get(LEFT_OUT) if isinstance(metadata, Mapping) else None
    if not isinstance(listed, list | tuple):
        return ()
    return tuple(
        LeftOut(pair[0], where, Why[pair[1]])
        for pair in listed
        if isinstance(pair, list | tuple)
        and len(pair) == 2  # noqa: PLR2004  # kind and reason
        and isinstance(pair[0], str)
        and isinstance(pair[1], str)
        and pair[1] in Why.__members__
    )


def read_input(content: Any) -> Input | None:
    """The text and the media of a human input in any form; None for a value that is none.

    Results of tools in it are not part of it.
    """
    texts: list[str] = []
    media: list[Media] = []
    for piece in _pieces(content, Role.HUMAN):
        if isinstance(piece, _AsJson):
            return None
        if isinstance(piece, str):
            texts.append(piece)
        elif isinstance(piece, Media):
            texts.append(piece.word)
            media.append(piece)
    return Input("\n".join(texts), tuple(media))


def input_text(row: Any) -> str:
    """The text of a human's row in any form; `""` for none."""
    return next((as_text(part.get("content")) for part in native(row) if part.get("role") == Role.HUMAN.value), "")


def success_of(metadata: Mapping[str, Any]) -> bool | None:
    """Whether the call of a result with this metadata succeeded; None where it does not say."""
    if metadata.get("status", _UNKNOWN) == _UNKNOWN and metadata.get("execution_success") is not True:
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
    if _is_result(role, content):
        # What was recorded here came out of its envelope then.
        is_recorded = known.get("source") == TOOL_RESULT
        pieces: list[_Piece] = [_Result(content, known) if is_recorded else _result(content, known)]
    else:
        # Messages of results are the user's at Anthropic and Gemini, and so are words beside the results.
        role = Role.HUMAN if role is Role.TOOL else role
        pieces = [*_pieces(content, role)]
    if role is Role.AI:
        pieces += _not_among(pieces, _calls_beside(known))
    rows: list[Row] = []
    making = _Making(role)
    for piece in pieces:
        if isinstance(piece, _Result):
            rows += making.ended()
            making = _Making(role)
            rows.append(_result_row(piece))
            continue
        if isinstance(piece, _Omitted):
            continue
        if making.role is not (wanted := Role.AI if isinstance(piece, _Call) else role):
            # A call is the assistant's, under whatever name it comes.
            rows += making.ended()
            making = _Making(wanted)
        making.add(piece)
    rows += making.ended()
    made = rows or [{"role": role.value, "content": None if content is None else "", "metadata": {}}]
    if omitted := [[piece.what, piece.why.name] for piece in pieces if isinstance(piece, _Omitted)]:
        first = made[0]["metadata"]
        first[LEFT_OUT] = [*omitted, *first.get(LEFT_OUT, ())]
    usage = _usage(content) if role is Role.AI else {}
    odd = {REPAIRED: True} if any(isinstance(piece, _AsJson) for piece in pieces) else {}
    return [{**row, "metadata": {**metadata, **usage, **row["metadata"]}, **odd} for row in made]


class _Making:
    """A HUMAN or AI row in the making."""

    def __init__(self, role: Role) -> None:
        self.role = role
        self._texts: list[str] = []
        self._calls: list[Any] = []

    def add(self, piece: _Piece) -> None:
        match piece:
            case str():
                self._texts.append(piece)
            case Media():
                self._texts.append(piece.word)
            case _Call(call):
                self._calls.append(call)
            case _:
                pass

    def ended(self) -> list[Row]:
        if not (self._texts or self._calls):
            return []
        calls = {"tool_calls": self._calls} if self._calls else {}
        return [{"role": self.role.value, "content": "\n".join(self._texts), "metadata": calls}]


def _not_among(pieces: Iterable[_Piece], calls: Iterable[Any]) -> Iterator[_Piece]:
    """The calls that are not among the pieces: some clients name a call twice, in the content and beside it."""
    known = {_key_of(piece.call) for piece in pieces if isinstance(piece, _Call)}
    for call in calls:
        if not isinstance(call, Mapping):
            yield _Omitted("call", Why.UNREADABLE)
        elif _key_of(call) not in known:
            yield _Call(call)


def _key_of(call: Any) -> Any:
    return next(
        ((read.id, "") if read.id else (read.name, compact_json(read.arguments)) for read in read_tool_calls([call])),
        None,
    )


def _is_result(role: Role, content: Any) -> bool:
    """Whether a message of a tool is one result; else its parts are results."""
    if role is not Role.TOOL:
        return False
    # A message of Anthropic or Gemini has them further in.
    inner = _first(content, "content", "parts", "blocks") if isinstance(content, Mapping) else content
    parts = [content, *(inner if isinstance(inner, list | tuple) else [inner])]
    return not any(_kind_of(part) == "result" for part in parts)


def _result_row(result: _Result) -> Row:
    result = _opened_output(result)
    known = result.known
    failed = known.get("is_error") is True or known.get("isError") is True or is_error(result.content)
    done = False if failed else known.get("execution_success")
    status = "error" if failed or (done is False and known.get("status") is None) else known.get("status")
    fields = {
        "call_id": as_id(_first(known, *_IDS)),
        "tool_name": _first(known, "tool_name", "toolName", "name"),
        "status": status,
        "execution_success": done if isinstance(done, bool) or status is None else _is_success(status),
    }
    content, omitted = _content_of_result(result.content)
    metadata = {name: value for name, value in fields.items() if value not in (None, "")}
    return {"role": "TOOL", "content": content, "metadata": metadata | ({LEFT_OUT: omitted} if omitted else {})}


def _opened_output(result: _Result) -> _Result:
    """The result that is in the `output` of Vercel's AI SDK, which says what its value is; any other as it is."""
    output, known = result.content, result.known
    if "toolCallId" not in known or output is not known.get("output") or not isinstance(output, Mapping):
        return result
    if output.get("type") not in _OUTPUTS or "value" not in output:
        return result
    return _Result(output["value"], {**known, "is_error": output["type"] in _FAILED_OUTPUTS})


def _result(content: Any, known: Mapping[str, Any]) -> _Result:
    """The result that is all of a message: in the envelope of a bus or of a provider, or any JSON by itself."""
    if not isinstance(content, Mapping):
        return _Result(content, known)
    if (inner := _of_langchain(content)) is not None:
        return _result(inner, known)
    ids = [content[name] for name in _IDS if name in content]
    # LangChain's stand beside the content as well.
    names_its_call = bool(ids) and all(known[name] in ids for name in _IDS if known.get(name))
    if "result" in content:
        is_envelope = len(content) == 1 or not _ABOUT_RESULT.isdisjoint(content)
    else:
        is_envelope = (names_its_call or _names_tool(content)) and not content.keys().isdisjoint(_ANSWERS)
    if not is_envelope:
        return _Result(content, known)
    about = {**content, **{name: value for name, value in known.items() if value not in (None, "")}}
    if not any(about.get(name) for name in _IDS) and content.get("id"):
        about["call_id"] = content["id"]
    answer = next((content[name] for name in ("result", *_ANSWERS) if content.get(name) is not None), None)
    about |= {"is_error": True} if content.get("error") else {}
    # What is in a message may be in an envelope besides, and a message of a tool in an envelope of the bus.
    if isinstance(answer, Mapping) and _names_tool(answer) and not answer.keys().isdisjoint(_IDS):
        return _result(answer, about | ({"is_error": True} if answer.get("status") == "error" else {}))
    return _Result(answer, about) if read_role(content.get("role")) is None else _result(answer, about)


def _names_tool(content: Mapping[str, Any]) -> bool:
    return Role.TOOL in {read_role(content.get("role")), read_role(content.get("type"))}


_IDS: Final = ("call_id", "tool_call_id", "tool_use_id", "toolCallId", "toolUseId")
_FAILED_ENDINGS: Final = ("_error", "-denied")
_FAILED_OUTPUTS: Final = ("error-text", "error-json")
_OUTPUTS: Final = ("text", "json", "content", *_FAILED_OUTPUTS)
# Where an envelope has the answer, and what it has besides.
_ANSWERS: Final = ("content", "output", "text", "error", "data", "parts")
_ABOUT_RESULT: Final = frozenset(
    {*_IDS, "id", "tool_name", "toolName", "name", "status", "execution_success", "is_error", "error"}
)


def _content_of_result(content: Any) -> tuple[Any, list[list[str]]]:
    """A result with words in the place of media; any other JSON as it is."""
    if is_envelope(content):
        # Of a server of the Model Context Protocol, whose texts should say what is structured, too.
        texts, omitted = _content_of_result(content["content"] or "")
        structured = content.get("structuredContent")
        if not isinstance(texts, str):
            return content, []
        if structured is None or opened(texts) == opened(compact_json(structured)):
            return texts, omitted
        return "\n".join(filter(None, (texts, compact_json(structured)))), omitted
    if _is_shown_as_words(content):
        content = [content]
    if not isinstance(content, list | tuple) or not content:
        return content, []
    # Other parts are shown as their JSON, where there are some that are known: the tool may mean data of its own.
    known = [isinstance(part, str) or _is_shown_as_words(part) for part in content]
    data = [part for part, is_known in zip(content, known, strict=True) if not is_known]
    if not any(known) or not all(isinstance(part, Mapping) and "type" in part for part in data):
        return content, []
    pieces = [
        piece
        for part, is_known in zip(content, known, strict=True)
        for piece in (_part(part, Role.TOOL, 0) if is_known else [compact_json(part)])
    ]
    omitted = [[piece.what, piece.why.name] for piece in pieces if isinstance(piece, _Omitted)]
    texts = [piece.word if isinstance(piece, Media) else piece for piece in pieces if isinstance(piece, str | Media)]
    return "\n".join(texts), omitted


def _pieces(value: Any, role: Role, depth: int = 0) -> Iterator[_Piece]:
    """What a content, a message or a whole response says, in its order."""
    if value is None or value == "":
        return
    if isinstance(value, str):
        yield from _words(value, role)
    elif depth > _DEEPEST:
        yield as_text(value)
    elif isinstance(value, list | tuple):
        yield from _pieces_of_list(value, role, depth)
    elif isinstance(value, Mapping):
        yield from _pieces_of_object(value, role, depth)
    else:
        yield _AsJson(as_text(value))


def _words(text: str, role: Role) -> Iterator[_Piece]:
    """A text without what a model has thought in front of it."""
    while role is Role.AI and (thought := _THOUGHT.match(text)):
        yield _Omitted("thinking", Why.THINKING)
        text = text[thought.end() :]
    yield from filter(None, [text])


def _pieces_of_list(items: Sequence[Any], role: Role, depth: int) -> Iterator[_Piece]:
    if not any(map(_kind_of, items)) and not all(isinstance(item, str) for item in items):
        # No list of parts.
        yield _AsJson(as_text(items))
        return
    for item in items:
        yield from _part(item, role, depth)


def _pieces_of_object(value: Mapping[str, Any], role: Role, depth: int) -> Iterator[_Piece]:
    if (inner := _wrapped(value)) is not None:
        yield from _pieces(inner, role, depth + 1)
    elif _kind_of(value):
        yield from _part(value, role, depth)
    elif not _BODY.isdisjoint(value):
        yield from _pieces_of_message(value, role, depth + 1)
    elif value:
        yield _AsJson(compact_json(value))
    if further := [name for name in RESPONSES if isinstance(value.get(name), list | tuple) and len(value[name]) > 1]:
        yield _Omitted(f"{len(value[further[0]]) - 1} further {further[0]}", Why.TOO_MANY)


def _wrapped(value: Mapping[str, Any]) -> Any:
    """What a whole response, or a message of LangChain, is about; None for anything else."""
    for name in RESPONSES:
        # Chat completions of OpenAI, and Gemini.
        if isinstance(responses := value.get(name), list | tuple):
            return _first_response(responses)
    if _BODY.isdisjoint(value) and not value.keys().isdisjoint((*RESPONSES, *_STOPPED)):
        # A filter of Gemini has stopped all of it.
        return ""
    if isinstance(value.get("output"), list | tuple) and not value.get("call_id"):
        # OpenAI's Responses API.
        return value["output"] or value.get("output_text")
    for name in ("message", "delta"):
        if isinstance(value.get(name), Mapping):
            return value[name]
    return _of_langchain(value)


def _of_langchain(value: Mapping[str, Any]) -> Any:
    """What is in the envelope of LangChain's `message_to_dict` or `dumpd`; None for anything else."""
    if value.get("type") == "constructor" and isinstance(value.get("kwargs"), Mapping):
        return value["kwargs"]
    return value["data"] if isinstance(value.get("data"), Mapping) and role_of(value) else None


def _first_response(responses: Sequence[Any]) -> Any:
    """The first of them; `""` for one that says nothing, such as one that a filter has stopped."""
    first = responses[0] if responses else ""
    return "" if isinstance(first, Mapping) and (_BODY | {"message", "delta"}).isdisjoint(first) else first


def _pieces_of_message(value: Mapping[str, Any], role: Role, depth: int) -> Iterator[_Piece]:
    if any(value.get(name) for name in _WORDS_OF_THOUGHT):
        yield _Omitted("thinking", Why.THINKING)
    pieces = [piece for name in ("content", "parts", "blocks") for piece in _pieces(value.get(name), role, depth)]
    yield from pieces
    beside = [piece for name in ("refusal", "text") for piece in _pieces(value.get(name), role, depth)]
    yield from (piece for piece in beside if piece not in pieces)
    if isinstance(value.get("audio"), Mapping):
        yield from _audio(value["audio"])
    else:
        yield from _pieces(value.get("audio"), role, depth)
    yield from _not_among(pieces, _calls_beside(value))


def _audio(audio: Mapping[str, Any]) -> Iterator[_Piece]:
    """The spoken answer of a chat completion: its words, or that there is one."""
    transcript = [*_pieces(audio.get("transcript"), Role.AI, 1)]
    yield from transcript or [_media("audio", {"data": audio.get("data")})]


def _calls_beside(value: Mapping[str, Any]) -> Iterator[Any]:
    """The calls that stand beside a content; LangChain has those of a chat completion twice."""
    own = [*_listed_calls(value)]
    yield from own
    if isinstance(more := value.get("additional_kwargs"), Mapping):
        known = {_key_of(call) for call in own}
        yield from (call for call in _listed_calls(more) if _key_of(call) not in known)


def _listed_calls(source: Mapping[str, Any]) -> Iterator[Any]:
    for name in ("tool_calls", "invalid_tool_calls"):
        calls = source.get(name) or ()
        calls = _parsed(calls) if isinstance(calls, str) else calls
        yield from calls if isinstance(calls, list | tuple) else [calls]
    if isinstance(call := source.get("function_call"), Mapping):
        yield call


def _parsed(text: str) -> Any:
    """The JSON in a text; the text where there is none."""
    try:
        return from_json(text)
    except (TypeError, ValueError):
        # Half a surrogate pair is the wrong type.
        return text


def _kind_of(part: Any) -> str:
    """What kind of part of a message it is; `""` for none that is known."""
    if not isinstance(part, Mapping):
        return ""
    # LlamaIndex calls it otherwise.
    kind = part.get("type", part.get("block_type"))
    return _kind_by_type(kind, part) if isinstance(kind, str) else _kind_by_field(part)


def _kind_by_type(kind: str, part: Mapping[str, Any]) -> str:
    named = "result" if kind.endswith(_RESULT_ENDINGS) else _KINDS.get(kind, "")
    if not named and "toolCallId" in part and "state" in part:
        # Vercel's AI SDK puts the name of the tool into the type.
        return "call"
    match named:
        case "text":
            is_whole = isinstance(part.get(_TEXTS[kind]), str)
        case "message":
            is_whole = "content" in part or "role" in part
        case "nested call":
            named, is_whole = "call", isinstance(part.get(kind), Mapping)
        case _:
            is_whole = True
    return named if is_whole else ""


def _kind_by_field(part: Mapping[str, Any]) -> str:
    named = next((kind for name, kind in _FIELDS.items() if isinstance(part.get(name), Mapping)), "")
    # A whole message of OpenAI may have a `function_call` beside its content.
    if named and part.keys().isdisjoint({"content", "role"}):
        return named
    if part.get("thought") is True and "text" in part:
        return "thinking"
    return "text" if text_of_part(part) is not None else ""


def _part(part: Any, role: Role, depth: int) -> Iterator[_Piece]:
    """What one part of a message says."""
    if not isinstance(part, Mapping):
        yield from _pieces(part, role, depth + 1)
        return
    match _kind_of(part):
        case "text":
            yield from _words(part["refusal" if part.get("type") == "refusal" else "text"], role)
        case "thinking":
            yield _Omitted("thinking", Why.THINKING)
        case "call":
            yield from _words(_text_of(part, "text"), role)
            yield from _call_of_part(part)
        case "result":
            yield _result_of_part(part)
        case "media":
            yield from _media_of_part(part)
        case "message":
            yield from _pieces_of_message(part, role, depth + 1)
        case "code":
            code = _object_in(part, *_FIELDS)
            yield as_text(_first(code, "code", "output") or dict(code))
        case _:
            yield _text_of(part, "text") or _Omitted(_named(part), Why.UNREADABLE)


def _object_in(part: Mapping[str, Any], *names: str) -> Mapping[str, Any]:
    """The first object under one of these names; an empty one for none."""
    return next((part[name] for name in names if isinstance(part.get(name), Mapping)), {})


def _named(part: Mapping[str, Any]) -> str:
    """The kind of a part that is not understood, for the manifest: no content."""
    kind = part.get("type")
    return kind if isinstance(kind, str) and re.fullmatch(r"[a-z0-9_-]{1,40}", kind) else "part"


_OF_CALL: Final = ("type", "id", "call_id", "name", "arguments", "args", "input")
# What calls have under other names: those of Vercel's AI SDK, Bedrock, Gemini and OpenAI's actions.
_CALL_NAMES: Final = (
    ("id", ("toolCallId", "toolUseId")),
    ("name", ("toolName", "toolType", "tool_type")),
    ("args", ("action", "operation")),
)


def _call_of_part(part: Mapping[str, Any]) -> Iterator[_Piece]:
    """A call, and its result where the part has that, too."""
    call = _object_in(part, *_CALL_FIELDS) or part
    kind = str(part.get("type"))
    names = {ours: value for ours, theirs in _CALL_NAMES if (value := _first(call, *theirs)) is not None}
    if kind in _ACTIONS:
        names["name"] = kind.removesuffix("_call")
    elif kind.startswith("tool-") and "id" in names and "name" not in names:
        names["name"] = kind.removeprefix("tool-")
    own = {name: call[name] for name in _OF_CALL if name in call} if names else call
    yield _Call({**own, **names})
    answers = ("output", "result", "error", "errorText")
    if (kind == "mcp_call" or "state" in call) and (answer := _first(call, *answers)) is not None:
        failed = _first(call, *answers[2:]) is not None
        about = {"id": call.get("id"), "name": call.get("name"), **names}
        yield _Result(answer, {"call_id": about["id"], "name": about["name"], "is_error": failed})


def _result_of_part(part: Mapping[str, Any]) -> _Result:
    response = _object_in(part, *_RESULT_FIELDS)
    if "response" not in response:
        given = response or part
        content = next((given[name] for name in ("content", "output", "result") if name in given), None)
        failed = isinstance(content, Mapping) and str(content.get("type")).endswith(_FAILED_ENDINGS)
        about = {**given, "call_id": _first(given, *_IDS, "id"), **({"is_error": True} if failed else {})}
        return _Result(content, about)
    answer, failed = response.get("response"), False
    if isinstance(answer, Mapping) and len(answer) == 1:
        failed = "error" in answer
        answer = next((answer[name] for name in ("output", "result", "error") if name in answer), answer)
    if media := response.get("parts"):
        answer = [as_text(answer), *media]
    return _Result(answer, {"call_id": response.get("id"), "name": response.get("name"), "is_error": failed})


def _is_shown_as_words(part: Any) -> bool:
    """Whether a part of a result says nothing that its words would not say."""
    kind = _kind_of(part)
    if kind == "media":
        said = {name for name, value in part.items() if value is not None}
        # A tool that lists files says `{"type": "file", "name": …}`, too.
        shown = {"content"} if part.get("type") == "search_result" else set[str]()
        return said <= _ABOUT_MEDIA | shown and not said.isdisjoint(_SOURCES)
    return kind in {"text", "thinking"}


def _media_of_part(part: Mapping[str, Any]) -> Iterator[_Piece]:
    kind = _MEDIA.get(str(part.get("type", part.get("block_type"))), "file")
    source = part.get("source")
    nested = _object_in(part, *_FIELDS, str(part.get("type")), "source", "image", "file", "resource")
    media = _media(kind, {**part, **nested})
    # A document may be its own text.
    texts: Any = None
    # Not a set: it may be a list.
    if isinstance(source, Mapping) and source.get("type") in ("text", "content"):
        texts = source.get("data") or source.get("content")
    elif part.get("type") == "search_result":
        texts = part.get("content")
    elif isinstance(nested.get("text"), str):
        texts = nested["text"]
    if texts is None:
        yield media
        return
    yield from [replace(media, size=None).word] if media.name else []
    yield from _pieces(texts, Role.HUMAN, 1)


def _media(kind: MediaKind, given: Mapping[str, Any]) -> Media:
    url = _text_of(
        given,
        *("url", "image_url", "audio_url", "video_url", "file_url", "fileUri", "file_uri", "uri", "file_data", "image"),
    )
    data = _text_of(given, "data", "base64", "blob", "result")
    mime = _text_of(given, "media_type", "mimeType", "mime_type", "mediaType").lower()
    if found := _DATA_URL.fullmatch(url):
        mime, data, url = mime or found["mime"].lower(), found["data"], ""
    elif url and ":" not in url:
        data, url = url, ""
    if not mime and (form := _text_of(given, "format")) and kind == "audio":
        mime = f"audio/{form}"
    mime = mime if _MIME.fullmatch(mime) else ""
    kind = next((known for known in ("image", "audio", "video") if mime.startswith(f"{known}/")), kind)
    name = _text_of(given, "title", "filename", "name") if kind == "file" else ""
    if data:
        size = len(data) * 3 // 4 - data[-2:].count("=")
        return Media(kind, mime, size, f"data:{mime};base64,{data}", name, _text_of(given, "detail"))
    # A file is found again by its address.
    address = url or _text_of(given, "source") if kind == "file" else ""
    stated = given.get("size")
    known = stated if isinstance(stated, int) and not isinstance(stated, bool) and 0 <= stated < _MOST_BYTES else None
    return Media(kind, mime, known, url, ", ".join(filter(None, (name, address))), _text_of(given, "detail"))


def _text_of(given: Mapping[str, Any], *names: str) -> str:
    return next((given[name] for name in names if isinstance(given.get(name), str) and given[name]), "")


def _first(given: Mapping[str, Any], *names: str) -> Any:
    return next((given[name] for name in names if given.get(name) not in (None, "")), None)


def _size(size: int | None) -> str:
    if size is None:
        return ""
    return f"{size / 1e6:.1f} MB" if size >= _MEGABYTE else f"{-(-size // 1_000)} KB"


# What providers call the tokens of the prompt, those of the answer, and both.
_USAGE: Final = (
    ("prompt_tokens", ("prompt_tokens", "input_tokens", "promptTokenCount", "prompt_token_count")),
    ("completion_tokens", ("completion_tokens", "output_tokens", "candidatesTokenCount", "candidates_token_count")),
    ("total_tokens", ("total_tokens", "totalTokenCount", "total_token_count")),
)


def _usage(content: Any) -> dict[str, Any]:
    """The tokens that a response says it took, under one set of names."""
    given = _first(content, "usage", "usageMetadata", "usage_metadata") if isinstance(content, Mapping) else None
    if not isinstance(given, Mapping):
        return {}
    counts = {ours: value for ours, theirs in _USAGE if (value := _first(given, *theirs)) is not None}
    return {"usage": counts} if counts else {}

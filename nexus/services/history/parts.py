"""What the content of a message says, piece by piece, in any form of contract §11. Pure.

A content is a text, a list of parts, one part, the message of another system or a whole response of a provider. What is
not understood is never dropped: a value stays as its JSON, and an unknown part of a list is left out by name.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, NamedTuple

from pydantic_core import from_json

from nexus.core.models import ABOUT_RESULT, ATTACHED, CALL_ARGUMENTS, CALL_IDS, Role, Why, role_of
from nexus.services.history.tool_calls import read_tool_calls
from nexus.services.text.content import as_text, compact_json, text_of_part

_DEEPEST: Final = 6
_MEGABYTE: Final = 1_000_000
# A file of more is not believed.
_MOST_BYTES: Final = 2**63

# What a part is, by its `type` with `_` for `-`; else by how that ends.
_KINDS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("text", "input_text", "output_text", "refusal", "user_prompt"), "text"),
    **dict.fromkeys(("thinking", "redacted_thinking", "reasoning", "reasoning_text", "summary_text"), "thinking"),
    **dict.fromkeys(("function", "custom"), "nested call"),
    **dict.fromkeys(("image", "image_url", "input_image", "image_generation_call", "computer_screenshot"), "media"),
    **dict.fromkeys(("audio", "audio_url", "input_audio", "video", "video_url", "input_video"), "media"),
    **dict.fromkeys(("file", "input_file", "document", "container_upload", "media"), "media"),
    # Of the Model Context Protocol.
    **dict.fromkeys(("resource", "resource_link"), "media"),
    # What a search of Anthropic has found.
    **dict.fromkeys(("search_result", "web_search_result"), "media"),
    **dict.fromkeys(("computer_call", "local_shell_call", "shell_call", "apply_patch_call"), "action"),
    "message": "message",
}
_ENDINGS: Final = (
    (("tool_result", "tool_error", "tool_return", "retry_prompt", "_call_output"), "result"),
    (("tool_use", "tool_call", "tool_invocation", "function_call", "mcp_call", "tool_call_chunk"), "call"),
    # What OpenAI's servers ran themselves: named where it is left out.
    (("web_search_call", "file_search_call", "code_interpreter_call"), "hosted"),
)
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
    {
        *("content", "parts", "blocks", "text", "refusal", "audio"),
        *("tool_calls", "toolCalls", "function_call", "additional_kwargs"),
    }
)
_WORDS_OF_THOUGHT: Final = ("reasoning_content", "reasoning", "thinking", "reasoning_details", "thought", "thoughts")
_THOUGHT_ALONE: Final = {"role", *_WORDS_OF_THOUGHT}
# Texts of a message, or of a part without a type, that nobody said, and how the names of others end. No sentence, but
# a name, a state or a time, is what has no space and only ASCII, or nothing but digits and signs.
_NOT_SAID: Final = ABOUT_RESULT.union(
    _BODY,
    _WORDS_OF_THOUGHT,
    ATTACHED,
    ("role", "type", "id", "model", "object", "phase", "timestamp", "created", "date", "thoughtSignature"),
    ("stop_reason", "stop_sequence", "finish_reason", "finishReason", "thought_signature"),
    ("usage", "usageMetadata", "usage_metadata"),
    ("agent", "author", "sender", "from", "source", "user", "title", "description"),
)
_NOT_SAID_ENDINGS: Final = ("_id", "Id", "_at", "At", "_name", "Name")
_NO_SENTENCE: Final = re.compile(r"[!-~]{0,100}|[ -@]*")
# Where whole responses have their messages, of which a caller uses the first.
RESPONSES: Final = ("choices", "candidates")
_STOPPED: Final = ("promptFeedback", "prompt_feedback")
# Many models write what they think in front of what they say; a limit may have ended them before that.
_THOUGHT: Final = re.compile(r"\s*<(think|thinking)>.*?(?:</\1>\s*|\Z)", re.DOTALL)
# Where a result has the answer.
ANSWERS: Final = ("result", "content", "output", "text", "error", "data", "parts", "blocks")
_FAILED_ENDINGS: Final = ("_error", "-error", "-denied")
_FAILED_OUTPUTS: Final = ("error-text", "error-json")
_OUTPUTS: Final = ("text", "json", "content", *_FAILED_OUTPUTS)
_MIME: Final = re.compile(r"[a-z]+/[a-z0-9.+-]{1,80}")
_DATA_URL: Final = re.compile(r"data:(?P<mime>[^;,]*)(?:;[^;,]*)*;base64,(?P<data>.*)", re.DOTALL)
_ADDRESSES: Final = (
    *("url", "image_url", "audio_url", "video_url", "file_url", "fileUri", "file_uri", "uri", "file_data", "image"),
)
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
# What calls have under other names: those of Vercel's AI SDK, Bedrock, Gemini and OpenAI's actions.
_CALL_NAMES: Final = (
    ("id", ("toolCallId", "toolUseId")),
    ("name", ("toolName", "toolType", "tool_type")),
)
_OF_CALL: Final = (
    *("type", "id", "call_id", "tool_call_id", "tool_use_id", "name", "tool_name", "function", "custom"),
    *CALL_ARGUMENTS,
)
_CALL_ANSWERS: Final = ("output", "result", "error", "errorText")
# States in which a call has its result, be it nothing.
_FAILED: Final = ("output-error", "failed")
_OVER: Final = ("output-available", "result", "output-error")
_OVER_ON_SERVER: Final = ("completed", "failed")

MediaKind = Literal["image", "audio", "video", "file"]
_SEEN_OR_HEARD: Final[Sequence[MediaKind]] = ("image", "audio", "video")


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


class Call(NamedTuple):
    """A call, in a form that `read_tool_calls` knows."""

    call: Mapping[str, Any]


class Result(NamedTuple):
    """A result of a call, and what is said about it under the names of any system."""

    content: Any
    about: Mapping[str, Any]


class AsJson(str):
    """The JSON of a value that is not understood."""

    __slots__ = ()


class Omitted(NamedTuple):
    """What no context shows, by its kind, and why."""

    what: str
    why: Why


# What a message says, piece by piece; a text is a text.
Piece = str | Media | Call | Result | Omitted


def pieces(value: Any, role: Role, depth: int = 0) -> Iterator[Piece]:
    """What a content, a message or a whole response of this role says, in its order."""
    if value is None or value == "":
        return
    if isinstance(value, str):
        yield from _words(value, role)
    elif depth > _DEEPEST:
        yield as_text(value)
    elif isinstance(value, list | tuple):
        if any(map(kind_of, value)) or all(isinstance(item, str) for item in value):
            for item in value:
                yield from pieces_of_part(item, role, depth)
        else:
            # No list of parts.
            yield AsJson(as_text(value))
    elif isinstance(value, Mapping):
        yield from _pieces_of_object(value, role, depth)
    else:
        yield AsJson(as_text(value))


def is_thought(text: str) -> bool:
    """Whether a text of a model begins with what it thinks."""
    return _THOUGHT.match(text) is not None


def _words(text: str, role: Role) -> Iterator[Piece]:
    """A text without what a model has thought in front of it."""
    said = 0
    while role is Role.AI and (thought := _THOUGHT.match(text, said)):
        yield Omitted("thinking", Why.THINKING)
        said = thought.end()
    yield from filter(None, [text[said:]])


def first_of(given: Mapping[str, Any], *names: str) -> Any:
    """The first value under one of these names that is something; None for none."""
    return next((given[name] for name in names if given.get(name) not in (None, "")), None)


def texts_of(said: Iterable[Piece]) -> str:
    """The texts among the pieces, with words for media."""
    return "\n".join(each.word if isinstance(each, Media) else each for each in said if isinstance(each, str | Media))


def _pieces_of_object(value: Mapping[str, Any], role: Role, depth: int) -> Iterator[Piece]:
    if (inner := _wrapped(value)) is not None:
        yield from pieces(inner, role, depth + 1)
    elif kind_of(value):
        yield from pieces_of_part(value, role, depth)
    elif not _BODY.isdisjoint(value) or (role is Role.AI and value.keys() <= _THOUGHT_ALONE):
        yield from _pieces_of_message(value, role, depth + 1)
    elif value:
        yield AsJson(compact_json(value))
    if further := [name for name in RESPONSES if isinstance(value.get(name), list | tuple) and len(value[name]) > 1]:
        yield Omitted(f"{len(value[further[0]]) - 1} further {further[0]}", Why.TOO_MANY)


def _wrapped(value: Mapping[str, Any]) -> Any:
    """What a whole response, or a message in an envelope, is about; None for anything else."""
    for name in RESPONSES:
        # Chat completions of OpenAI, and Gemini.
        if isinstance(responses := value.get(name), list | tuple):
            return _first_response(responses)
    if _BODY.isdisjoint(value) and not value.keys().isdisjoint((*RESPONSES, *_STOPPED)):
        # A filter of Gemini has stopped all of it.
        return ""
    output = value.get("output")
    if isinstance(output, list | tuple) and output and value.keys().isdisjoint({"call_id", "content"}):
        # OpenAI's Responses API.
        return output
    if isinstance(output, Mapping) and isinstance(output.get("message"), Mapping):
        # Amazon's Bedrock.
        return output["message"]
    for name in ("message", "delta"):
        if isinstance(value.get(name), Mapping):
            return value[name]
    return of_langchain(value)


def of_langchain(value: Mapping[str, Any]) -> Any:
    """What is in the envelope of LangChain's `message_to_dict` or `dumpd`; None for anything else."""
    if value.get("type") == "constructor" and isinstance(value.get("kwargs"), Mapping):
        return value["kwargs"]
    return value["data"] if isinstance(value.get("data"), Mapping) and role_of(value) else None


def _first_response(responses: Sequence[Any]) -> Any:
    """The first of them; `""` for one that says nothing, such as one that a filter has stopped."""
    first = responses[0] if responses else ""
    return "" if isinstance(first, Mapping) and (_BODY | {"message", "delta"}).isdisjoint(first) else first


def _pieces_of_message(value: Mapping[str, Any], role: Role, depth: int) -> Iterator[Piece]:
    if any(value.get(name) for name in _WORDS_OF_THOUGHT):
        yield Omitted("thinking", Why.THINKING)
    said = [*pieces(value.get("content"), role, depth)]
    parts = [piece for name in ("parts", "blocks") for piece in pieces(value.get(name), role, depth)]
    # Vercel's AI SDK 4 has the texts of the parts in the content, too.
    is_twice = said and said == ["".join(piece for piece in parts if isinstance(piece, str))]
    said = parts if is_twice else [*said, *parts]
    yield from said
    beside = [piece for name in ("refusal", "text") for piece in pieces(value.get(name), role, depth)]
    yield from (piece for piece in beside if piece not in said)
    if isinstance(audio := value.get("audio"), Mapping):
        # The spoken answer of a chat completion: its words, or that there is one.
        yield from [*pieces(audio.get("transcript"), Role.AI, 1)] or [_media("audio", audio)]
    else:
        yield from pieces(audio, role, depth)
    yield from calls_beside(value, said)
    yield from (Omitted(name, Why.UNREADABLE) for name in ATTACHED if value.get(name))
    yield from _unknown_texts(value)


def _unknown_texts(value: Mapping[str, Any]) -> Iterator[Omitted]:
    """Sentences under names that are not known, beside those that are."""
    for name, text in value.items():
        is_said = isinstance(text, str) and not _NO_SENTENCE.fullmatch(text)
        if is_said and name not in _NOT_SAID and not str(name).endswith(_NOT_SAID_ENDINGS):
            yield Omitted(_named(name), Why.UNREADABLE)


def calls_beside(value: Mapping[str, Any], said: Iterable[Piece]) -> Iterator[Piece]:
    """The calls that stand beside a content and not in it: some clients name a call twice.

    LangChain has those of a provider under `additional_kwargs` too, mostly the same.
    """
    known = {_key_of(piece.call) for piece in said if isinstance(piece, Call)}
    more = value.get("additional_kwargs")
    for call in [*_listed_calls(value)] or _listed_calls(more if isinstance(more, Mapping) else {}):
        if not isinstance(call, Mapping):
            yield Omitted("call", Why.UNREADABLE)
        elif _key_of(call) not in known:
            yield Call(call)


def _listed_calls(source: Mapping[str, Any]) -> Iterator[Any]:
    for name in ("tool_calls", "toolCalls", "invalid_tool_calls", "function_call"):
        calls = source.get(name) or ()
        calls = _parsed(calls) if isinstance(calls, str) else calls
        yield from calls if isinstance(calls, list | tuple) else [calls]


def _parsed(text: str) -> Any:
    """The JSON in a text; the text where there is none."""
    try:
        return from_json(text)
    except (TypeError, ValueError):
        # Half a surrogate pair is the wrong type.
        return text


def _key_of(call: Mapping[str, Any]) -> tuple[str, str]:
    (read,) = read_tool_calls([call])
    return (read.id, "") if read.id else (read.name, compact_json(read.arguments))


def kind_of(part: Any) -> str:
    """What kind of part of a message it is; `""` for none that is known."""
    if not isinstance(part, Mapping):
        return ""
    # LlamaIndex and Pydantic AI call it otherwise.
    given = part.get("type", part.get("block_type", part.get("part_kind")))
    return _kind_by_type(given.replace("-", "_"), part) if isinstance(given, str) else _kind_by_field(part)


def _kind_by_type(name: str, part: Mapping[str, Any]) -> str:
    is_whole = True
    match kind := _KINDS.get(name) or next((kind for endings, kind in _ENDINGS if name.endswith(endings)), ""):
        case "text":
            is_whole = isinstance(_said_in(part), str)
        case "message":
            is_whole = "content" in part or "role" in part
        case "nested call":
            kind, is_whole = "call", isinstance(part.get(name), Mapping)
        case "action":
            # What OpenAI's models have a client run that is no function: the type is the name.
            kind = "call"
        case "":
            # Vercel's AI SDK puts the name of the tool into the type.
            kind = "call" if "toolCallId" in part and "state" in part else ""
        case _:
            pass
    return kind if is_whole else ""


def _kind_by_field(part: Mapping[str, Any]) -> str:
    named = next((kind for name, kind in _FIELDS.items() if isinstance(part.get(name), Mapping)), "")
    # A whole message of OpenAI may have a `function_call` beside its content.
    if named and part.keys().isdisjoint({"content", "role"}):
        return named
    if part.get("thought") is True and "text" in part:
        return "thinking"
    return "text" if text_of_part(part) is not None else ""


def is_shown_as_words(part: Any) -> bool:
    """Whether a part of a result says nothing that its words would not say."""
    kind = kind_of(part)
    if kind == "media":
        said = {name for name, value in part.items() if value is not None}
        # A tool that lists files says `{"type": "file", "name": …}`, too.
        shown = {"content"} if part.get("type") == "search_result" else set[str]()
        return said <= _ABOUT_MEDIA | shown and not said.isdisjoint(_SOURCES)
    return kind == "thinking" or (kind == "text" and isinstance(part.get("text", part.get("refusal")), str))


def pieces_of_part(part: Any, role: Role, depth: int = 0) -> Iterator[Piece]:
    """What one part of a message says."""
    if not isinstance(part, Mapping):
        yield from pieces(part, role, depth + 1)
        return
    match kind_of(part):
        case "text":
            yield from _words(_said_in(part), role)
        case "thinking":
            yield Omitted("thinking", Why.THINKING)
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
            yield as_text(first_of(code, "code", "output") or dict(code))
        case _:
            yield from _pieces_of_unknown(part)


def _pieces_of_unknown(part: Mapping[str, Any]) -> Iterator[Piece]:
    if text := _text_of(part, "text"):
        yield text
        yield from _unknown_texts(part)
    elif part.keys() != {"type"}:
        # One that is nothing but its type says nothing, such as where a step begins.
        yield Omitted(_named(part.get("type")), Why.UNREADABLE)


def _said_in(part: Mapping[str, Any]) -> Any:
    """The text of a part that is one; `""` for null."""
    name = "refusal" if part.get("type") == "refusal" else "text"
    # TanStack AI and OpenTelemetry have it in the content, OpenAI's Assistants in an object.
    name = name if name in part else "content"
    said = part[name].get("value") if isinstance(part.get(name), Mapping) else part.get(name)
    return "" if said is None and name in part else said


def _object_in(part: Mapping[str, Any], *names: str) -> Mapping[str, Any]:
    """The first object under one of these names; an empty one for none."""
    return next((part[name] for name in names if isinstance(part.get(name), Mapping)), {})


def _named(kind: Any) -> str:
    """The kind of what is not understood, for the manifest: no content."""
    return kind if isinstance(kind, str) and re.fullmatch(r"[A-Za-z0-9_-]{1,40}", kind) else "part"


def _call_of_part(part: Mapping[str, Any]) -> Iterator[Piece]:
    """A call, and its result where the part has that, too."""
    call, kind = _object_in(part, *_CALL_FIELDS), str(part.get("type"))
    # The id may stand beside it.
    call = {**{name: part[name] for name in (*CALL_IDS, "id") if name in part}, **call} if call else part
    names = {ours: value for ours, theirs in _CALL_NAMES if (value := first_of(call, *theirs)) is not None}
    if _KINDS.get(kind) == "action":
        names |= {"name": kind.removesuffix("_call"), "args": first_of(call, "action", "operation")}
    elif kind.startswith("tool-") and "id" in names and "name" not in names:
        names["name"] = kind.removeprefix("tool-")
    own = {name: call[name] for name in _OF_CALL if name in call} if names else call
    yield Call({**own, **names})
    answer, approval = first_of(call, *_CALL_ANSWERS), _object_in(call, "approval")
    denied = answer is None and approval.get("approved") is False
    if denied:
        # The result that Vercel's AI SDK makes of it.
        answer = {"type": "execution-denied", **({"reason": approval["reason"]} if approval.get("reason") else {})}
    is_on_server = kind == "mcp_call"
    state = call.get("status" if is_on_server else "state")
    is_over = state in (_OVER_ON_SERVER if is_on_server else _OVER) or call.get("output") == ""
    if (is_on_server or "state" in call) and (answer is not None or is_over):
        failed = denied or state in _FAILED or first_of(call, *_CALL_ANSWERS[2:]) is not None
        about = {"id": call.get("id"), "name": call.get("name"), **names}
        yield Result(answer, {"call_id": about["id"], "name": about["name"], "is_error": failed})


def _result_of_part(part: Mapping[str, Any]) -> Result:
    response = _object_in(part, *_RESULT_FIELDS)
    if "response" not in response:
        result = result_in(response or part, {})
        kinds = [each.get("type") for each in (part, result.content) if isinstance(each, Mapping)]
        failed = any(str(kind).endswith(_FAILED_ENDINGS) for kind in kinds)
        return Result(result.content, {**result.about, "is_error": True}) if failed else result
    answer, failed = response.get("response"), False
    if isinstance(answer, Mapping) and len(answer) == 1:
        failed = "error" in answer
        answer = next((answer[name] for name in ("output", "result", "error") if name in answer), answer)
    if media := response.get("parts"):
        answer = [as_text(answer), *media]
    return Result(answer, {"call_id": response.get("id"), "name": response.get("name"), "is_error": failed})


def result_in(given: Mapping[str, Any], known: Mapping[str, Any]) -> Result:
    """The result in a part or an envelope; what is known of it outweighs what these say."""
    # LlamaIndex names the call further in.
    about = {**_object_in(given, "additional_kwargs"), **given}
    about |= {name: value for name, value in known.items() if value not in (None, "")}
    if not any(about.get(name) for name in CALL_IDS) and given.get("id"):
        about["call_id"] = given["id"]
    answer = _answer_in(given)
    if "toolCallId" in given and answer is given.get("output") and isinstance(answer, Mapping):
        # Vercel's AI SDK says what the value is.
        kind = answer.get("type")
        if kind in _OUTPUTS and "value" in answer:
            return Result(answer["value"], {**about, "is_error": kind in _FAILED_OUTPUTS})
    return Result(answer, about | ({"is_error": True} if given.get("error") else {}))


def _answer_in(given: Mapping[str, Any]) -> Any:
    """What a result says: all of it where it says several things, such as an output and an error."""
    answers = {name: given[name] for name in ANSWERS if given.get(name) is not None}
    said = {name: value for name, value in answers.items() if value not in ("", [], {}) and (value or name != "error")}
    first, *others = [*(said or answers).values()] or [None]
    # An error may be an object with the same text.
    texts = (value.get("message", value) if isinstance(value, Mapping) else value for value in others)
    return first if all(text == first for text in texts) else said


def _media_of_part(part: Mapping[str, Any]) -> Iterator[Piece]:
    name, source = str(part.get("type", part.get("block_type"))), part.get("source")
    kind: MediaKind = "image" if name == "computer_screenshot" else "file"
    kind = next((each for each in _SEEN_OR_HEARD if each in name), kind)
    nested = _object_in(part, *_FIELDS, name, "source", "image", "file", "resource")
    media = _media(kind, {**part, **nested})
    # A document may be its own text.
    texts: Any = None
    if isinstance(source, Mapping) and source.get("type") in ("text", "content"):
        texts = source.get("data") or source.get("content")
    elif name == "search_result":
        texts = part.get("content")
    elif isinstance(nested.get("text"), str):
        texts = nested["text"]
    if texts is None:
        yield media
        return
    yield from [replace(media, size=None).word] if media.name else []
    yield from pieces(texts, Role.HUMAN, 1)


def _media(kind: MediaKind, given: Mapping[str, Any]) -> Media:
    url, data = _text_of(given, *_ADDRESSES), _text_of(given, "data", "base64", "blob", "result")
    mime = _text_of(given, "media_type", "mimeType", "mime_type", "mediaType").lower()
    if found := _DATA_URL.fullmatch(url):
        mime, data, url = mime or found["mime"].lower(), found["data"], ""
    elif url and ":" not in url:
        data, url = url, ""
    if not mime and (form := _text_of(given, "format")) and kind == "audio":
        mime = f"audio/{form}"
    mime = mime if _MIME.fullmatch(mime) else ""
    kind = next((known for known in _SEEN_OR_HEARD if mime.startswith(f"{known}/")), kind)
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


def _size(size: int | None) -> str:
    if size is None:
        return ""
    return f"{size / 1e6:.1f} MB" if size >= _MEGABYTE else f"{-(-size // 1_000)} KB"

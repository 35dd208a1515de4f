"""An answer as what people want to see of it: its blocks with their texts, its tools, and what it leaves out. Pure.

An answer is the JSON of an envelope (contract §1.4) in any format, its content, or a manifest alone (contract §8), of
which the texts are not known. What a manifest of another release lacks counts as empty.

`sent` is what goes to a model in the order in which it reads it: a message each in OpenAI's form; in the other forms,
where one message holds what are several in OpenAI's, a part each of `system` and of the messages.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any, Final

from pydantic_core import from_json

from nexus.core.wire import compact
from nexus.services.text.escape import PARTING

_OPENAI: Final = "openai"
_SEPARATOR: Final = b"\n\n"
# Only Anthropic has them, and a cache does not depend on where they stand.
_CACHE_MARK: Final = "cache_control"


@dataclass(frozen=True, slots=True)
class Sent:
    """A message of an answer, or a part of one.

    Attributes:
        where: such as `message 3`, `message 3, part 2` and `system, part 1`, counted from 1.
        text: as people read it: texts, a line a call and the call of a result, images as a word.
        body: the JSON, without marks for caches.
        size: bytes of its compact JSON.
    """

    where: str
    role: str
    text: str
    body: Mapping[str, Any]
    size: int


@dataclass(frozen=True, slots=True)
class ShownBlock:
    """A block as the manifest describes it, with what was sent of it.

    Attributes:
        index: of its first message in OpenAI's form, from 0.
        bytes, tokens: as in the manifest; `tokens` is None where nothing was counted.
        sources: ids of the messages, or turns, that it shows.
        first, end: its place in `Explained.sent`, from 0, `end` not included. Parts of one message have the same.
        texts: one for each of these; nothing where only the manifest is known.
    """

    tag: str
    role: str
    index: int
    bytes: int
    tokens: int | None
    sources: tuple[str, ...]
    truncated: int
    dropped: int
    escaped: int
    first: int = 0
    end: int = 0
    texts: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """All of its texts."""
        return "\n".join(self.texts)


@dataclass(frozen=True, slots=True)
class Omission:
    """An entry of `left_out`."""

    what: str
    where: str
    why: str


@dataclass(frozen=True, slots=True)
class Explained:
    """An answer.

    Attributes:
        error: code and message of an error answer; None for a context.
        layout, form: `""` for an error.
        has_texts: whether messages and tools are known, and not the manifest alone.
        sent: what a model is given, but for tools.
        tools: as they were sent.
        prefix: how many leading entries of `sent` the next build can repeat; None where that cannot be told.
        prefix_messages: how many messages in OpenAI's form these are.
        history, tokens, timings_ms: as in the manifest; empty where it has none.
    """

    error: tuple[str, str] | None = None
    layout: str = ""
    form: str = ""
    has_texts: bool = True
    sent: tuple[Sent, ...] = ()
    blocks: tuple[ShownBlock, ...] = ()
    tools: tuple[Mapping[str, Any], ...] = ()
    degraded: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    left_out: tuple[Omission, ...] = ()
    prefix: int | None = None
    prefix_messages: int = 0
    prefix_sha256: str = ""
    history: Mapping[str, int] = field(default_factory=dict)
    tokens: Mapping[str, Any] = field(default_factory=dict)
    timings_ms: Mapping[str, float] = field(default_factory=dict)

    def blocks_of(self, place: int) -> list[ShownBlock]:
        """The blocks that this entry of `sent` shows: one; several parts of one message; none."""
        return [block for block in self.blocks if block.first <= place < block.end]

    @property
    def tags(self) -> frozenset[str]:
        """Of all its blocks."""
        return frozenset(block.tag for block in self.blocks)

    @property
    def beside(self) -> tuple[Sent, ...]:
        """What was sent and is of no block, such as the text that a provider wants in front of an assistant's."""
        return tuple(each for place, each in enumerate(self.sent) if not self.blocks_of(place))


def explain(answer: bytes) -> Explained:
    """What an answer says.

    Raises:
        ValueError: it is none, with the reason.
    """
    envelope = _object(_parsed(answer), "the answer")
    return explain_content(_object(envelope.get("content"), "the answer's content"))


def explain_content(content: Mapping[str, Any]) -> Explained:
    """What the content of an answer says; ValueError as for `explain`."""
    if content.get("status") == "error":
        error = _object(content.get("error"), "content.error")
        return Explained((str(error.get("code", "")), str(error.get("message", ""))))
    form = content.get("format", _OPENAI)
    sent, starts = _sent(content, form)
    tools = tuple(_objects(content.get("tools"), "content.tools"))
    manifest = _object(content.get("context"), "content.context")
    degraded = tuple(map(str, content.get("degraded") or ()))
    return _explained(manifest, sent, starts, form=form, tools=tools, degraded=degraded)


def explain_manifest(manifest: bytes, *, form: str = _OPENAI) -> Explained:
    """What a manifest says, without texts; ValueError as for `explain`. An error has an empty one."""
    return _explained(_object(_parsed(manifest), "the manifest"), (), {}, form=form, has_texts=False)


def _explained(
    manifest: Mapping[str, Any], sent: tuple[Sent, ...], starts: Mapping[tuple[int, int], int], **known: Any
) -> Explained:
    entries = [*_objects(manifest.get("blocks"), "context.blocks")]
    prefix = _mapping(manifest, "prefix")
    places = [_place(entry, sent, starts) for entry in entries]
    described = [*map(_block, entries, places, _ends(entries, places, len(sent)))]
    blocks = tuple(_with_texts(block, described, sent) for block in described)
    return Explained(
        layout=str(manifest.get("layout", "")),
        sent=sent,
        blocks=blocks,
        notes=tuple(map(str, manifest.get("notes") or ())),
        left_out=tuple(
            Omission(*(str(each.get(name, "")) for name in ("what", "where", "why")))
            for each in _objects(manifest.get("left_out"), "context.left_out")
        ),
        prefix=_prefix(_count(prefix, "messages"), blocks, len(sent), starts),
        prefix_messages=_count(prefix, "messages"),
        prefix_sha256=str(prefix.get("sha256", "")),
        history=_mapping(manifest, "history"),
        tokens=_mapping(manifest, "tokens"),
        timings_ms=_mapping(manifest, "timings_ms"),
        **known,
    )


def _sent(content: Mapping[str, Any], form: str) -> tuple[tuple[Sent, ...], dict[tuple[int, int], int]]:
    """What is sent, and where each part of a message is in it, by the index of the message and of the part."""
    messages = [*_objects(content.get("messages"), "content.messages")]
    if form == _OPENAI:
        return tuple(_whole(message, f"message {number}") for number, message in enumerate(messages, 1)), {}
    system, key = content.get("system"), "content"
    if form == "gemini":
        system, key = _object(system or {}, "content.system").get("parts"), "parts"
    found = [
        _part(part, "system", f"system, part {number}")
        for number, part in enumerate(_objects(system, "content.system"), 1)
    ]
    starts = {}
    for index, message in enumerate(messages):
        for number, part in enumerate(_objects(message.get(key), f"content.messages[{index}].{key}")):
            starts[index, number] = len(found)
            found.append(_part(part, str(message.get("role", "")), f"message {index + 1}, part {number + 1}"))
    return tuple(found), starts


def _whole(message: Mapping[str, Any], where: str) -> Sent:
    lines = [f"<- {message.get('tool_call_id', '')}"] if message.get("role") == "tool" else []
    content = message.get("content")
    lines += [content] if isinstance(content, str) else [_text_of_part(part) for part in content or ()]
    for call in message.get("tool_calls") or ():
        function = _mapping(call, "function")
        lines.append(f"-> {function.get('name', '')}({function.get('arguments', '')})  {call.get('id', '')}")
    return Sent(where, str(message.get("role", "")), "\n".join(filter(None, lines)), message, len(compact(message)))


def _part(part: Mapping[str, Any], role: str, where: str) -> Sent:
    body = {name: value for name, value in part.items() if name != _CACHE_MARK}
    return Sent(where, role, _text_of_part(part), body, len(compact(body)))


def _text_of_part(part: Mapping[str, Any]) -> str:
    """The text of a part of a message in any format."""
    match part:
        case {"text": str(text)}:
            return text
        case {"type": "tool_use", **call} | {"function_call": {**call}}:
            return f"-> {call.get('name', '')}({_json(call.get('input', call.get('args')))})  {call.get('id', '')}"
        case {"type": "tool_result", **result}:
            return _result(result.get("tool_use_id"), result.get("content"), failed=bool(result.get("is_error")))
        case {"function_response": {"response": {**said}, **result}}:
            return _result(result.get("id"), said.get("error", said.get("output")), failed="error" in said)
        case {"type": "image_url" | "image"} | {"inline_data": _} | {"file_data": _}:
            # Blocks are compared by their texts.
            data = compact(part)
            return f"[image, {len(data)} bytes, SHA-256 {hashlib.sha256(data).hexdigest()[:12]}...]"
        case _:
            return _json(part)


def _result(call_id: Any, content: Any, *, failed: bool) -> str:
    return (
        f"<- {call_id or ''}{' (failed)' if failed else ''}\n{content if isinstance(content, str) else _json(content)}"
    )


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _block(entry: Mapping[str, Any], first: int, end: int) -> ShownBlock:
    tokens = entry.get("tokens")
    return ShownBlock(
        tag=str(entry.get("tag", "")),
        role=str(entry.get("role", "")),
        index=_count(entry, "index"),
        bytes=_count(entry, "bytes"),
        tokens=tokens if isinstance(tokens, int) else None,
        sources=tuple(map(str, entry.get("sources") or ())),
        truncated=_count(entry, "truncated"),
        dropped=_count(entry, "dropped"),
        escaped=_count(entry, "escaped"),
        first=first,
        end=end,
    )


def _place(entry: Mapping[str, Any], sent: Sequence[Sent], starts: Mapping[tuple[int, int], int]) -> int:
    """Where a block begins in what was sent; its end where the entry names no place there."""
    place = entry.get("place")
    if place is None:
        # OpenAI's form, or one of the leading system messages, which are the parts of `system`.
        return min(_count(entry, "index"), len(sent))
    return starts.get((*place,), len(sent)) if isinstance(place, list | tuple) else len(sent)


def _ends(entries: Sequence[Mapping[str, Any]], places: Sequence[int], count: int) -> Iterator[int]:
    """Where each block ends: behind as many messages as it has, or where the next begins that is of other messages."""
    for number, entry in enumerate(entries):
        place, messages = places[number], _count(entry, "messages") or 1
        if "place" not in entry or (entry["place"] is None and messages == 1):
            yield min(place + messages, count)
        else:
            yield next((later for later in places[number:] if later > place), count)


def _with_texts(block: ShownBlock, blocks: Sequence[ShownBlock], sent: Sequence[Sent]) -> ShownBlock:
    texts = tuple(each.text for each in sent[block.first : block.end])
    together = [each for each in blocks if each.first == block.first]
    if texts and len(together) > 1:
        texts = (_parts_of(texts[0], [each.bytes for each in together])[together.index(block)], *texts[1:])
    return replace(block, texts=texts)


def _parts_of(text: str, sizes: Sequence[int]) -> list[str]:
    """The text of a message, cut into those of its blocks of so many bytes, between which there is a blank line."""
    encoded = text.encode("utf-8", "surrogatepass")
    ends = [*accumulate(sizes[:-1], lambda end, size: end + len(_SEPARATOR) + size)]
    # A line that parts the message from its neighbours is of no block.
    before = len(PARTING.encode()) if text.startswith(PARTING) else 0
    ends = [before + end for end in ends]
    starts = [0, *(end + len(_SEPARATOR) for end in ends)]
    cut = [encoded[start:end] for start, end in zip(starts, [*ends, len(encoded)], strict=True)]
    return [each.decode("utf-8", "replace") for each in cut]


def _prefix(
    messages: int, blocks: Sequence[ShownBlock], count: int, starts: Mapping[tuple[int, int], int]
) -> int | None:
    """How many leading entries of what was sent are the leading `messages` in OpenAI's form."""
    if not count:
        return None
    if not starts:
        return min(messages, count)
    return next((block.first for block in blocks if block.index == messages), None)


def _parsed(data: bytes) -> Any:
    try:
        return from_json(data)
    except ValueError:
        # Half a surrogate pair.
        return json.loads(data)


def _object(value: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ValueError(f"{where}: no JSON object")
    return value


def _objects(value: Any, where: str) -> Iterator[Mapping[str, Any]]:
    """The items of a list of objects, of None as of an empty one."""
    for number, each in enumerate(value if isinstance(value, list) else []):
        yield _object(each, f"{where}[{number}]")


def _mapping(of: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = of.get(name)
    return value if isinstance(value, Mapping) else {}


def _count(entry: Mapping[str, Any], name: str) -> int:
    value = entry.get(name)
    return value if isinstance(value, int) and value >= 0 else 0

"""What the inputs in tests/nexus/cases expect of an answer, in whichever format it is.

A check is an object with `check`, its name here, and what that takes. Each says why it does not hold, or nothing.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from nexus.services.context.formats import Converted
from tests.nexus.support.providers import anthropic_faults, gemini_faults, openai_faults

Document = dict[str, Any]

FAULTS: Final = {"openai": openai_faults, "anthropic": anthropic_faults, "gemini": gemini_faults}


@dataclass(frozen=True)
class Call:
    """A call in an answer."""

    id: str
    name: str
    args: Document


@dataclass(frozen=True)
class Said:
    """One text, set of calls or result in an answer.

    Attributes:
        who: `system`, `user`, `assistant` or `result`.
        of: the id of the call that a result answers.
        failed: whether a result is marked as an error; None where the format has no mark.
        media: images and files that are passed on.
    """

    who: str
    text: str = ""
    calls: tuple[Call, ...] = ()
    of: str = ""
    failed: bool | None = None
    media: int = 0


@dataclass(frozen=True)
class Answer:
    """An answer and what is known besides.

    Attributes:
        content: of the message on the bus.
        rows: what is stored of the owner.
        counted: what `nexus memory check` says, where a case asks for that.
    """

    content: Document
    form: str
    rows: Sequence[Document] = ()
    counted: Mapping[str, Any] | None = None

    @property
    def said(self) -> list[Said]:
        """All that is in the message list."""
        return [*_IN[self.form](self.content)] if self.content["status"] == "success" else []

    @property
    def everything(self) -> str:
        """All texts and calls."""
        return "\n".join(
            [item.text for item in self.said]
            + [json.dumps([call.name, call.args], ensure_ascii=False) for item in self.said for call in item.calls]
        )


def faults_of(answer: Answer, checks: Sequence[Document], layout: str) -> list[str]:
    """Why the provider would refuse the answer, and which of the checks do not hold for it."""
    content, found = answer.content, []
    if content["status"] == "success":
        converted = Converted(content["messages"], content["tools"], [], [], content.get("system"))
        found += [f"provider: {fault}" for fault in FAULTS[answer.form](converted)]
        json.dumps(content, ensure_ascii=False).encode()
    return found + [
        fault
        for check in checks
        if layout in check.get("layouts", [layout]) and answer.form in check.get("formats", [answer.form])
        if (fault := fault_of(answer, check))
    ]


def fault_of(answer: Answer, check: Document) -> str:
    """Why a check does not hold; `""` where it does."""
    return CHECKS[check["check"]](answer, check)


def _openai(content: Document) -> Iterator[Said]:
    for message in content["messages"]:
        parts = message["content"]
        texts = [part.get("text", "") for part in parts] if isinstance(parts, list) else [parts or ""]
        media = sum(part["type"] != "text" for part in parts) if isinstance(parts, list) else 0
        if message["role"] == "tool":
            yield Said("result", "\n".join(texts), of=message["tool_call_id"])
            continue
        calls = tuple(
            Call(call["id"], call["function"]["name"], json.loads(call["function"]["arguments"]))
            for call in message.get("tool_calls") or ()
        )
        yield Said(message["role"], "\n".join(texts), calls, media=media)


def _anthropic(content: Document) -> Iterator[Said]:
    for block in content.get("system") or ():
        yield Said("system", block["text"])
    for message in content["messages"]:
        for block in message["content"]:
            match block["type"]:
                case "text":
                    yield Said(message["role"], block["text"])
                case "tool_use":
                    yield Said("assistant", calls=(Call(block["id"], block["name"], block["input"]),))
                case "tool_result":
                    failed = bool(block.get("is_error"))
                    yield Said("result", block["content"], of=block["tool_use_id"], failed=failed)
                case _:
                    yield Said(message["role"], media=1)


def _gemini(content: Document) -> Iterator[Said]:
    for part in (content.get("system") or {"parts": []})["parts"]:
        yield Said("system", part["text"])
    for message in content["messages"]:
        who = "assistant" if message["role"] == "model" else "user"
        for part in message["parts"]:
            if "text" in part:
                yield Said(who, part["text"])
            elif call := part.get("function_call"):
                yield Said(who, calls=(Call(call["id"], call["name"], call["args"]),))
            elif answered := part.get("function_response"):
                response = answered["response"]
                text = response["output"] if response.keys() == {"output"} else response
                shown = text if isinstance(text, str) else json.dumps(text, ensure_ascii=False)
                yield Said("result", shown, of=answered["id"], failed="error" in response)
            else:
                yield Said(who, media=1)


_IN: Final = {"openai": _openai, "anthropic": _anthropic, "gemini": _gemini}


def _texts(answer: Answer, check: Document) -> list[str]:
    return [item.text for item in answer.said if item.who == check.get("who", item.who)]


def _calls(answer: Answer) -> list[Call]:
    return [call for item in answer.said for call in item.calls]


def _status(answer: Answer, check: Document) -> str:
    return "" if answer.content["status"] == check["is"] else f"the answer is {answer.content.get('error')}"


def _error_says(answer: Answer, check: Document) -> str:
    error = answer.content.get("error") or {"message": ""}
    return "" if re.search(check["pattern"], error["message"]) else f"no error that says {check['pattern']}: {error}"


def _says(answer: Answer, check: Document) -> str:
    return "" if any(check["text"] in text for text in _texts(answer, check)) else f"nothing says {check['text']!r}"


def _says_only(answer: Answer, check: Document) -> str:
    return "" if check["text"] in _texts(answer, check) else f"no message is just {check['text']!r}"


def _says_not(answer: Answer, check: Document) -> str:
    where = answer.everything
    place = where.find(check["text"])
    return "" if place < 0 else f"it says {where[max(0, place - 40) : place + 60]!r}"


def _count(answer: Answer, check: Document) -> str:
    found = sum(text.count(check["text"]) for text in _texts(answer, check))
    return "" if found == check["n"] else f"{check['text']!r} is there {found} times"


def _order(answer: Answer, check: Document) -> str:
    places = [answer.everything.find(text) for text in check["texts"]]
    return "" if -1 not in places and places == sorted(places) else f"{check['texts']} are at {places}"


def _call(answer: Answer, check: Document) -> str:
    if any(_is_meant(call, check) for call in _calls(answer)):
        return ""
    return f"no call {check['name']} {check.get('args')}: {[(call.name, call.args) for call in _calls(answer)][:9]}"


def _call_says(answer: Answer, check: Document) -> str:
    said = [[*_leaves(call.args)] for call in _calls(answer) if call.name == check["name"]]
    return "" if any(check["text"] in leaf for leaves in said for leaf in leaves) else f"arguments say {said}"


def _number_of_calls(answer: Answer, check: Document) -> str:
    found = len(_calls(answer))
    return "" if found == check["n"] else f"there are {found} calls"


def _result(answer: Answer, check: Document) -> str:
    calls = {call.id: call for call in _calls(answer)}
    results = [item for item in answer.said if item.who == "result"]
    if any(check["contains"] in item.text and _is_meant(calls[item.of], check) for item in results):
        return ""
    found = [(item.text[:60], calls[item.of].name, calls[item.of].args) for item in results]
    return f"no result with {check['contains']!r} of {check['name']} {check.get('args')}: {found[:9]}"


def _result_matches(answer: Answer, check: Document) -> str:
    calls = {call.id: call for call in _calls(answer)}
    texts = [item.text for item in answer.said if item.who == "result" and _is_meant(calls[item.of], check)]
    return "" if any(re.search(check["pattern"], text) for text in texts) else f"results of {check['name']}: {texts}"


def _error_result(answer: Answer, check: Document) -> str:
    marks = [item.failed for item in answer.said if item.who == "result" and check["contains"] in item.text]
    return "" if any(marks) else f"results with {check['contains']!r} have the marks {marks}"


def _is_meant(call: Call, check: Document) -> bool:
    return call.name == check["name"] and check.get("args") in (None, call.args)


def _leaves(value: Any) -> Iterator[str]:
    if isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _leaves(inner)
    else:
        yield str(value)


def _media(answer: Answer, _: Document) -> str:
    return "" if any(item.media for item in answer.said) else "no image is passed on"


def _max_chars(answer: Answer, check: Document) -> str:
    size = sum(len(item.text) for item in answer.said if item.who != "system")
    return "" if size <= check["n"] else f"there are {size} characters"


def _noted(answer: Answer, check: Document) -> str:
    notes = answer.content.get("context", {}).get("notes", [])
    return "" if any(re.search(check["pattern"], note) for note in notes) else f"the notes are {notes}"


def _left_out(answer: Answer, check: Document) -> str:
    listed = answer.content.get("context", {}).get("left_out", [])
    return "" if any(re.search(check["pattern"], item["what"]) for item in listed) else f"left out is {listed}"


def _tool(answer: Answer, check: Document) -> str:
    tools = answer.content["tools"]
    if answer.form == "gemini":
        names = [function["name"] for tool in tools for function in tool["function_declarations"]]
    else:
        names = [tool["function"]["name"] if answer.form == "openai" else tool["name"] for tool in tools]
    return "" if (check["name"] in names) == check.get("there", True) else f"the tools are {names}"


def _row(answer: Answer, check: Document) -> str:
    return "" if any(check["text"] in str(row) for row in answer.rows) else f"no row has {check['text']!r}"


def _in_context_at_most(answer: Answer, check: Document) -> str:
    counted = answer.counted or {}
    return "" if counted.get("in_context", 1_000) <= check["n"] else f"the check counts {counted}"


def _any_of(answer: Answer, check: Document) -> str:
    faults = [fault_of(answer, each) for each in check["checks"]]
    return "" if "" in faults else f"none of: {' / '.join(faults)}"


def _all_of(answer: Answer, check: Document) -> str:
    return "; ".join(filter(None, [fault_of(answer, each) for each in check["checks"]]))


CHECKS: Final[Mapping[str, Callable[[Answer, Document], str]]] = {
    "status": _status,
    "error_says": _error_says,
    "says": _says,
    "says_only": _says_only,
    "says_not": _says_not,
    "count": _count,
    "order": _order,
    "call": _call,
    "call_says": _call_says,
    "calls": _number_of_calls,
    "result": _result,
    "result_matches": _result_matches,
    "error_result": _error_result,
    "media": _media,
    "max_chars": _max_chars,
    "noted": _noted,
    "left_out": _left_out,
    "tool": _tool,
    "row": _row,
    "in_context_at_most": _in_context_at_most,
    "any_of": _any_of,
    "all_of": _all_of,
}

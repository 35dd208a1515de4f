"""A summary as a good model would write it of the prompt's document: its figures, in its language.

It knows the documents of `nexus.services.turns.model_summary`, entries of a turn or summaries of its parts, and that of
`nexus.services.memory.asking`, a summary and the messages after it.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

_END: Final = re.compile(r"(?<=[.!?])\s+|(?<=[。！？])|\n+")
_HAN: Final = re.compile(r"[\u4e00-\u9fff]")
_FIGURE: Final = re.compile(r"\d")
_DECISION: Final = re.compile(r"because|decid|chose|exclud|因为|决定|筛选|排除", re.IGNORECASE)
_NEXT: Final = re.compile(r"\bnext\b|will now|下一步|接下来", re.IGNORECASE)
_MOST: Final = 8
_MOST_LINES: Final = 40


@dataclass(frozen=True, slots=True)
class _Words:
    goal: str
    called: str
    result: str
    told: str
    nothing: str
    between: str


_ENGLISH: Final = _Words("The user wants: {}.", "Called {} with {}.", "{}: {}.", "{}.", "Nothing else came of it.", " ")
_CHINESE: Final = _Words(
    "用户的目标是：{}。", "调用了工具 {}，参数为：{}。", "工具 {} 的结果：{}。", "{}。", "没有其他结果。", ""
)


def write(document: Mapping[str, Any]) -> dict[str, Any]:
    """The answer, as its schema wants it."""
    if "messages" in document:
        return {"summary": _gone_on(document["summary"], document["messages"])}
    return _merged(document) if "parts" in document else _of_turn(document)


def _gone_on(summary: str, messages: Iterable[Mapping[str, Any]]) -> str:
    """The lines of the summary, and the sentences of the messages that have figures, else their first words."""
    texts = [entry["text"] for entry in messages if entry.get("text")]
    figures = [figure for text in texts for figure in _figures(text)]
    lines = [*summary.splitlines(), *(f"- {_short(said)}" for said in figures or texts)]
    return "\n".join(_some(lines, _MOST_LINES))


def _of_turn(document: Mapping[str, Any]) -> dict[str, Any]:
    entries = [entry for entry in document["turn"] if isinstance(entry, dict)]
    said = " ".join(entry.get("text", "") for entry in entries if entry.get("from") == "user") or document["goal"]
    words = _CHINESE if len(_HAN.findall(said)) > len(said) / 5 else _ENGLISH
    goal = words.goal.format(_short(document["goal"] or said))
    actions = [words.called.format(entry["calls"], entry["arguments"]) for entry in entries if "calls" in entry]
    results = [
        words.result.format(entry["tool"], "; ".join(_figures(entry["text"])))
        for entry in entries
        if entry.get("from") == "tool" and _FIGURE.search(entry["text"])
    ]
    answers = [entry["text"] for entry in entries if entry.get("from") == "assistant" and entry.get("text")]
    figures = [sentence for text in answers for sentence in _figures(text)]
    sentences = [sentence for text in answers for sentence in _sentences(text)]
    return {
        "brief": (figures or results or [words.nothing])[0],
        "detailed": words.between.join(
            [goal, *_some(actions, 2), *_some(results, 4), *map(words.told.format, _some(figures, 3)), words.nothing]
        ),
        "structured": {
            "overview": goal,
            "actions": _some(actions),
            "results": _some([*results, *figures]),
            "decisions": [sentence for sentence in sentences if _DECISION.search(sentence)],
            "next_steps": [sentence for sentence in sentences if _NEXT.search(sentence)],
        },
        "insights": figures[:2],
    }


def _merged(document: Mapping[str, Any]) -> dict[str, Any]:
    parts = document["parts"]
    structured = [part["structured"] for part in parts]
    return {
        "brief": parts[0]["brief"],
        "detailed": " ".join(_some([sentence for part in parts for sentence in _sentences(part["detailed"])])),
        "structured": {
            "overview": structured[0]["overview"],
            **{
                name: _some([item for part in structured for item in part[name]])
                for name in ("actions", "results", "decisions", "next_steps")
            },
        },
        "insights": _some([item for part in parts for item in part["insights"]], 2),
    }


def _some(items: Iterable[str], most: int = _MOST) -> list[str]:
    """So many of the items at most, the first and the last among them."""
    known = [*dict.fromkeys(items)]
    step = max((len(known) - 1) / (most - 1), 1)
    return [known[round(index * step)] for index in range(min(most, len(known)))]


def _short(text: str) -> str:
    return " ".join(text.split())[:120].rstrip(".。")


def _sentences(text: str) -> Iterator[str]:
    return (piece.strip() for piece in _END.split(text) if piece.strip())


def _figures(text: str) -> list[str]:
    """The parts of a text that have figures: entries of a JSON object, sentences of anything else."""
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    pieces = _pairs(value) if isinstance(value, dict) else _sentences(text)
    return _some(piece[:120].rstrip(".。") for piece in pieces if _FIGURE.search(piece))


def _pairs(value: object, name: str = "") -> Iterator[str]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _pairs(item, f"{name} {key}".strip())
    elif isinstance(value, list):
        for item in value:
            yield from _pairs(item, name)
    else:
        yield f"{name} {value}".strip()

r"""A strict reader of blocks, written from the contract and sharing no code with the renderer.

It has its own idea of what looks like a structural token, which covers the letters of `hostile.py` and the kinds of
bracket that the contract names, and it takes a token for structure unless a backslash stands before it.
"""

import re
import unicodedata
from dataclasses import dataclass
from typing import Final

BLOCKS: Final = (
    "coreidentity",
    "capabilities",
    "sharedmemory",
    "friendsinfo",
    "thismoment",
    "taskcontext",
    "turnmemory",
    "workingmemory",
    "conversationsummary",
    "contextmeta",
    "recall",
)
TITLES: Final = ("agentroledefinition", "currenttodolist", "usefulinformation", "foldernotes")
BANNERS: Final = (
    "taskcontext",
    "workspacecontext",
    "accumulatedmemorysummaries",
    "currentinput",
    "previousthinkingrounds",
)
LETTERS: Final = {
    "a": "аΑ",
    "c": "сС",
    "e": "еΕ",
    "h": "НΗ",
    "i": "іΙl1|",
    "k": "КΚ",
    "m": "МΜ",
    "n": "Νп",
    "o": "оοО0",
    "p": "рΡ",
    "s": "ѕЅ",
    "t": "ТΤ",
    "u": "υ",
    "w": "ԝԜ",
    "x": "хΧ",
    "y": "уΥ",
}
SQUARES: Final = "[［【〔⟦"
ANGLES: Final = "<＜‹〈⟨"
_CLOSERS: Final = {"]": "]］】〕⟧", ">": ">＞›〉⟩"}
_COLONS: Final = ":：∶"
NUMBER_SIGNS: Final = "#＃﹟♯⌗"
EQUALS_SIGNS: Final = "=＝﹦═꞊"
_MEANT: Final = (
    {char: letter for letter, chars in LETTERS.items() for char in chars}
    | dict.fromkeys(SQUARES, "[")
    | dict.fromkeys(ANGLES, "<")
    | dict.fromkeys(_COLONS, ":")
    | dict.fromkeys(NUMBER_SIGNS, "#")
    | dict.fromkeys(EQUALS_SIGNS, "=")
    | {char: closer for closer, chars in _CLOSERS.items() for char in chars}
)
_plain_of: dict[str, str] = {}


def plain(char: str) -> str:
    """The character that this one passes for; nothing for what the eye passes over, `?` for everything else."""
    known = _plain_of.get(char)
    if known is None:
        known = _plain_of[char] = _plain(char)
    return known


def _plain(char: str) -> str:
    if char in _MEANT:
        return _MEANT[char]
    name = unicodedata.name(char, "")
    if name.startswith("REGIONAL INDICATOR SYMBOL LETTER"):
        char = name[-1]
    base = "".join(part for part in unicodedata.normalize("NFKD", char) if not unicodedata.combining(part)).casefold()
    if unicodedata.category(char) in {"Cc", "Cf", "Mn", "Me"} or base.isspace() or base in {"", "_", "-", "."}:
        return ""
    return _MEANT.get(base, base if len(base) == 1 and base in "abcdefghijklmnopqrstuvwxyz/\\[]<>:;" else "?")


def plain_text(text: str) -> str:
    """What the text reads like, without spaces and other things that the eye passes over."""
    return "".join(map(plain, text))


_AHEAD: Final = 120
_SQUARE_TOKEN: Final = re.compile(rf"\[[/\\]*(?:{'|'.join(BLOCKS)}|tooluse:|toolresult:)".replace("l", "i"))
_ANGLE_TOKEN: Final = re.compile(r"<[/\\]*(?:humaninput|currenttime\\*>)")
_TURN: Final = re.compile(r"[/\\]*t\\*u\\*r\\*n")
_HEAD: Final = re.compile(r"(?:\[[^\[\]<>]*\]|<[^\[\]<>]*>)?(?:human|nexus):")
# Behind a title, to the end of the line.
_REST: Final = r"[#=:;?/<>\[\]\\]*"
_HEADING: Final = re.compile(rf"#{{1,6}}(?:{'|'.join(TITLES)}){_REST}".replace("l", "i"))
_REMEMBERED: Final = re.compile(r"(?:insights|user\??sgoai):|round([^:]*):")
_BANNER: Final = re.compile(rf"==+(?:{'|'.join(BANNERS)})[#:;?]*==+{_REST}".replace("l", "i"))


# How the lines begin that stand for calls, and for what came of them.
ANNOTATIONS: Final = ("[tool_use:", "[tool_result:")


def forged(text: str) -> list[str]:
    """The structural tokens in the text that no backslash keeps from being one."""
    found = []
    for place, char in enumerate(text):
        opening = plain(char)
        if opening in {"[", "<"} and text[place - 1 : place] != "\\":
            token = _SQUARE_TOKEN if opening == "[" else _ANGLE_TOKEN
            after = text[place : place + _AHEAD]
            if token.match(plain_text(after)) or _is_turn(text[max(place - 1, 0) : place], after):
                found.append(text[place : place + _AHEAD])
    lines = [line for line in text.split("\n") if not line.startswith(("\\", *ANNOTATIONS))]
    return found + [line for line in lines if _is_head(plain_text(line))]


def _is_turn(before: str, text: str) -> bool:
    """Whether it is `[Turn 12]` in some form, and no index of a variable such as `board[turn12]`."""
    end = next((place for place, char in enumerate(text) if place and plain(char) in {"[", "]"}), None)
    if plain(text[0]) != "[" or end is None or plain(text[end]) != "]":
        return False
    number = next((text[cut:end] for cut in range(end) if _TURN.fullmatch(plain_text(text[1:cut]))), "")
    if re.match(r"[\w\])]", before) and not set(number) & {*" \n\t\u3000\xa0"}:
        return False
    return any(char.isdigit() for char in number) and not any(char.isalpha() for char in number)


def remembered_heads(text: str) -> list[str]:
    """The lines that begin like the goal, like insights or like a round of thought, without a backslash before it."""
    lines = [line for line in text.split("\n") if not line.lstrip().startswith("\\")]
    return [line for line in lines if _REMEMBERED.match(plain_text(line)) and not _is_unnumbered_round(line)]


def _is_unnumbered_round(line: str) -> bool:
    named = plain_text(line).startswith("round")
    before_colon = next((line[:index] for index, char in enumerate(line) if plain(char) == ":"), line)
    number = before_colon.strip()[len("round") :]
    return named and (not any(map(str.isdigit, number)) or any(map(str.isalpha, number)))


def without_head_marks(text: str) -> str:
    """The text without the backslashes that keep its lines from being such heads."""
    lines = text.split("\n")
    return "\n".join(line.replace("\\", "", 1) if _is_marked_head(line) else line for line in lines)


def _is_marked_head(line: str) -> bool:
    bare = line.lstrip("\\")
    return bare != line and bool(remembered_heads(bare))


def _is_head(line: str) -> bool:
    return bool(_HEAD.match(line) or _HEADING.fullmatch(line) or _BANNER.fullmatch(line))


@dataclass(frozen=True, slots=True)
class Call:
    """One call of an annotation, its texts still escaped."""

    name: str
    key: str | None = None
    value: str | None = None


@dataclass(frozen=True, slots=True)
class Result:
    """What an annotation says of the result of one call, its texts still escaped."""

    name: str
    text: str | None = None


Part = str | tuple[Call, ...] | tuple[Result, ...]


@dataclass(frozen=True, slots=True)
class Said:
    """One message of the memory: who, when (None for an answer without time), and its texts and annotations."""

    speaker: str
    time: str | None
    parts: tuple[Part, ...]


_ENTRY: Final = re.compile(r"(?:\[(\d{4}-\d\d-\d\d \d\d:\d\d|Unknown time)\] (Human|Nexus)|  (Nexus)): ")


def read_memory(block: str) -> list[Said]:
    """`[SHARED_MEMORY]` as a list of messages; AssertionError for anything that is not one."""
    head, title, blank, *lines = block.split("\n")
    counted = re.fullmatch(r"\[SHARED_MEMORY count=(\d+)\]", head)
    assert counted
    assert (title, blank) == ("Recent conversation memory:", "")
    if counted[1] == "0":
        assert lines == ["(No previous conversations yet)"]
        return []
    assert _ENTRY.match(lines[0])
    entries: list[tuple[re.Match[str], list[str]]] = []
    for line in lines:
        if entry := _ENTRY.match(line):
            entries.append((entry, [line[entry.end() :]]))
        else:
            entries[-1][1].append(line)
    assert len(entries) == int(counted[1])
    return [Said(entry[2] or entry[3], entry[1], _read_body(body)) for entry, body in entries]


def _read_body(lines: list[str]) -> tuple[Part, ...]:
    parts: list[Part] = []
    for line in lines:
        if line.startswith("[tool_use:"):
            parts.append(read_annotation(line))
        elif line.startswith("[tool_result:"):
            parts.append(read_results(line))
        elif parts and isinstance(parts[-1], str):
            parts[-1] = f"{parts[-1]}\n{line}"
        else:
            parts.append(line)
    return tuple(parts)


def read_annotation(line: str) -> tuple[Call, ...]:
    """The calls of one annotation; AssertionError when it is not exactly one."""
    return tuple(map(_read_call, _items(line, "tool_use:")))


def read_results(line: str) -> tuple[Result, ...]:
    """The results of one annotation; AssertionError when it is not exactly one."""
    return tuple(Result(*_named(text)) for text in _items(line, "tool_result:"))


def _items(line: str, kind: str) -> list[str]:
    ends = [place for place in _unmarked(line, "]") if place]
    assert line.startswith(f"[{kind}")
    assert ends == [len(line) - 1]
    starts = [place for place in _unmarked(line, ";") if line.startswith(f"; {kind}", place)]
    bounds = [len("["), *(place + len("; ") for place in starts)]
    found = [line[start:end] for start, end in zip(bounds, [*starts, len(line) - 1], strict=True)]
    assert all(text.startswith(kind) for text in found)
    return [text.removeprefix(kind) for text in found]


def _named(text: str) -> tuple[str, str | None]:
    commas = [place for place in _unmarked(text, ",") if text.startswith(", ", place)]
    return (text[: commas[0]], text[commas[0] + 2 :]) if commas else (text, None)


def _read_call(text: str) -> Call:
    name, rest = _named(text)
    if rest is None:
        return Call(name)
    colon = _unmarked(rest, ":")[0]
    return Call(name, rest[:colon], rest[colon + 1 :])


def _unmarked(text: str, char: str) -> list[int]:
    return [match.start() for match in re.finditer(rf"(?<!\\){re.escape(char)}", text)]


def unmarked_name(text: str) -> str:
    """A name or key of an annotation without the backslashes that keep it from ending early; still escaped."""
    return re.sub(r"\\([\]］﹈,:;])", r"\1", text.removesuffix(" "))


def unmarked_value(text: str, following: str = "tooiuse") -> str:
    """A value of an annotation without the backslashes that keep it from ending early; still escaped."""
    text = re.sub(r"\\([\]］﹈])", r"\1", text.removesuffix(" "))
    kept = []
    for place, char in enumerate(text):
        begins_call = (
            char == "\\"
            and plain_text(text[place + 1 : place + 2]) == ";"
            and plain_text(text[place + 2 :]).lstrip("\\").startswith(following)
        )
        if not begins_call:
            kept.append(char)
    return "".join(kept)

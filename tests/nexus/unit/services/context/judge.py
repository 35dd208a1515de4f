r"""A reader of what a provider shows the model: texts of one role joined, and the structure that the model would see.

It is written from the contract (§4.7) and shares no code with the escaping: it has its own look-alikes and its own list
of tokens. It takes a token for structure unless a backslash stands before it.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, Final

from nexus.services.context.formats import Converted

JOINTS: Final = ("", " ", "\n", "\n\n")

LETTERS: Final = {
    "a": "аΑᎪ@4",
    "b": "ВΒЬᏴ8",
    "c": "сСϹᏟ",
    "d": "ԁᎠÐ",
    "e": "еΕᎬ3€",
    "f": "Ϝꓝƒ",
    "g": "ɡԌᏀ",
    "h": "НΗҺᎻ",
    "i": "іΙl1|ⅼӀ",
    "k": "КΚᏦ",
    "m": "МΜᎷ",
    "n": "Νпո",
    "o": "оοО0Օ〇",
    "p": "рΡᏢ",
    "r": "ᎡГ",
    "s": "ѕЅՏ5$",
    "t": "ТΤᎢ7",
    "u": "υՍ",
    "v": "ѵѴᏙ",
    "w": "ԝԜᎳ",
    "x": "хΧ",
    "y": "уΥҮ",
}
# Characters that the eye passes over between letters, or takes for the dash or the low line of a tag.
OVERLOOKED: Final = (
    *"_-.·•‐‑‒–—―−➖⁃﹣－⁻₋˗゠⹀〜〰᠆⸗⸚⸺﹘─━⎯▁﹍＿‿ーㅡ一",
    *"\u0301\u0488\u00ad\u034f\u200c\u200d\ufe0f\ufe0e\u0640\u115f\u1160\u3164\uffa0\u2800\u180e\u2063\u206a\ufff9",
    *"\ue000\uf8ff\U000f0000\U00100000\U000e0100\ufffc\x00\x7f",
    *"\u200b\u202e\u2060\u2066\ufeff\U000e0041",
)
SQUARES: Final = "[［【〔⟦「⁅⊏"
ANGLES: Final = "<＜‹〈⟨«"
CLOSERS: Final = {"]": "]］】〕⟧⁆", ">": ">＞›〉⟩"}
COLONS: Final = ":：∶꞉"
NUMBER_SIGNS: Final = "#＃﹟♯⌗⋕⩩"
EQUALS_SIGNS: Final = "=＝﹦═꞊"
SLASHES: Final = "/／⁄∕⧸"
# Pairs that are drawn like one letter.
PAIRS: Final = {"m": ("rn", "nn"), "w": ("vv", "uu"), "d": ("ci",)}

_TABLE: Final = (
    {
        ord(char): letter
        for letter, chars in LETTERS.items()
        for char in chars
        if not char.isascii() or not char.isdigit()
    }
    | dict.fromkeys(map(ord, OVERLOOKED), "")
    | dict.fromkeys(map(ord, SQUARES), "[")
    | dict.fromkeys(map(ord, ANGLES), "<")
    | dict.fromkeys(map(ord, COLONS), ":")
    | dict.fromkeys(map(ord, NUMBER_SIGNS), "#")
    | dict.fromkeys(map(ord, EQUALS_SIGNS), "=")
    | dict.fromkeys(map(ord, SLASHES), "/")
    | {ord(char): closer for closer, chars in CLOSERS.items() for char in chars}
    | {ord("\n"): "\n", ord("\\"): "\\"}
)


class _Looks(dict[int, str]):
    def __missing__(self, code: int) -> str:
        self[code] = look = _look(chr(code))
        return look


def _look(char: str) -> str:
    name = unicodedata.name(char, "")
    if "REGIONAL INDICATOR SYMBOL LETTER" in name or "SQUARED LATIN CAPITAL" in name:
        return name[-1].lower()
    base = "".join(part for part in unicodedata.normalize("NFKD", char) if not unicodedata.combining(part)).lower()
    letters = [part for part in base if part.isascii() and part.isalnum()]
    if len(letters) == 1:
        return letters[0].replace("l", "i")
    if base.isspace():
        return " "
    if not base or unicodedata.category(char) in {"Cc", "Cf", "Co", "Mn", "Me", "Pd"}:
        return ""
    return base if len(base) == 1 and base in "[]<>:;#=/" else _TABLE.get(ord(base), "?") if len(base) == 1 else "?"


_LOOKS: Final = _Looks(_TABLE)


def _read_as(names: Sequence[str], gap: str) -> str:
    digits = {letter: "".join(char for char in chars if char.isascii()) for letter, chars in LETTERS.items()}

    def one(letter: str) -> str:
        several = [
            gap.join(f"[{part}{re.escape(digits.get(part, ''))}]" for part in pair) for pair in PAIRS.get(letter, ())
        ]
        return f"(?:{'|'.join([f'[{letter}{re.escape(digits[letter])}]', *several])})"

    words = ["".join(filter(str.isalpha, name.lower())).replace("l", "i") for name in names]
    return "|".join(gap.join(map(one, word)) for word in words)


_BLOCKS: Final = (
    *("core identity", "capabilities", "shared memory", "friends info", "this moment", "task context", "turn memory"),
    *("working memory", "conversation summary", "context meta", "recall"),
)
_TITLES: Final = ("agent role definition", "current todo list", "useful information", "folder notes")
_BANNERS: Final = (
    *("task context", "workspace context", "accumulated memory summaries", "current input"),
    "previous thinking rounds",
)
_GAP: Final = r"[ \n\\]*"
_REST: Final = r"[ #=:;?/<>\[\]\\]*$"
_TOKENS: Final = {
    "block": re.compile(rf"(?<!\\)\[[ \n\\/]*(?:{_read_as(_BLOCKS, _GAP)})"),
    "call": re.compile(rf"(?<!\\)\[[ \n\\/]*(?:{_read_as(['tool use'], _GAP)}){_GAP}:"),
    "input": re.compile(rf"(?<!\\)<[ \n\\/]*(?:{_read_as(['human input'], _GAP)})"),
    "time": re.compile(rf"(?<!\\)<[ \n\\/]*(?:{_read_as(['current time'], _GAP)}){_GAP}>"),
    "head": re.compile(rf"^ *(?:[\[<][^\[\]<>\n]*[\]>] *)?(?:{_read_as(['human', 'nexus'], ' *')}) *:", re.MULTILINE),
    "heading": re.compile(rf"^ *#(?: *#){{0,5}} *(?:{_read_as(_TITLES, ' *')}){_REST}", re.MULTILINE),
    "banner": re.compile(rf"^ *=(?: *=)+ *(?:{_read_as(_BANNERS, ' *')})[ #:;?]*=(?: *=)+{_REST}", re.MULTILINE),
}
_TURN: Final = re.compile(rf"(.?)(?<!\\)\[[ \n\\/]*(?:{_read_as(['turn'], _GAP)})([^\[\]]*)\]", re.DOTALL)


@lru_cache(maxsize=4096)
def structure(text: str) -> Counter[str]:
    """The number of structural tokens of each kind that a model sees in the text."""
    seen = text.translate(_LOOKS)
    found = Counter({kind: sum(1 for _ in token.finditer(seen)) for kind, token in _TOKENS.items()})
    found["turn"] = sum(_is_turn(*match.groups()) for match in _TURN.finditer(seen))
    return found


def _is_turn(before: str, number: str) -> bool:
    is_index = bool(re.match(r"[\w\])]", before)) and not set(number) & {" ", "\n"}
    signs = [char for char in number if char.isalnum()]
    return not is_index and bool(signs) and all(char in "0123456789iio" for char in signs)


def texts_by_role(form: str, converted: Converted) -> Iterator[list[str]]:
    """The texts of neighbours of one role, in order; a call parts them."""
    instructions = converted.system["parts"] if isinstance(converted.system, dict) else converted.system or ()
    run, role = [block["text"] for block in instructions], "system"
    for message in converted.messages:
        # A result of a tool belongs to the user, but in OpenAI's form it has a role of its own.
        if message["role"] != role:
            yield run
            run, role = [], message["role"]
        for text in _texts(form, message):
            if text is None:
                yield run
                run = []
            else:
                run.append(text)
    yield run


def _texts(form: str, message: dict[str, Any]) -> Iterator[str | None]:
    if form == "openai":
        yield from filter(None, [message["content"]])
        yield from [None for _ in message.get("tool_calls", ())]
    for block in message["content"] if form == "anthropic" else message["parts"] if form == "gemini" else ():
        if "function_response" in block:
            yield block["function_response"]["response"]["output"]
        else:
            yield block.get("text", block.get("content"))


def read(form: str, converted: Converted) -> list[Counter[str]]:
    """What a model sees in the list, for each way in which its provider may join neighbours of one role."""
    runs = [run for run in texts_by_role(form, converted) if run]
    shown = [[joint.join(run) for run in runs] for joint in JOINTS]
    shown.append(["".join(map(str.strip, run)) for run in runs])
    return [sum(map(structure, texts), Counter()) for texts in shown]

"""Escaping: nothing that anyone wrote can pass for structure of a context (contract §4.7, docs/decisions/0002).

Block tags, `<human_input>`, `<current_time>`, `[tool_use:`, `[tool_result:`, `[Turn n]`, the line heads of the memory,
the headings of the pinned block and the banners of the thinking layout come from the renderer alone. Every other text
passes `escape`, which puts one backslash before everything that looks like one of them: before the bracket or at the
head of the line. Backslashes that are there already become one more, so `unescape(escape(text)) == canonical(text)`.

- Likeness is judged on the folded text (`fold`), which has as many characters as the text: letters become lower case
  a-z (`l` becomes `i`, the same stroke to the eye), look-alike brackets, colons, semicolons, number signs and equals
  signs the ASCII ones, characters that are easily overlooked (accents, joiners, dashes, dots, those of private use)
  `_`, spaces a space, and everything else `?`. Only a backslash becomes a backslash. Letters that are drawn as two
  (`rn` for `m`) are told by the patterns.
- Marking a place neither makes nor hides another place. For this a tag cannot contain an opening bracket, a line head
  is recognised with or without backslashes where marks may stand, also behind a title, and the conditions on the
  character before a bracket hold for a backslash.
- Texts that a block shows one behind the other are escaped as one. A message that has been sent keeps its bytes, so
  `neighbours.py` puts `PARTING` before one that would complete what those before it began.
- A heading or a banner is a whole line. Code that puts something before a text on its line escapes the line, not the
  text: `### ` and a name can make a heading that the name alone is not.
- Patterns are possessive and cannot overlap, so every input takes linear time.

Sources of the look-alikes: Unicode NFKD and character names as Python ships them; for letters of other scripts the
Unicode confusables data (UTS #39), as far as the letters occur in structural tokens. Every character that folds to an
opening bracket, a colon, a number sign or an equals sign is listed in `SQUARE`, `ANGLE`, `COLONS`, `NUMBER_SIGNS` or
`EQUALS_SIGNS`.
"""

import re
import unicodedata
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Final

# Quotation marks and parentheses are no brackets: “this moment” is ordinary prose.
SQUARE: Final = "[⊏⊑⋢⸂⸄⸉⸌⸜⸠༺༼᚛⁅⌈⌊⎡⎣❲⟅⟦⟬⟮⦇⦉⦋⦍⦏⦓⦕⦗⧘⧚⸢⸤⸦⸨⹂⹕⹗⹙⹛「『【〔〖〘〚︗︹︻﹁﹃﹇﹝［｢"
ANGLE: Final = "<«‹≮\u2329〈❬❮❰⟨⟪⦑⧼《︽︿˂ᐸᚲ𝈶≪⋖≺⊀⪡﹤＜"
_CLOSING_SQUARE: Final = "]⊐⊒⋣⸃⸅⸊⸍⸝⸡༻༽᚜⁆⌉⌋⎤⎦❳⟆⟧⟭⟯⦈⦊⦌⦎⦐⦔⦖⦘⧙⧛⸣⸥⸧⸩⹖⹘⹚⹜」』】〕〗〙〛︘︺︼﹂﹄﹈﹞］｣"
_CLOSING_ANGLE: Final = ">»›≯\u232a〉❭❯❱⟩⟫⦒⧽》︾﹀˃ᐳ≫⋗≻⊁⪢𝈷𖼿﹥＞"
COLONS: Final = ":：﹕︓ː˸։׃ઃः᛬᠃᠉⁚⁝∶ꓽ꞉︰፡܃܄𐞁"
# With the musical sharps, and signs of mathematics and Tifinagh that are drawn as two strokes across two.
NUMBER_SIGNS: Final = "#＃﹟♯⌗⋕⧣⧤⨳⩨⩩ⵌ𝄰𝄱𝄲"
# With all that is drawn as two or more level strokes: signs of mathematics, hyphens, frames, hexagrams.
EQUALS_SIGNS: Final = "=＝﹦≠⁼₌🟰꞊゠᐀⹀꓿═〓≈≉≋≡≢≣⩵⩶⚌☰𝄗"
# Invisible, blank or in place of a character although Unicode calls them letters or symbols.
_BLANK: Final = "\u115f\u1160\u3164\uffa0\u2800\U0001d159\u2422\u2423\ufffc\ufffd"
# Level strokes and reversed slashes that Unicode calls no dashes: signs of mathematics, frames, letters.
_STROKES: Final = "−➖⁃⁓∼⎯⎺⎻⎼⎽⏤─━┄┅┈┉╌╍╴╶╸╺╼╾▁▔\u06d4⹃Ⲻⲻᅳ一∖⧵⧹╲⟍🙽"
_PASSED_OVER: Final = "_-.*~`·•‧∙⋅・･" + _STROKES + _BLANK

_LETTERS: Final = {
    "a": "ɑΑαАаᎪᗅ⍺ꓮ𐊠𖽀∀Λ4@₳",
    "b": "ƄΒВЬвьᏏᏴᑲᖯᗷꓐꞴ𐊂𐊡𐌁ßβ8฿",
    "c": "ϲϹСсᏟᴄⲤⲥꓚꮯ𐊢𐌂𐐕𐐽𐔜𑣩𑣲🝌¢©₵₡",
    "d": "ԁᎠᏧᑯᗞᗪꓒꓓ₫Ðð",
    "e": "ΕЕеҽᎬ℮⋿ⴹꓰꬲ𐊆𑢦𑢮ЭэЄєεϵəƏɛƐƷȜЗӠзⳌꝪꞫ𑣊𖼻𝈆ё3€",
    "f": "ſϜքᖴẝꓝꞘꞙꬵ𐊇𐊥𐔥𑢢𑣂𝈓ƒ",
    "g": "ƍɡԌցᏀᏳᶃꓖ6₲",
    "h": "ΗНнһհᎻᏂᕼⲎꓧ𐋏Ћћ",
    "i": "\u0661\u05d5\u05df\u0627\u07ca\u05c0ıɩɪ˛ͺιІіӏᎥ⍳ꙇꭵ𑣃ƖǀΙӀ۱ᏞᒪᛁℐℑⅠ∣⏽ⲒⳐⵏꓡꓲ￨𐊊𐌉𐌠𐐛𐔦𑢣𑢲𖼖𖼨𝈪1¡Ї!",
    "j": "ͿЈᎫᒍꓙꞲј",
    "k": "ΚКкκᏦᛕⲔꓗ𐔘₭",
    "m": "ΜϺМмᎷᗰᛖⲘꓟ𐊰𐌑₥",
    "n": "ΝηոռпПⲚꓠ𐔓νИийЛ₦",
    "o": "\u0665\u05e1\u0647\u06be\u06c1\u06d5\u07c0ΟοσОоՕօ۵०০੦૦ଠ୦௦ం౦ಂ೦ംഠ൦ං๐໐ဝ၀ჿዐᴏᴑⲞⲟⵔ〇ꓳꬽ𐊒𐊫𐐄𐐬𐓂𐓪𐔖𑓐𑢵𑣈𑣗𑣠0θΘ○◯",
    "p": "ΡρϱРрᏢᑭ⍴Ⲣⲣꓑ𐊕þÞ₱₽",
    "r": "ƦГгᎡᏒᖇᴦⲅꓣꭇꭈꮁ𐒴𖼵𝈖Яя®",
    "s": "ƽЅѕՏᏕᏚꓢꜱꮪ𐊖𐐠𐑈𑣁𖼺5$§ƼՐ₴",
    "t": "ΤτТтᎢ⊤⟙Ⲧꓔ𐊗𐊱𐌕𑢼𖼊🝨7†₮₸",
    "v": "\u05d8\u0667\u06f7ѵѴᏙⴸᐯꛟꓦꮩ∨⋁𝈍𖼈𑢠𐔝𑣀𑜆",
    "u": "ʋυՍսሀᑌᴜ∪⋃ꓴꞟꭎꭒ𐓎𐓶𑢸𑣘𖽂μцЦ",
    "w": "ԜԝѠѡᎳᏔꓪꮃᴡɯաωΩшШщЩ₩𑜊𑜎𑜏𑣦𑣯",
    "x": "×ΧχХхᕁᕽ᙭᙮ᚷ╳⤫⤬⨯ⲬⵝꓫꞳ𐊐𐊴𐌗𐌢𐔧𑣬✕✖✗✘",
    "y": "ɣʏΥγϒУуүҮყᎩᎽᶌỿℽⲨꓬꭚ𐊲𑢤𑣜𖽃ЧчЎў¥",
}
_MARKS: Final = (
    ("_", _PASSED_OVER),
    ("[", SQUARE),
    ("]", _CLOSING_SQUARE),
    ("<", ANGLE),
    (">", _CLOSING_ANGLE),
    (":", COLONS),
    (";", ";；;"),
    ("#", NUMBER_SIGNS),
    ("=", EQUALS_SIGNS),
    ("/", "/⁄∕⁁╱⧸⟋⫽⫻🙼⼃𝈺᜵㇓Ⳇ"),
)
_NAMED_LETTER = re.compile(
    r"(?:LATIN (?:(?!WITH)[A-Z]+ )*|REGIONAL INDICATOR SYMBOL LETTER |MODIFIER LETTER (?:SMALL|CAPITAL) "
    r"|(?:[A-Z]+ )*(?:SQUARED|CIRCLED|PARENTHESIZED) LATIN (?:CAPITAL|SMALL) LETTER )([A-Z])(?: WITH .*)?$"
)
_IGNORED_CATEGORIES = frozenset({"Mn", "Mc", "Me", "Cf", "Cc", "Cn", "Co", "Pc", "Pd", "Sk", "Lm"})
_DIGIT_LOOKS: Final = frozenset("io")
# A text in every script of the world must not fill the memory: later characters are folded each time they occur.
_REMEMBERED = 1 << 16


class _Folding(dict[int, str]):
    def __missing__(self, code: int) -> str:
        folded = _fold_unlisted(chr(code))
        if len(self) < _REMEMBERED:
            self[code] = folded
        return folded


def _fold_unlisted(char: str) -> str:
    plain = "".join(part for part in unicodedata.normalize("NFKD", char) if not unicodedata.combining(part))
    if len(plain) == 1 and plain != char:
        # NFKD turns a full-width backslash into a plain one, which would then pass for the mark that `escape` sets.
        return "_" if plain == "\\" else _FOLDING[ord(plain)]
    named = _NAMED_LETTER.match(unicodedata.name(char, ""))
    if named:
        return _FOLDING[ord(named[1])]
    lowered = char.lower()
    if len(lowered) == 1 and lowered != char:
        return _FOLDING[ord(lowered)]
    # Bracketed letters such as U+24AF decompose into three characters with one letter among them.
    letters = [part for part in plain.lower() if "a" <= part <= "z"]
    if len(letters) == 1:
        return _FOLDING[ord(letters[0])]
    category = unicodedata.category(char)
    if category == "Zs":
        return " "
    return "_" if not plain or category in _IGNORED_CATEGORIES else "?"


def _listed() -> dict[int, str]:
    listed = dict.fromkeys(range(0x21, 0x7F), "?") | dict.fromkeys([*range(0x20), 0x7F], "_")
    listed |= {ord(char): char for char in "\n\\/: "} | {ord("\t"): " "}
    for code in range(ord("a"), ord("z") + 1):
        listed[code] = listed[code - 32] = chr(code)
    for target, chars in [*_LETTERS.items(), *_MARKS]:
        listed |= {ord(char): target for char in chars}
    listed |= {ord(char): "i" for char in "lL|"}
    # The outlined letters and digits are younger than the Unicode that Python knows.
    for first, last, outlined in (("A", "Z", 0x1CCD6), ("0", "9", 0x1CCF0)):
        listed |= {outlined + code - ord(first): listed[code] for code in range(ord(first), ord(last) + 1)}
    return listed


_FOLDING: Final = _Folding(_listed())


def fold(text: str) -> str:
    """`text` as it looks, character for character: `len(fold(text)) == len(text)`. Linear time."""
    return text.translate(_FOLDING)


def passes_for_number(text: str) -> bool:
    """Whether all letters and digits of the text are digits to the eye, of whatever script, and there are any."""
    # Folding takes digits for letters, and of these only `i` and `o` for digits in turn: `tables` is no number.
    signs = [
        char.isnumeric() or look in _DIGIT_LOOKS for char, look in zip(text, fold(text), strict=True) if char.isalnum()
    ]
    return bool(signs) and all(signs)


BLOCK_TAGS: Final = (
    "CORE_IDENTITY",
    "CAPABILITIES",
    "SHARED_MEMORY",
    "FRIENDS_INFO",
    "THIS_MOMENT",
    "TASK_CONTEXT",
    "TURN_MEMORY",
    "WORKING_MEMORY",
    "CONVERSATION_SUMMARY",
    "CONTEXT_META",
    "RECALL",
    "CONSTRAINTS",
    "MOOD",
)
ELEMENTS: Final = ("human_input", "current_time")
TOOL_USE: Final = "tool_use"
TOOL_RESULT: Final = "tool_result"
TURN: Final = "Turn"
SPEAKERS: Final = ("Human", "Nexus")
# The tags of the pinned blocks in manifests, and the headings that they begin with.
PINNED_TAGS: Final = ("AGENT_ROLE", "TODO_LIST", "USEFUL_INFORMATION", "FOLDER_NOTES")
HEADINGS: Final = ("Agent Role Definition", "Current TODO List", "Useful Information", "Folder Notes")
BANNERS: Final = (
    "TASK CONTEXT",
    "WORKSPACE CONTEXT",
    "ACCUMULATED MEMORY SUMMARIES",
    "CURRENT INPUT",
    "PREVIOUS THINKING ROUNDS",
)

_INVISIBLE: Final = "\u061c\u200b\u200e\u200f\u202a-\u202e\u2060\u2066-\u2069\ufeff\U000e0000-\U000e007f"
_SURROGATES: Final = "\ud800-\udfff"
_LINE_ENDS: Final = "\r\x0b\x0c\x1c-\x1e\x85\u2028\u2029"
_TO_NEWLINE: Final = re.compile(f"\r\n|[{_LINE_ENDS}]")
_REMOVED: Final = re.compile(f"[{_INVISIBLE}]")
_NOT_TEXT: Final = re.compile(f"[{_SURROGATES}]")
_NOT_CANONICAL: Final = re.compile(f"[{_LINE_ENDS}{_INVISIBLE}{_SURROGATES}]")

# Without one of these characters there is no structure. Text of other scripts without any is not folded, which takes
# ten times as long for it as for ASCII. A colon after a Chinese or Japanese character is in every second sentence and
# ends no line head.
_SUSPECT: Final = re.compile(
    f"[{re.escape(SQUARE + ANGLE + COLONS + NUMBER_SIGNS + EQUALS_SIGNS)}]"
    f"(?<![\u3041-\u3096\u30a1-\u30fa\u4e01-\u9fff][{COLONS}])"
)

# Characters between the letters of a name, between a bracket and a name, and before the slash of a closing tag. Some
# dashes pass for equals signs.
_GAP: Final = r"[ _\n\\=]*+"
_LEAD: Final = r"[ _\n\\/]*+"
_CLOSING: Final = rf"[ _\n\\]*+/{_LEAD}"
_NAME_ENDS: Final = "(?!_*+[a-z])"
# What also looks like a letter: two others with a gap between them, or the Greek one that is listed as another.
_ALSO_DRAWN: Final = {"d": "c{}i", "m": "[nr]{}n", "v": "n", "w": "u{0}u|v{0}v"}


def spelled(*names: str, gap: str = _GAP) -> str:
    """A pattern for any of the names as they look when folded, with gaps between their letters."""
    return "|".join(gap.join(_drawn(fold(char), gap) for char in name if char not in "_ ") for name in names)


def _drawn(letter: str, gap: str) -> str:
    return f"(?:{letter}|{_ALSO_DRAWN[letter].format(gap)})" if letter in _ALSO_DRAWN else letter


_BLOCK: Final = f"(?:{spelled(*BLOCK_TAGS)})"
_CALL: Final = f"(?:{spelled(TOOL_USE, TOOL_RESULT)}){_GAP}:"
_INPUT, _TIME = (spelled(name) for name in ELEMENTS)
# Two patterns, because one that starts with a plain character is searched for ten times as fast. A tag in the other
# kind of bracket counts as well. Frequent forms in code do not: `a < current_time`, `schedule[current_time]`,
# `Vec<Capabilities>`, `<current_timestamp>`.
SQUARE_TAG: Final = re.compile(
    rf"\[(?:{_LEAD}(?:{_BLOCK}|{_CALL})"
    rf"|{_CLOSING}(?:{_INPUT}|{_TIME}){_NAME_ENDS}"
    rf"|(?<![a-z_\]]\[){_LEAD}(?:{_INPUT}|{_TIME}){_GAP}\])"
)
ANGLE_TAG: Final = re.compile(
    rf"<(?:{_LEAD}(?:{_INPUT}|{_CALL}|{_TIME}{_GAP}>)"
    rf"|{_CLOSING}(?:{_BLOCK}|{_TIME}){_NAME_ENDS}"
    rf"|(?<![a-z_\]]<)(?:{_LEAD}{_BLOCK}{_NAME_ENDS}|[_\\]*+{_TIME}{_NAME_ENDS}[^<>\n]*+>))"
)
# A turn tag only if its number, read from the text itself, is one; an index such as `board[turn1]` is none.
_TURN_TAG: Final = re.compile(rf"\[{_LEAD}(?:{spelled(TURN)})(?P<number>[^\[\]]*+)\]")
# The same where only the folded number is known: some letters pass for no digit.
TURN_SEEN: Final = re.compile(rf"\[{_LEAD}(?:{spelled(TURN)})[^\[\]cdfhj-np-ru-z]*+\]")
_INDEXED: Final = re.compile(r"[\w\])]\Z")
_HEAD_GAP: Final = "[ _]*+"
_LETTER_GAP: Final = "[ _=]*+"
# An optional time in brackets, a speaker and a colon. A mark may stand here and where `_HEAD` has its run.
_MEMORY_HEAD: Final = (
    rf"(?:\\*+[\[<][^\[\]<>\n]*+[\]>]{_HEAD_GAP})?(?:{spelled(*SPEAKERS, gap=_LETTER_GAP)}){_LETTER_GAP}:"
)
# Characters between a title or a bar and the end of the line: symbols and marks, but no letter.
_END: Final = r"[ _#=:;?/<>\[\]\\]*+(?=\n|\Z)"
# One to six number signs and a title.
_HEADING: Final = rf"#(?:{_HEAD_GAP}#){{0,5}}+{_HEAD_GAP}(?:{spelled(*HEADINGS, gap=_LETTER_GAP)}){_END}"
# A title between two bars of two or more equals signs.
_BAR: Final = rf"=(?:{_HEAD_GAP}=)++"
_BANNER: Final = rf"{_BAR}{_HEAD_GAP}(?:{spelled(*BANNERS, gap=_LETTER_GAP)})[ _#:;?]*+{_BAR}{_END}"
_HEAD: Final = rf"(?P<run>\\*+){_HEAD_GAP}(?:{_MEMORY_HEAD}|{_HEADING}|{_BANNER})"
FIRST_HEAD: Final = re.compile(_HEAD)
_LATER_HEAD: Final = re.compile("\n" + _HEAD)
# The labels before a goal, insights and rounds of thought. They are ordinary words, so they are marked only in texts
# of several lines that stand beside them. An apostrophe, among others, folds to a question mark.
_LABEL_GAP: Final = "[ _?]*+"
_LABEL: Final = re.compile(
    rf"^(?P<run>\\*+)[ _]*+(?:(?:{spelled('Insights', 'Users Goal', gap=_LABEL_GAP)}){_LABEL_GAP}"
    rf"|(?:{spelled('Round', gap=_LABEL_GAP)})(?P<number>[^:\n]*+)):",
    re.MULTILINE,
)


# Stands before a text that would complete structure begun by the text before it. No structural token has these letters.
PARTING: Final = "(new message)\n"
_OWN_PARTING: Final = re.compile(r"(?P<run>\\*+)\(new message\)\n")
# What may come later on the line of a text: it ends every tag whose end can be far from its name.
_LINE_GOES_ON: Final = " 1]>"


def canonical(text: str) -> str:
    r"""`text` with every line end as `\n` and without the invisible characters that could hide a tag.

    Removed are U+E0000-E007F, the bidirectional controls, U+200B, U+2060 and U+FEFF. Joiners and variation selectors
    stay: Persian and emoji need them. A lone surrogate, which no UTF-8 can carry, becomes U+FFFD.
    """
    if not _NOT_CANONICAL.search(text):
        return text
    return _NOT_TEXT.sub("\ufffd", _REMOVED.sub("", _TO_NEWLINE.sub("\n", text)))


def one_line(text: str) -> str:
    """`text` in canonical form and on one line, with one space for each stretch of white space."""
    # Canonical first: it makes line ends of other characters, too.
    return " ".join(canonical(text).split())


def escape(text: str) -> str:
    """`text` in canonical form, with one backslash before everything that looks like structure. Linear time."""
    return escape_counted(text)[0]


def escape_counted(text: str) -> tuple[str, int]:
    """`escape(text)`, and the number of marked places."""
    text = canonical(text)
    places = _places(text)
    return (with_marks(text, places), len(places)) if places else (text, 0)


def with_marks(text: str, places: Sequence[int]) -> str:
    """`text` with a backslash at each of these places, which are in ascending order."""
    return "\\".join(text[start:end] for start, end in zip([0, *places], [*places, len(text)], strict=True))


def escape_together(texts: Sequence[str], escape: Callable[[str], str] = escape) -> list[str]:
    """Each of the texts as `escape` leaves it behind those before it, with nothing but white space or dashes between.

    A mark may stand in a text because of the one behind it.
    """
    texts = [canonical(text) for text in texts]
    lines = iter(escape("\n".join(texts)).split("\n"))
    return ["\n".join(islice(lines, text.count("\n") + 1)) for text in texts]


def escape_within_line(text: str, escape: Callable[[str], str] = escape) -> str:
    """`escape(text)` for a text behind which its line goes on with quotation marks, brackets or digits."""
    return escape(f"{text}{_LINE_GOES_ON}").removesuffix(_LINE_GOES_ON)


def unescape(text: str) -> str:
    """The text that was escaped, in canonical form: without `PARTING` and one backslash of every marked place."""
    text = text.removeprefix(PARTING)
    marked = [place for place in _places(text) if place and text[place - 1] == "\\"]
    starts = [0, *marked]
    ends = [*(place - 1 for place in marked), len(text)]
    return "".join(text[start:end] for start, end in zip(starts, ends, strict=True))


class CountingEscape:
    """`escape` that counts, for the manifest, the places it has marked."""

    def __init__(self) -> None:
        self.marked = 0

    def __call__(self, text: str) -> str:
        """`escape(text)`."""
        escaped, count = escape_counted(text)
        self.marked += count
        return escaped


class LabelEscape(CountingEscape):
    """`CountingEscape` that also marks `User's Goal:`, `Insights:` and `Round n:` at the heads of lines (contract §6).

    For texts of several lines that stand beside those labels.
    """

    def __call__(self, text: str) -> str:
        """The text with its marks."""
        escaped = super().__call__(text)
        places = [match.end("run") for match in _LABEL.finditer(fold(escaped)) if _is_label(escaped, match)]
        self.marked += len(places)
        return with_marks(escaped, places)


def _places(text: str) -> list[int]:
    """Where marks belong, in order: before the bracket of a tag, after the backslashes at the start of a line head."""
    places: set[int] = set()
    if parting := _OWN_PARTING.match(text):
        places.add(parting.end("run"))
    elif not text.isascii() and not _SUSPECT.search(text):
        return []
    folded = fold(text)
    if "[" in folded:
        places.update(match.start() for match in SQUARE_TAG.finditer(folded))
        places.update(match.start() for match in _TURN_TAG.finditer(folded) if _is_turn(text, match))
    if "<" in folded:
        places.update(match.start() for match in ANGLE_TAG.finditer(folded))
    if ":" in folded or "#" in folded or "=" in folded:
        if first := FIRST_HEAD.match(folded):
            places.add(first.end("run"))
        places.update(match.end("run") for match in _LATER_HEAD.finditer(folded))
    return sorted(places)


def _is_turn(text: str, match: re.Match[str]) -> bool:
    start, (first, end) = match.start(), match.span("number")
    is_index = not {" ", "\n"} & {*match["number"]} and _INDEXED.match(text[max(start - 1, 0) : start])
    return not is_index and passes_for_number(text[first:end])


def _is_label(text: str, match: re.Match[str]) -> bool:
    first, end = match.span("number")
    return match["number"] is None or passes_for_number(text[first:end])

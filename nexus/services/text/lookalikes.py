"""Fold a text to what it looks like: every character becomes the one plain character it could be taken for.

`fold(text)` has as many characters as `text`, so a match in the folded text is a place in the text itself. Letters
become lower case a-z (`l` becomes `i`, the same stroke to the eye), look-alike brackets, colons, semicolons, number
signs and equals signs become the ASCII ones, characters that are easily overlooked (accents, joiners, dashes, dots)
become `_`, spaces a space, and everything else `?`. Only a backslash becomes a backslash. Every character that folds to
an opening bracket, a colon, a number sign or an equals sign is listed in `SQUARE`, `ANGLE`, `COLONS`, `NUMBER_SIGNS` or
`EQUALS_SIGNS`.

Sources: Unicode NFKD and character names as Python ships them; for letters of other scripts the Unicode confusables
data (UTS #39), as far as the letters occur in structural tokens.
"""

import re
import unicodedata
from typing import Final

# Quotation marks and parentheses are no brackets: “this moment” is ordinary prose.
SQUARE: Final = "[༺༼᚛⁅⌈⌊⎡⎣❲⟅⟦⟬⟮⦇⦉⦋⦍⦏⦓⦕⦗⧘⧚⸢⸤⸦⸨⹂⹕⹗⹙⹛「『【〔〖〘〚︗︹︻﹁﹃﹇﹝［｢"
ANGLE: Final = "<«‹≮\u2329〈❬❮❰⟨⟪⦑⧼《︽︿˂ᐸᚲ𝈶≪⋖≺⊀⪡﹤＜"
_CLOSING_SQUARE: Final = "]༻༽᚜⁆⌉⌋⎤⎦❳⟆⟧⟭⟯⦈⦊⦌⦎⦐⦔⦖⦘⧙⧛⸣⸥⸧⸩⹖⹘⹚⹜」』】〕〗〙〛︘︺︼﹂﹄﹈﹞］｣"
_CLOSING_ANGLE: Final = ">»›≯\u232a〉❭❯❱⟩⟫⦒⧽》︾﹀˃ᐳ≫⋗≻⊁⪢𝈷𖼿﹥＞"
COLONS: Final = ":：﹕︓ː˸։׃ઃः᛬᠃᠉⁚⁝∶ꓽ꞉︰፡܃܄𐞁"
# With the musical sharps, and signs of mathematics and Tifinagh that are drawn as two strokes across two.
NUMBER_SIGNS: Final = "#＃﹟♯⌗⋕⧣⧤⨳ⵌ𝄰𝄱𝄲"
# With whatever is drawn as two or more level strokes: signs of mathematics, hyphens, frames, hexagrams.
EQUALS_SIGNS: Final = "=＝﹦≠⁼₌🟰꞊゠᐀⹀꓿═〓≈≉≋≡≢≣⩵⩶⚌☰𝄗"
# Invisible or blank although Unicode calls them letters or symbols.
_BLANK: Final = "\u115f\u1160\u3164\uffa0\u2800\U0001d159"
_PASSED_OVER: Final = "_-.*~`·•‧∙⋅・･" + _BLANK

_LETTERS: Final = {
    "a": "ɑΑαАаᎪᗅ⍺ꓮ𐊠𖽀∀Λ4@₳",
    "b": "ƄΒВЬвьᏏᏴᑲᖯᗷꓐꞴ𐊂𐊡𐌁ßβ8฿",
    "c": "ϲϹСсᏟᴄⲤⲥꓚꮯ𐊢𐌂𐐕𐐽𐔜𑣩𑣲🝌¢©₵₡",
    "d": "ԁᎠᏧᑯᗞᗪꓒꓓ₫Ðð",
    "e": "ΕЕеҽᎬ℮⋿ⴹꓰꬲ𐊆𑢦𑢮ЭэЄєεϵəƏɛƐƷȜЗӠзⳌꝪꞫ𑣊𖼻𝈆ё3€",
    "f": "ſϜքᖴẝꓝꞘꞙꬵ𐊇𐊥𐔥𑢢𑣂𝈓ƒ",
    "g": "ƍɡԌցᏀᏳᶃꓖ6₲",
    "h": "ΗНнһհᎻᏂᕼⲎꓧ𐋏Ћћ",
    "i": "ıɩɪ˛ͺιІіӏᎥ⍳ꙇꭵ𑣃ƖǀΙӀ۱ᏞᒪᛁℐℑⅠ∣⏽ⲒⳐⵏꓡꓲ￨𐊊𐌉𐌠𐐛𐔦𑢣𑢲𖼖𖼨𝈪1¡Ї!",
    "j": "ͿЈᎫᒍꓙꞲј",
    "k": "ΚКкκᏦᛕⲔꓗ𐔘₭",
    "m": "ΜϺМмᎷᗰᛖⲘꓟ𐊰𐌑₥",
    "n": "ΝηոռпПⲚꓠ𐔓νИийЛ₦",
    "o": "ΟοσОоՕօ۵०০੦૦ଠ୦௦ం౦ಂ೦ംഠ൦ං๐໐ဝ၀ჿዐᴏᴑⲞⲟⵔ〇ꓳꬽ𐊒𐊫𐐄𐐬𐓂𐓪𐔖𑓐𑢵𑣈𑣗𑣠0θΘ○◯",
    "p": "ΡρϱРрᏢᑭ⍴Ⲣⲣꓑ𐊕þÞ₱₽",
    "r": "ƦГгᎡᏒᖇᴦⲅꓣꭇꭈꮁ𐒴𖼵𝈖Яя®",
    "s": "ƽЅѕՏᏕᏚꓢꜱꮪ𐊖𐐠𐑈𑣁𖼺5$§ƼՐ₴",
    "t": "ΤτТтᎢ⊤⟙Ⲧꓔ𐊗𐊱𐌕𑢼𖼊🝨7†₮₸",
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
)
_NAMED_LETTER = re.compile(
    r"(?:LATIN (?:(?!WITH)[A-Z]+ )*|REGIONAL INDICATOR SYMBOL LETTER |MODIFIER LETTER (?:SMALL|CAPITAL) "
    r"|(?:[A-Z]+ )*(?:SQUARED|CIRCLED|PARENTHESIZED) LATIN (?:CAPITAL|SMALL) LETTER )([A-Z])(?: WITH .*)?$"
)
_IGNORED_CATEGORIES = frozenset({"Mn", "Mc", "Me", "Cf", "Cc", "Cn", "Pc", "Pd", "Sk", "Lm"})
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

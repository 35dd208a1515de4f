"""The numbers in a text, however they are written, and which of them may stand for one another. Pure."""

import re
import unicodedata
from collections.abc import Iterator
from typing import Final

_NUMBER: Final = re.compile(r"\d(?:[\d.,'’\u00a0\u202f]*\d)?")
# What stands between numbers as well as within one.
_BETWEEN: Final = re.compile(r"[,'’\u00a0\u202f]")
# The fewest digits that tell a number from a count, and the most to which somebody rounds.
_LEAST: Final = 2
_MOST_ROUNDED: Final = 7
_HALF: Final = "5"
# How much of a text is searched for words.
_LOOKED_AT: Final = 200_000
_NUMERALS: Final = "〇零一二三四五六七八九十百千万萬亿億两兩壹贰叁肆伍陆柒捌玖拾佰仟"
# Numbers in words, of ten and more, in the languages that summaries are checked in.
_WORDS: Final = re.compile(
    rf"[百千万]分之[{_NUMERALS}]+|[{_NUMERALS}]{{2,}}"
    r"|\b(?:eleven|twelve|\w+teen|(?:twen|thir|for|fif|six|seven|eigh|nine)ty|hundreds?|thousands?|dozens?)\b"
    r"|zwölf|zwanzig|dreißig|vierzig|fünfzig|sechzig|siebzig|achtzig|neunzig|hundert|tausend"
    r"|\b(?:onze|douze|treize|quatorze|quinze|seize|vingt|trente|quarante|cinquante|soixante|cent|mille)\b"
    r"|\b(?:once|doce|trece|catorce|quince|veinte|treinta|cuarenta|cincuenta|sesenta|setenta|ochenta|noventa|cien|mil)\b"
    r"|\b(?:undici|dodici|quindici|venti|trenta|quaranta|cinquanta|sessanta|settanta|ottanta|novanta|cento)\b"
    r"|\b(?:doze|treze|vinte|trinta|quarenta|cinquenta|sessenta|oitenta|cem)\b"
    r"|twaalf|twintig|dertig|veertig|vijftig|zestig|zeventig|tachtig|negentig|honderd|duizend",
    re.IGNORECASE,
)


def figures(text: str) -> frozenset[str]:
    """The numbers of two digits or more, however they are grouped and pointed: 0.86 is 0,86 and 86, 45,678 is 45678."""
    return frozenset(
        digits
        for number in set(_NUMBER.findall(unicodedata.normalize("NFKC", text)))
        if len(digits := _digits(number)) >= _LEAST
    )


def spellings(text: str) -> frozenset[str]:
    """What `spelling` may be of a number that stands for one in the text: as it is, rounded, or cut off."""
    whole = set(_NUMBER.findall(unicodedata.normalize("NFKC", text)))
    numbers = {_digits(number) for one in whole for number in (one, *_BETWEEN.split(one))} - {""}
    return frozenset(spelling(rounded) for number in numbers for rounded in _rounded(number))


def spelling(number: str) -> str:
    """The same for all powers of ten: 12 for 1.2 million, 1200 and 12%."""
    return number.rstrip("0").ljust(_LEAST, "0")


def number_words(text: str) -> int:
    """How many numbers there are in words, which nobody reads here, in the beginning of a text."""
    return sum(1 for _ in _WORDS.finditer(text[:_LOOKED_AT]))


def _digits(number: str) -> str:
    """Without what stands between them and zeros before them."""
    digits = "".join(filter(str.isdigit, number))
    return (digits if digits.isascii() else "".join(str(unicodedata.digit(char)) for char in digits)).lstrip("0")


def _rounded(number: str) -> Iterator[str]:
    yield number
    for length in range(_LEAST, min(len(number), _MOST_ROUNDED + 1)):
        yield number[:length]
        if number[length] >= _HALF:
            yield str(int(number[:length]) + 1)

"""The terms by which texts are found: stems of words, characters and pairs of characters of Chinese and its like. Pure.

What is written here decides what an index has: with a change of it every message is to be indexed again
(`nexus recall index --again`).
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import datetime
from functools import lru_cache
from itertools import product
from typing import Any, Final

# The classes themselves: the package's own choice would be PyStemmer where that is installed, of another version.
from snowballstemmer import (  # type: ignore[import-untyped]  # it has no types
    ArabicStemmer,
    ArmenianStemmer,
    CatalanStemmer,
    CzechStemmer,
    DanishStemmer,
    DutchStemmer,
    EnglishStemmer,
    FinnishStemmer,
    FrenchStemmer,
    GermanStemmer,
    GreekStemmer,
    HindiStemmer,
    HungarianStemmer,
    IndonesianStemmer,
    ItalianStemmer,
    NorwegianStemmer,
    PolishStemmer,
    PortugueseStemmer,
    RomanianStemmer,
    RussianStemmer,
    SpanishStemmer,
    SwedishStemmer,
    TamilStemmer,
    TurkishStemmer,
)

from nexus.core.recall import Language, Occurrence, occurrence

# True of every message: an episode also has places where none is.
MESSAGE: Final = "#message"
# True of a message that an assistant said.
BY_ASSISTANT: Final = "#assistant"

# Words that say nothing of a subject; a longer list finds less (docs/recall.md).
_SAY_NOTHING: Final = (
    "a an and are as at be been being but by can could did do does for from had has have he her hers him his how i if "
    "in into is it its me my of on or our she should so than that the their them then there these they this those to "
    "us was we were what when where which who whom whose why will with would you your"
)
_STOP_WORDS: Final = frozenset(_SAY_NOTHING.split())
# Characters of Chinese that do the same. They end a run: no pair goes across them.
_STOP_CHARACTERS: Final = re.compile("[的了是我你他她它们吗呢吧啊呀哦嘛就都也和在有那这什么哪谁几怎]")
_CJK: Final = "\u3005-\u3007\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff"
# Accents and vowel signs, of which many scripts make their words, are no `\w`.
_MARKS: Final = "".join(char for char in map(chr, range(0x300, 0x1E00)) if unicodedata.category(char)[0] == "M")
_WORDS: Final = re.compile(rf"[^\W_]+(?:[{_MARKS}]+[^\W_]*)*")
# The time of normalising a run of marks grows with its square; no word has more in a row.
_MANY_MARKS: Final = re.compile(r"([^\w\s]{8})[^\w\s]+")
_RUNS: Final = re.compile(f"([{_CJK}]+)|[^{_CJK}]+")
_STEMMERS: Final[tuple[tuple[str, str, Any], ...]] = (
    ("\u0370", "\u03ff", GreekStemmer()),
    ("\u0400", "\u052f", RussianStemmer()),
    ("\u0530", "\u058f", ArmenianStemmer()),
    ("\u0600", "\u06ff", ArabicStemmer()),
    ("\u0900", "\u097f", HindiStemmer()),
    ("\u0b80", "\u0bff", TamilStemmer()),
)
# Of languages in Latin letters one is chosen by `recall.language`: a question is too short to tell its own.
_LATIN: Final[Mapping[Language, Any]] = {
    "catalan": CatalanStemmer(),
    "czech": CzechStemmer(),
    "danish": DanishStemmer(),
    "dutch": DutchStemmer(),
    "english": EnglishStemmer(),
    "finnish": FinnishStemmer(),
    "french": FrenchStemmer(),
    "german": GermanStemmer(),
    "hungarian": HungarianStemmer(),
    "indonesian": IndonesianStemmer(),
    "italian": ItalianStemmer(),
    "norwegian": NorwegianStemmer(),
    "polish": PolishStemmer(),
    "portuguese": PortugueseStemmer(),
    "romanian": RomanianStemmer(),
    "spanish": SpanishStemmer(),
    "swedish": SwedishStemmer(),
    "turkish": TurkishStemmer(),
}
# The beginning of a longer word is its term: such words are keys and encoded data.
_LONGEST_WORD: Final = 40
# A word costs 0.2 ms to stem, and one that is kept 0.2 KiB: room for the words of people, and not for all their names.
_STEMS_KEPT: Final = 1 << 14
# Terms of one message; those of the beginning of a longer one.
_MOST_TERMS: Final = 4_000

_MONTHS: Final = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_MONTH: Final = re.compile(
    r"\b(january|february|march|april|may|june|july|august|september|october|november|december|"
    r"jan|feb|mar|apr|jun|jul|aug|sept|sep|oct|nov|dec)\b",
    re.IGNORECASE,
)
# English words of another meaning, unless they are capitalised.
_ALSO_WORDS: Final = {"may", "march", "mar", "sep"}
_CHINESE_MONTH: Final = re.compile(r"(\d{1,2}|十[一二]?|[一二三四五六七八九])\s*月")
_CHINESE_NUMBERS: Final = {name: number for number, name in enumerate((*"零一二三四五六七八九十", "十一", "十二"))}
_YEAR: Final = re.compile(r"(?<!\d)(?:19|20)\d\d(?!\d)")
_MONTHS_OF_YEAR: Final = 12
# Dates of a question: each is looked at in every episode, and a text that names more asks for no one of them.
_MOST_DATES: Final = 12


def terms_of(text: str, language: Language = "english") -> list[str]:
    """The terms of a text, in order, as often as they occur; at most some thousands.

    `language` is that of words in Latin letters.
    """
    found: list[str] = []
    for word in _words(text):
        for run in _RUNS.finditer(word):
            if run[1]:
                found += run[1]
                found += (run[1][at : at + 2] for at in range(len(run[1]) - 1))
            elif run[0] not in _STOP_WORDS and (stem := _stem(run[0][:_LONGEST_WORD], language)):
                found.append(stem)
        if len(found) >= _MOST_TERMS:
            return found[:_MOST_TERMS]
    return found


def occurrences(text: str, language: Language = "english") -> Mapping[str, Occurrence]:
    """The terms of a message, each with its occurrence."""
    found = terms_of(text, language)
    return {term: occurrence(times, len(found)) for term, times in Counter(found).items()}


def flags_of(moment: datetime | None, *, by_assistant: bool) -> list[str]:
    """What an index keeps of a message besides its terms: that it is one, who said it, and its month and year."""
    said = [MESSAGE, BY_ASSISTANT] if by_assistant else [MESSAGE]
    return [*said, _year(moment.year), _month(moment.month)] if moment else said


def dates_named(question: str) -> list[tuple[str, ...]]:
    """The flags of each date that a question names, a year, a month, or the month of a year; of some at most."""
    months = [
        _month(_MONTHS.index(name[:3].lower()) + 1) for name in _MONTH.findall(question) if name not in _ALSO_WORDS
    ]
    for name in _CHINESE_MONTH.findall(question):
        number = int(name) if name.isdecimal() else _CHINESE_NUMBERS[name]
        months += [_month(number)] if 1 <= number <= _MONTHS_OF_YEAR else []
    years = [_year(int(year)) for year in _YEAR.findall(question)]
    named = [[*dict.fromkeys(flags)][:_MOST_DATES] for flags in (months, years) if flags]
    return [*product(*named)][:_MOST_DATES] if named else []


def _words(text: str) -> Iterator[str]:
    if not text.isascii():
        # A letter with its accent is written as one character or as two, a digit narrow or wide.
        text = unicodedata.normalize("NFKC", _MANY_MARKS.sub(r"\1", text))
        text = _STOP_CHARACTERS.sub(" ", text)
    return (word[0] for word in _WORDS.finditer(text.lower()))


@lru_cache(_STEMS_KEPT)
def _stem(word: str, language: Language) -> str:
    stemmer = next((stemmer for first, last, stemmer in _STEMMERS if first <= word[0] <= last), _LATIN[language])
    stem: str = stemmer.stemWord(word)
    return stem


def _year(year: int) -> str:
    return f"#{year:04}"


def _month(month: int) -> str:
    return f"#{month:02}"

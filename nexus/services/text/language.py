"""The language of a text, where it can be told for sure. Pure.

- It is told by the script of the letters, and for Latin letters by the most frequent words of seven languages.
- A text is clear only when it is long enough, most of it is in one language, and no line is in another. Short and mixed
  texts, code and data are not clear: no answer is better than a wrong one.
- Quotations do not count, nor does text in another script behind a colon.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Final

# The results of `language_of`. A script that several languages share is its own result, and has no name here.
NAMES: Final[Mapping[str, str]] = {
    "zh": "Chinese",
    "ja": "Japanese",
    "ko": "Korean",
    "en": "English",
    "de": "German",
    "fr": "French",
    "es": "Spanish",
    "it": "Italian",
    "pt": "Portuguese",
    "nl": "Dutch",
}
_OTHER: Final = "another"
# The result for a text of which only the script is clear.
LATIN: Final = "LATIN"
# Words that a text of some lines can hardly do without and that others of these languages use seldom.
_FREQUENT: Final[Mapping[str, frozenset[str]]] = {
    language: frozenset(words.split())
    for language, words in {
        "en": "the and of to is that with this for was are which from you have what please how not it be by will can "
        "were their should there about into has had but they we or its would all these been",
        "de": "und die der das nicht ist mit für auf eine einen einem dem des zu von wie bitte auch sich werden wurde "
        "wird sind über oder aus nach bei ich wir ein zum zur den es als noch im haben hat",
        "fr": "le la les des et est une dans pour que qui sur avec pas par au aux du ce cette sont plus vous nous je "
        "il elle ont été mais ou comme leur ses entre aussi fait",
        "es": "el la los las y es una que en por para con del se su no al lo como más pero sus sobre este esta fue "
        "son está han ha muy también hay entre desde cuando qué",
        "it": "il la gli le e è una che di per con non del della dei delle si sono nel nella come più ma anche questo "
        "questa ha ho stato sul alla dal dalla tra quali cosa",
        "pt": "o os as e é uma que em para com não do da dos das no na nos nas se por mais como mas ao foi são está "
        "também pelo pela sobre este esta você há ser tem",
        "nl": "het een van niet voor met zijn dat wordt werd ook naar maar deze kunnen wat hoe aan bij uit als ik wij "
        "graag om te er is de en op die zich heeft hebben worden over door",
        # Not one language, but those that would pass for one of the above.
        _OTHER: "og ikke jeg det er på och inte att som av till för nie vir hulle amb els dels ha gjort har kan til "
        "fra și nu este din że się jest nie ve bir için yang dan tidak và của je není",
    }.items()
}
_FENCED: Final = re.compile(r"```.*?(```|\Z)|`[^`\n]*`|https?://\S+", re.DOTALL)
_QUOTED: Final = re.compile(
    r"""(?<!\w)'[^'\n]*'(?!\w)|"[^"\n]*"|[“„][^“”\n]*[“”]|‘[^‘’\n]*’|«[^«»\n]*»|「[^「」\n]*」|『[^『』\n]*』|《[^《》\n]*》"""
    r"""|\([^()\n]*\)|（[^（）\n]*）"""
)
_COLON: Final = re.compile("[:：]")
_WORD: Final = re.compile(r"[^\W\d_]+(?:['’][^\W\d_]+)*")
_CODE: Final = re.compile(r"[{}\[\]<>=;\\|]")
# Scripts that are read letter by letter, not word by word.
_DENSE: Final = frozenset({"CJK", "HIRAGANA", "KATAKANA"})
# The language of a script that has only one; Latin letters alone are not clear.
_LANGUAGES: Final[Mapping[str, str | None]] = {
    "CJK": "zh",
    "HANGUL": "ko",
    "JAPANESE": "ja",
    LATIN: None,
    _OTHER: None,
}
_PARTS_OF: Final[Mapping[str, tuple[str, ...]]] = {
    "JAPANESE": ("CJK",),
    **dict.fromkeys([*NAMES, _OTHER], (LATIN,)),
}
# The characters of a text that are examined.
_LOOKED_AT: Final = 20_000
# How many letters of a dense script, or words of another, are enough, and for a line.
_ENOUGH: Final = 8
_ENOUGH_OF_A_LINE: Final = 2
# How many are enough to tell the script.
_ENOUGH_FOR_LETTERS: Final = 2
# Which share of a text must be of one script.
_MOST: Final = 0.6
# Chinese borrows a letter here and there; Japanese has a third of these or more.
_KANA: Final = 0.1
# How many characters of code are too many for a text.
_MOST_CODE: Final = 0.03
# Which share of the words must be frequent ones, how many different ones, and how many times those of any other.
_SHARE: Final = 0.15
_DIFFERENT: Final = 3
_TIMES: Final = 2


def differ(found: str, expected: str) -> bool:
    """Whether a result of `language_of` or `letters_of` contradicts the expected one."""
    if LATIN in {found, expected}:
        return _in_latin(found) != _in_latin(expected)
    # Japanese may do without its own letters for some lines.
    return found != expected and (found, expected) != ("zh", "ja")


def _in_latin(language: str) -> bool:
    return language == LATIN or language in _FREQUENT


def name_of(language: str) -> str:
    """The name of a result of `language_of`."""
    return NAMES.get(language) or f"a language in {language.title()} letters"


def language_of(text: str) -> str | None:
    """`zh`, `en`, … for those that can be told, else the script as Unicode names it (`CYRILLIC`); None if not clear."""
    language = _of(text, _ENOUGH)
    return _LANGUAGES.get(language or "", language)


def letters_of(text: str) -> str | None:
    """The same of a text that may be as short as two letters or words, and `LATIN` where it is in those."""
    language = _of(text, _ENOUGH_FOR_LETTERS)
    return LATIN if language in NAMES or language == _OTHER else _LANGUAGES.get(language or "", language) or language


def likely_languages_of(text: str) -> frozenset[str]:
    """Of a text in Latin letters those languages that it has the most words of, however few; none if there are none."""
    ranked = _ranked([word.lower() for word in _WORD.findall(_plain(text))])
    most = len(ranked[0][1])
    return frozenset(language for language, words in ranked if most and len(words) == most)


def _of(text: str, enough: int) -> str | None:
    plain = _plain(text)
    if len(_CODE.findall(plain)) > _MOST_CODE * len(plain):
        return None
    language = _language_in(plain, enough)
    of_lines = {_language_in(line, _ENOUGH_OF_A_LINE) for line in plain.splitlines()}
    # A line of Japanese may do without its own letters, and one in Latin letters be too short to tell.
    others = of_lines - {None, language, *_PARTS_OF.get(language or "", ())}
    return None if others else language


def _plain(text: str) -> str:
    """The beginning of a text without code and quotations."""
    plain = _QUOTED.sub(" ", _FENCED.sub(" ", text[:_LOOKED_AT]))
    return "\n".join(map(_own_words, plain.splitlines()))


def _own_words(line: str) -> str:
    head, *tail = _COLON.split(line, maxsplit=1)
    scripts = {_script(part, _ENOUGH_OF_A_LINE) for part in (head, *tail)} - {None}
    return head if len(scripts) > 1 else line


def _language_in(text: str, enough: int) -> str | None:
    """The language of `text` if it can be told, else its script if that can."""
    script = _script(text, enough)
    return (_by_words(text) or script) if script == LATIN else script


def _script(text: str, enough: int) -> str | None:
    """The script that most of a text is in, Japanese being one of its own."""
    found = Counter(_units(text))
    kana = found["HIRAGANA"] + found["KATAKANA"]
    if kana > _KANA * (kana + found["CJK"]):
        found["JAPANESE"] = kana + found.pop("CJK", 0)
        found -= Counter({script: found[script] for script in ("HIRAGANA", "KATAKANA")})
    if not found:
        return None
    script, count = found.most_common(1)[0]
    return script if count >= enough and count >= _MOST * found.total() else None


def _units(text: str) -> Iterator[str]:
    """The script of every letter of a dense script, and of every word of another."""
    for word in _WORD.findall(text):
        before = ""
        for letter in word:
            script = _script_of(letter)
            if script and (script in _DENSE or script != before):
                yield script
            before = script or before


@lru_cache(maxsize=4_096)
def _script_of(letter: str) -> str:
    # The first word of a letter's name is its script; of full width forms it is something else.
    return unicodedata.name(letter, "").partition(" ")[0]


def _by_words(text: str) -> str | None:
    """Of a text in Latin letters the language whose frequent words are in it, well ahead of every other."""
    words = [word.lower() for word in _WORD.findall(text)]
    (best, hits), (_, others) = _ranked(words)[:2]
    clear = len({*hits}) >= _DIFFERENT and len(hits) >= _SHARE * len(words) and len(hits) >= _TIMES * len(others)
    return best if clear else None


def _ranked(words: Sequence[str]) -> list[tuple[str, list[str]]]:
    """The languages with those of the words that are frequent in them, most of them first."""
    hits = {language: [word for word in words if word in frequent] for language, frequent in _FREQUENT.items()}
    return sorted(hits.items(), key=lambda item: len(item[1]), reverse=True)

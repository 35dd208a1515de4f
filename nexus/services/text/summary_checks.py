"""Checks of a summary that a model wrote: refusals, the language of the user, invented figures, missing parts. Pure.

- The script of the letters decides on the language, and for Latin letters the most frequent words of seven languages.
  A text has one only when it is long enough, most of it is in one, and no line is in another. Quotations do not
  count, nor does text in another script behind a colon.
- A text invents only when three or more of its numbers, and more than half of them, are in the turn neither in any
  spelling nor rounded: counts and sums stand nowhere in a turn. For each number that the turn has in words, one more
  may be unknown.
- A refusal counts only at the start of a text, and only where the turn itself does not contain those words.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Final

from nexus.services.text.digest import has_figure
from nexus.services.text.sentences import weight
from nexus.services.text.words import CHINESE, ENGLISH, Words

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
# Words that are frequent in one of these languages and rare in the others.
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
        # Words of languages that would pass for one of the above.
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
_LANGUAGES: Final[Mapping[str, str | None]] = {"CJK": "zh", "HANGUL": "ko", "JAPANESE": "ja", LATIN: None, _OTHER: None}
# The script that single lines of a text may seem to be in.
_PART_OF: Final[Mapping[str, str]] = {"JAPANESE": "CJK", **dict.fromkeys([*NAMES, _OTHER], LATIN)}
# The characters of a text that are examined for its language, and for numbers in words.
_EXAMINED: Final = 20_000
# Of a question and of an answer, for the language of a summary by rules.
_EXAMINED_BY_RULES: Final = 2_000
_EXAMINED_FOR_WORDS: Final = 200_000
# The letters of a dense script, or words of another, that a text needs for its language; and for its script, as a line.
_ENOUGH: Final = 8
_ENOUGH_FOR_SCRIPT: Final = 2
# The least share of a text in one script.
_LEAST_SHARE: Final = 0.6
# Chinese borrows a letter here and there; Japanese has a third of these or more.
_KANA: Final = 0.1
# The largest share of a text that may be characters of code.
_MOST_CODE: Final = 0.03
# Of frequent words: their least share, how many different ones, and how many times those of any other language.
_SHARE: Final = 0.15
_DIFFERENT: Final = 3
_TIMES: Final = 2


def differ(found: str, expected: str) -> bool:
    """Whether a result of `language_of` or `letters_of` contradicts the expected one."""
    if LATIN in {found, expected}:
        in_latin = {LATIN, *_FREQUENT}
        return (found in in_latin) != (expected in in_latin)
    # Japanese may do without its own letters for some lines.
    return found != expected and (found, expected) != ("zh", "ja")


def name_of(language: str) -> str:
    """The name of a result of `language_of`."""
    return NAMES.get(language) or f"a language in {language.title()} letters"


def language_of(text: str) -> str | None:
    """`zh`, `en`, … for a known language, else the script as Unicode names it (`CYRILLIC`); None where unclear."""
    language = _of(text, _ENOUGH)
    return _LANGUAGES.get(language or "", language)


def letters_of(text: str) -> str | None:
    """The same for a text of two letters or words or more, and `LATIN` for one in Latin letters."""
    language = _of(text, _ENOUGH_FOR_SCRIPT)
    return LATIN if language in NAMES or language == _OTHER else _LANGUAGES.get(language or "", language) or language


def likely_languages_of(text: str) -> frozenset[str]:
    """Of a text in Latin letters, the languages with the most frequent words in it; none where it has no such word."""
    ranked = _ranked([word.lower() for word in _WORD.findall(_plain(text))])
    most = len(ranked[0][1])
    return frozenset(language for language, words in ranked if most and len(words) == most)


def _of(text: str, enough: int) -> str | None:
    plain = _plain(text)
    if len(_CODE.findall(plain)) > _MOST_CODE * len(plain):
        return None
    language = _language_in(plain, enough)
    of_lines = {_language_in(line, _ENOUGH_FOR_SCRIPT) for line in plain.splitlines()}
    # A line of Japanese may do without its own letters, and one in Latin letters be too short to tell.
    others = of_lines - {None, language, _PART_OF.get(language or "")}
    return None if others else language


def _plain(text: str) -> str:
    """The beginning of a text without code and quotations."""
    plain = _QUOTED.sub(" ", _FENCED.sub(" ", text[:_EXAMINED]))
    return "\n".join(map(_own_words, plain.splitlines()))


def _own_words(line: str) -> str:
    head, *tail = _COLON.split(line, maxsplit=1)
    scripts = {_script(part, _ENOUGH_FOR_SCRIPT) for part in (head, *tail)} - {None}
    return head if len(scripts) > 1 else line


def _language_in(text: str, enough: int) -> str | None:
    """The language of `text` if it is clear, else its script if that is."""
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
    return script if count >= enough and count >= _LEAST_SHARE * found.total() else None


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
    """Of a text in Latin letters, the language whose frequent words it has, well ahead of every other."""
    words = [word.lower() for word in _WORD.findall(text)]
    (best, hits), (_, others) = _ranked(words)[:2]
    clear = len({*hits}) >= _DIFFERENT and len(hits) >= _SHARE * len(words) and len(hits) >= _TIMES * len(others)
    return best if clear else None


def _ranked(words: Sequence[str]) -> list[tuple[str, list[str]]]:
    """The languages with those of the words that are frequent in them, most of them first."""
    hits = {language: [word for word in words if word in frequent] for language, frequent in _FREQUENT.items()}
    return sorted(hits.items(), key=lambda item: len(item[1]), reverse=True)


_MOST_UNKNOWN: Final = 2
# Beginnings by language: apologies in the first person, and reports that summarising failed.
_REFUSALS: Final[Mapping[str, str]] = {
    "en": (
        r"(i['’]m|i am) (very |so )?sorry\b|sorry,|(unfortunately,? )?i (can(no|['’])t|am unable to|['’]m unable to) "
        r"(help|assist|summari[sz]e|comply|provide|create|generate|process|answer|continue|fulfil)|as an ai\b"
        r"|unable to (help|assist|comply|summari[sz]e)|(failed|unable) to (generate|create|produce) (a |the )?summary"
        r"|no summary (is available|could)|summary (is )?(unavailable|not available|failed|could not)"
    ),
    "de": (
        r"(es )?tut mir (sehr )?leid|leider kann ich|ich kann (das|dies|den|die|dabei|diese[nmrs]?)\b.{0,40}\bnicht "
        r"(zusammen|helfen)|(die )?zusammenfassung (ist fehl|fehlgeschlagen|konnte nicht)"
    ),
    "fr": (
        r"(je suis )?désolée?\b|(malheureusement,? )?je ne peux pas |impossible de (résumer|générer (le|un) résumé)"
        r"|échec d(e|u) (la |l['’])?(génération|création|résumé)"
    ),
    "es": (
        r"lo siento\b|(lamentablemente|desafortunadamente),? no puedo|no puedo (ayudar|resumir|generar)"
        r"|no se pudo (resumir|(generar|crear) (el|un) resumen)|error al (resumir|generar el resumen)"
    ),
    "it": (
        r"mi dispiace\b|(purtroppo,? )?non posso (aiutar|riassumere|generare)"
        r"|impossibile (riassumere|generare (il|un) riassunto)"
    ),
    "pt": (
        r"desculpe\b|sinto muito\b|lamento\b|(infelizmente,? )?não posso (ajudar|resumir|gerar)"
        r"|não foi possível (resumir|(gerar|criar) (o|um) resumo)|falha ao (resumir|gerar o resumo)"
    ),
    "nl": (
        r"het spijt me\b|helaas kan ik|ik kan (dit|dat|de|het|u|je)\b.{0,40}\bniet (samenvatten|helpen)"
        r"|(de )?samenvatting (is )?mislukt"
    ),
    "zh": (
        r"(很|非常|十分)?(对不起|對不起|抱歉)|不好意思|我(无法|無法|不能)|(无法|無法)(总结|總結|概括|生成(总结|總結|摘要))"
        r"|(总结|總結|摘要)(生成)?(失败|失敗)|生成(总结|總結|摘要)(失败|失敗)"
    ),
    "ja": r"申し訳|すみません|ごめんなさい|要約(の|を)?(生成|作成)?(に失敗|(が|は)?でき)",
    "ko": r"죄송|미안|요약(을|할)? ?(생성|작성)?(에 실패|할 수 없|수 없| 실패)",
}
_REFUSAL: Final = re.compile("|".join(_REFUSALS.values()), re.IGNORECASE)
_MARKS: Final = re.compile(r"[\W_]*")
# Never part of a summary, wherever it stands (contract §6).
_FAILED: Final = "summary generation failed"

_NUMBER: Final = re.compile(r"\d(?:[\d.,'’\u00a0\u202f]*\d)?")
# Marks that stand between numbers as well as within one.
_BETWEEN: Final = re.compile(r"[,'’\u00a0\u202f]")
# The fewest digits that tell a number from a count, and the most to which a number is rounded.
_LEAST_DIGITS: Final = 2
_MOST_ROUNDED: Final = 7
_ROUNDED_UP: Final = "5"
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


@dataclass(frozen=True, slots=True)
class Evidence:
    """Facts of a turn that its summary is checked against."""

    # Of the user's messages, or their script; None where neither is clear.
    language: str | None
    # All numbers, as `_spellings` returns them, and how many more are in words.
    figures: frozenset[str]
    number_words: int = 0
    # The text, as `_folded` returns it.
    turn_text: str = field(default="", repr=False)
    # The least weight of a detailed summary.
    least: int = 0
    # Whether the answer or a result has numbers, and whether tools were called.
    has_figures: bool = False
    has_calls: bool = False

    @property
    def of_part(self) -> "Evidence":
        """For a summary of a part of the turn, which may have little in it."""
        return replace(self, least=0, has_figures=False, has_calls=False)

    def fault_of(self, texts: Sequence[str], detailed: str) -> str | None:
        """A fault in the language of these texts, or in the figures of one; None for none."""
        expected = self.language
        for language in filter(None, (*map(language_of, texts), letters_of(detailed))):
            if expected and differ(language, expected):
                return f"it is in {name_of(language)}, and the user writes in {name_of(expected)}"
        for text in texts:
            named = numbers_in(text)
            unknown = sum(_spelling(figure) not in self.figures for figure in named)
            if unknown > _MOST_UNKNOWN + self.number_words and 2 * unknown > len(named):
                return f"{unknown} of {len(named)} numbers are not in the turn"
        return None

    def lack_of(self, texts: Sequence[str], detailed: str, *, has_outcomes: bool) -> str | None:
        """A part missing from a summary of these texts; None for none. `has_outcomes`: it lists actions or results."""
        if weight(detailed) < self.least:
            return "it leaves out nearly everything"
        if self.has_figures and not any(map(has_figure, texts)):
            return "it names no number, and the turn holds some"
        if self.has_calls and not has_outcomes:
            return "it tells neither actions nor results, and tools were called"
        return None


def evidence_in(
    everything: str, *, language: str | None, least: int = 0, has_figures: bool = False, has_calls: bool = False
) -> Evidence:
    """The evidence in the text of everything that was said and done; other arguments as in `Evidence`."""
    return Evidence(
        language,
        _spellings(everything),
        sum(1 for _ in _WORDS.finditer(everything[:_EXAMINED_FOR_WORDS])),
        _folded(everything),
        least=least,
        has_figures=has_figures,
        has_calls=has_calls,
    )


def language_of_user(asked: str, answered: str, goal: str = "") -> str | None:
    """The language in which the user writes, judged from the question, the answer and the goal together."""
    if language := language_of(asked):
        # Japanese may do without its own letters for a question.
        return "ja" if language == "zh" and language_of(answered) == "ja" else language
    letters, likely = letters_of(asked), likely_languages_of(asked)
    for text in (f"{asked}\n{answered}", goal):
        language = language_of(text)
        if language is None:
            continue
        # A frequent word of one language is no word of another, and scripts other than Latin stand for themselves.
        if not differ(letters, language) if letters and letters != LATIN else not likely or language in likely:
            return language
    around = {letters_of(answered), letters_of(goal)} - {None}
    return letters if letters and not any(other and differ(letters, other) for other in around) else None


def words_for(asked: str, answered: str = "") -> Words:
    """The words of a summary by rules, in the language of question and answer, as far as their beginnings tell."""
    language = language_of_user(asked[:_EXAMINED_BY_RULES], answered[:_EXAMINED_BY_RULES])
    return CHINESE if language == "zh" else ENGLISH


def refusal_in(text: str, turn_text: str) -> str | None:
    """The fault of a text that is a refusal or says that there is no summary; see `Evidence.turn_text`."""
    begin = _MARKS.match(text)
    refusal = _REFUSAL.match(text, begin.end() if begin else 0)
    return "it is a refusal" if refusal and _folded(refusal[0]) not in turn_text else failure_in(text, turn_text)


def failure_in(text: str, turn_text: str) -> str | None:
    """The fault of a text that says anywhere that summarising failed; None for no fault."""
    return "it says that it failed" if _FAILED in _folded(text) and _FAILED not in turn_text else None


def _folded(text: str) -> str:
    """The text for comparisons: small letters and capitals are the same, and so are apostrophes."""
    return text.casefold().replace("’", "'")


def numbers_in(text: str) -> frozenset[str]:
    """The numbers of two digits or more, however they are grouped and pointed: 0.86 is 0,86 and 86, 45,678 is 45678."""
    return frozenset(
        digits
        for number in set(_NUMBER.findall(unicodedata.normalize("NFKC", text)))
        if len(digits := _digits(number)) >= _LEAST_DIGITS
    )


def _spellings(text: str) -> frozenset[str]:
    """The `_spelling` of every number that stands for one in the text: as it is, rounded, or cut off."""
    whole = set(_NUMBER.findall(unicodedata.normalize("NFKC", text)))
    numbers = {_digits(number) for one in whole for number in (one, *_BETWEEN.split(one))} - {""}
    return frozenset(_spelling(rounded) for number in numbers for rounded in _rounded(number))


def _spelling(number: str) -> str:
    """The same for all powers of ten: 12 for 1.2 million, 1200 and 12%."""
    return number.rstrip("0").ljust(_LEAST_DIGITS, "0")


def _digits(number: str) -> str:
    """The digits alone, without leading zeros."""
    digits = "".join(filter(str.isdigit, number))
    return (digits if digits.isascii() else "".join(str(unicodedata.digit(char)) for char in digits)).lstrip("0")


def _rounded(number: str) -> Iterator[str]:
    yield number
    for length in range(_LEAST_DIGITS, min(len(number), _MOST_ROUNDED + 1)):
        yield number[:length]
        if number[length] >= _ROUNDED_UP:
            yield str(int(number[:length]) + 1)

"""Checks of a summary that a model wrote: refusals, the language of the user, invented figures, missing parts. Pure.

- A summary in another language than the user's is rejected.
- Counts and sums are figures that stand nowhere in a turn. So a text counts as inventing only when three or more of its
  numbers, and more than half of them, are in the turn neither in any spelling nor rounded. For each number that the
  turn has in words, one more may be unknown.
- A refusal counts only at the start of a text, since a turn may be about failures, and only where the turn itself does
  not contain those words.
"""

import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from nexus.services.text.digest import has_figure
from nexus.services.text.language import LATIN, differ, language_of, letters_of, likely_languages_of, name_of
from nexus.services.text.sentences import weight

_MOST_UNKNOWN: Final = 2
# Beginnings by language: apologies in the first person, and reports that summarising failed.
REFUSALS: Final[Mapping[str, str]] = {
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
_REFUSAL: Final = re.compile("|".join(REFUSALS.values()), re.IGNORECASE)
_MARKS: Final = re.compile(r"[\W_]*")
# Never part of a summary, wherever it stands (contract §6).
_FAILED: Final = "summary generation failed"

_NUMBER: Final = re.compile(r"\d(?:[\d.,'’\u00a0\u202f]*\d)?")
# What stands between numbers as well as within one.
_BETWEEN: Final = re.compile(r"[,'’\u00a0\u202f]")
# The fewest digits that tell a number from a count, and the most to which a number is rounded.
_LEAST_DIGITS: Final = 2
_MOST_ROUNDED: Final = 7
_ROUNDED_UP: Final = "5"
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


@dataclass(frozen=True, slots=True)
class Evidence:
    """What a summary is checked against.

    Attributes:
        language: of the user's messages, or their script; None where neither is clear.
        figures: all numbers of the turn, as `spellings` returns them.
        number_words: how many of its numbers are in words.
        turn_text: the text of the turn, as `folded` returns it.
        least: the least weight of a detailed summary.
        has_figures: the answer or a result has numbers.
        has_calls: tools were called.
    """

    language: str | None
    figures: frozenset[str]
    number_words: int = 0
    turn_text: str = field(default="", repr=False)
    least: int = 0
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
            unknown = sum(spelling(figure) not in self.figures for figure in named)
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
    """The evidence in this text, which is everything that was said and done; other arguments as in `Evidence`."""
    return Evidence(
        language,
        spellings(everything),
        number_words(everything),
        folded(everything),
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


def refusal_in(text: str, turn_text: str) -> str | None:
    """The fault of a text that is a refusal or says that there is no summary; None for no fault.

    `turn_text` is the text of the turn, as `folded` returns it.
    """
    begin = _MARKS.match(text)
    refusal = _REFUSAL.match(text, begin.end() if begin else 0)
    return "it is a refusal" if refusal and folded(refusal[0]) not in turn_text else failure_in(text, turn_text)


def failure_in(text: str, turn_text: str) -> str | None:
    """The fault of a text that says anywhere that summarising failed; None for no fault."""
    return "it says that it failed" if _FAILED in folded(text) and _FAILED not in turn_text else None


def folded(text: str) -> str:
    """The text for comparisons: small letters and capitals are the same, and so are apostrophes."""
    return text.casefold().replace("’", "'")


def numbers_in(text: str) -> frozenset[str]:
    """The numbers of two digits or more, however they are grouped and pointed: 0.86 is 0,86 and 86, 45,678 is 45678."""
    return frozenset(
        digits
        for number in set(_NUMBER.findall(unicodedata.normalize("NFKC", text)))
        if len(digits := _digits(number)) >= _LEAST_DIGITS
    )


def spellings(text: str) -> frozenset[str]:
    """What `spelling` may be of a number that stands for one in the text: as it is, rounded, or cut off."""
    whole = set(_NUMBER.findall(unicodedata.normalize("NFKC", text)))
    numbers = {_digits(number) for one in whole for number in (one, *_BETWEEN.split(one))} - {""}
    return frozenset(spelling(rounded) for number in numbers for rounded in _rounded(number))


def spelling(number: str) -> str:
    """The same for all powers of ten: 12 for 1.2 million, 1200 and 12%."""
    return number.rstrip("0").ljust(_LEAST_DIGITS, "0")


def number_words(text: str) -> int:
    """How many numbers the beginning of a text has in words; their values are not read."""
    return sum(1 for _ in _WORDS.finditer(text[:_LOOKED_AT]))


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

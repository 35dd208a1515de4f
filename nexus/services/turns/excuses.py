"""What models say in place of a summary: that they will not, or could not. Pure.

Only what a text begins with counts, since a turn may be about failures; and only what nobody said in the turn itself.
"""

import re
from collections.abc import Mapping
from typing import Final

# Apologies of somebody who speaks of themselves, and failures of a summary.
BEGINNINGS: Final[Mapping[str, str]] = {
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
_EXCUSE: Final = re.compile("|".join(BEGINNINGS.values()), re.IGNORECASE)
_MARKS: Final = re.compile(r"[\W_]*")
# What is nowhere in a summary: every part of it may be shown.
_FAILED: Final = "summary generation failed"


def excuse_of(text: str, said: str) -> str | None:
    """What is wrong with a text that is an excuse, or says that there is no summary; None for nothing.

    `said` is what the turn says, as `folded` has it.
    """
    begin = _MARKS.match(text)
    excuse = _EXCUSE.match(text, begin.end() if begin else 0)
    return "it is a refusal" if excuse and folded(excuse[0]) not in said else failure_of(text, said)


def failure_of(text: str, said: str) -> str | None:
    """What is wrong with a text that says anywhere that summarising failed; None for nothing."""
    return "it says that it failed" if _FAILED in folded(text) and _FAILED not in said else None


def folded(text: str) -> str:
    """The text for comparisons: small letters and capitals are the same, and so are apostrophes."""
    return text.casefold().replace("’", "'")

"""Sentences that announce a decision or a next step, by cue words in English, Chinese, German, French, Spanish. Pure.

A plan is no decision by itself: it is one where a choice, an order or a reason comes with it.
"""

import re
from collections.abc import Iterable
from typing import Final

from nexus.services.text.digest import excerpt
from nexus.services.text.sentences import both_ends, sentences

# Of texts in lower case: to ignore the case takes several times as long.
_BECAUSE: Final = (
    r"\b(?:because|so that|in order to|since(?! \d)|weil|damit|parce que|puisque|afin d|porque|ya que|para que)"
    r"|因为|由于|以便|为了"
)
_PLAN: Final = (
    r"(?:(?:i|we)(?:['’]ll| will)|let(?:['’]s| me(?! know))|(?:am|are|['’]m|['’]re) going to|ich werde|je vais|voy a)"
)
DECISION: Final = re.compile(
    r"\b(?:decid(?:e|es|ed|ing|í|ido|imos)|decision|cho(?:ose|oses|osing|se|sen)|opt(?:ed|ing) for|settled on"
    r"|instead of|rather than"
    r"|entsch(?:eide|ied|ieden)|entscheidung|(?:aus)?gewählt|anstatt|statt dessen|stattdessen"
    r"|décid(?:é|ée|e|ons)|décision|choisi|choisis|plutôt que|au lieu d[eu]"
    r"|decisión|eleg(?:í|ido|imos)|opt(?:é|ado|amos) por|en (?:lugar|vez) de"
    rf"|{_PLAN} (?:use|drop|skip|exclude|leave out|go with|start with)"
    # Not without bounds: a text may be nothing but such beginnings.
    rf"|{_PLAN}\b(?=[^.!?\n]{{0,99}}(?:\b(?:first|before|zuerst|d['’]abord|primero)\b|{_BECAUSE})))\b"
    r"|决定|选择|选用|采用|改用|打算|我们?[将会]?先",
)
NEXT_STEP: Final = re.compile(
    r"\b(?:next steps?|next(?=[,:])|as a next|remains? to|still (?:to|needs?|has to|have to)|follow[- ]up|to[- ]do"
    r"|(?:should|needs? to|must) (?:now|next|then|also|be)|recommend(?:ed)?"
    r"|als nächstes|nächster? schritte?|noch zu|empfehle"
    r"|prochaines? étapes?|étapes? suivantes?|reste à|recommand(?:e|é|ons)"
    r"|próximos? pasos?|siguientes? pasos?|falta por|queda por|recomiend[ao])\b"
    r"|下一步|接下来|后续|待办|仍需|还需|有待|建议",
)
_REASON = re.compile(_BECAUSE)
_QUESTION = re.compile(r"[?？]\W*\Z")


def sentences_with_cue(texts: Iterable[str], cue: re.Pattern[str], *, most: int, room: int) -> list[str]:
    """Up to `most` different sentences with the cue, each of at most this weight, without questions.

    Where there are more, those with a reason are taken, then the first ones; all in their order.
    """
    found: dict[str, None] = {}
    for text in map(both_ends, texts):
        # Most texts have no cue anywhere, and need not be taken apart.
        for sentence in sentences(text) if cue.search(text.lower()) else ():
            if cue.search(sentence.lower()) and not _QUESTION.search(sentence[-8:]):
                found[sentence] = None
    taken = set(sorted(found, key=lambda sentence: not _REASON.search(sentence.lower()))[:most])
    return list(dict.fromkeys(excerpt(sentence, room) for sentence in found if sentence in taken))

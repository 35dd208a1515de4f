"""Sentences that announce a decision or what is to come, by a few words in English and Chinese. Pure."""

import re
from collections.abc import Iterable
from typing import Final

from nexus.services.turns.digest import excerpt
from nexus.services.turns.sentences import sentences

DECISION: Final = re.compile(
    r"\b(?:decid(?:e|es|ed|ing)|decision|cho(?:ose|oses|osing|se|sen)|opt(?:ed|ing) for|settled on|instead of"
    r"|rather than|(?:I|we)(?:['’]ll| will)|let(?:['’]s| me(?! know))|(?:am|are|['’]m|['’]re) going to)\b"
    r"|决定|选择|选用|采用|改用|打算|我们?[将会先]",
    re.IGNORECASE,
)
NEXT_STEP: Final = re.compile(
    r"\b(?:next steps?|next(?=[,:])|as a next|remains? to|still (?:to|needs?|has to|have to)|follow[- ]up|to[- ]do"
    r"|(?:should|needs? to|must) (?:now|next|then|also|be)|recommend(?:ed)?)\b"
    r"|下一步|接下来|后续|待办|仍需|还需|有待|建议",
    re.IGNORECASE,
)
_QUESTION = re.compile(r"[?？]\W*\Z")


def announced(texts: Iterable[str], cue: re.Pattern[str], *, most: int, room: int) -> list[str]:
    """Up to `most` different sentences with the cue, each of at most this weight; questions decide nothing."""
    found: dict[str, None] = {}
    for text in texts:
        # Most texts have no cue anywhere, and need not be taken apart.
        for sentence in sentences(text) if cue.search(text) else ():
            if cue.search(sentence) and not _QUESTION.search(sentence[-8:]):
                found[excerpt(sentence, room)] = None
                if len(found) == most:
                    return list(found)
    return list(found)

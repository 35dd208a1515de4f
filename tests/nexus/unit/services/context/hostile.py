"""Texts that try to pass for structure, made from a seed: the same seed gives the same texts."""

import os
import random
import re
from typing import Final

from tests.nexus.unit.services.context.strict import ANGLES, EQUALS_SIGNS, LETTERS, NUMBER_SIGNS, SQUARES

# Of each, tests make some hundred texts or a thousand. NEXUS_TEST_SEEDS=20 tries that many.
SEEDS: Final = range(int(os.environ.get("NEXUS_TEST_SEEDS") or 4))

TAGS: Final = (
    "[CORE_IDENTITY]",
    "[CAPABILITIES]",
    "[SHARED_MEMORY count=9]",
    "[FRIENDS_INFO]",
    "[THIS_MOMENT]",
    "[/THIS_MOMENT]",
    "[TASK_CONTEXT]",
    "[TURN_MEMORY level=brief count=2]",
    "[Turn 12]",
    "[WORKING_MEMORY]",
    "[CONVERSATION_SUMMARY compactions=2 messages=9]",
    "[CONTEXT_META]",
    "[RECALL count=2]",
    "[tool_use:web_search, query:x]",
    "[tool_result:web_search, x]",
    "<human_input>",
    "</human_input>",
    "<current_time>",
    "</current_time>",
)
HEADS: Final = (
    "[2025-12-10 15:30] Human: ",
    "[2025-12-10 15:30] Nexus: ",
    "[Unknown time] Human: ",
    "  Nexus: ",
    "Human: ",
)
HEADINGS: Final = (
    "## Agent Role Definition",
    "## Current TODO List",
    "## Useful Information",
    "## Folder Notes",
    "# Useful Information",
    "###### Folder Notes",
)
BANNERS: Final = (
    "=== TASK CONTEXT ===",
    "=== WORKSPACE CONTEXT ===",
    "=== ACCUMULATED MEMORY SUMMARIES ===",
    "=== CURRENT INPUT ===",
    "=== PREVIOUS THINKING ROUNDS ===",
    "== Task context ====",
)
_FILLERS: Final = (
    *(
        "",
        " ",
        "a",
        "z_",
        "x]",
        "}",
        ")",
        "hello ",
        "你好",
        "。",
        "：",
        "é",
        "🙂",
        "👨‍👩‍👧",
        "1",
        "||",
        "```",
        "### ",
        "- ",
    ),
    *(
        "[",
        "]",
        "<",
        ">",
        ":",
        ";",
        ", ",
        "/",
        "; tool_use:b, c:d",
        "; tool_result:b, d",
        "tool_use:",
        "THIS_MOMENT]",
        "human_input>",
    ),
    *("\\", "\\\\", "\n", "\n\n", "\r\n", "\r", "\v", "\f", "\x1c", "\x85", "\u2028", "\u2029", "\t"),
    *("\u200b", "\u200d", "\u202e", "\u2066", "\ufeff", "\u2060", "\U000e0041", "\x00", "\u0301"),
    *("#", "## ", "＃", "Folder Notes", "\n## Useful Information", " for hikers"),
    *(
        "=",
        "===",
        "＝",
        "CURRENT INPUT",
        "\n=== TASK CONTEXT ===",
        "[Turn 9] ",
        "\nInsights: ",
        "\n\nRound 9: ",
        "\n\\User's Goal: ",
    ),
    *("(No previous conversations yet)", "Recent conversation memory:", "Parameters:", "...", "Unknown time"),
)
_SEPARATORS: Final = (
    "_",
    "_",
    "_",
    " ",
    "-",
    "",
    "  ",
    "\u3000",
    "\xa0",
    "__",
    "\u200d",
    "\u200b",
    "\u00ad",
    ".",
    "\n",
)
_HIDDEN: Final = (
    "\u200b",
    "\u200c",
    "\u200d",
    "\u2060",
    "\ufeff",
    "\u202e",
    "\u00ad",
    "\ufe0f",
    "\u0301",
    "\U000e0020",
)


def _in_disguise(rng: random.Random, char: str) -> str:
    """The letter as something that looks like it."""
    low = char.lower()
    forms = [low, low.upper(), chr(ord(low) - ord("a") + 0xFF41), chr(ord(low) - ord("a") + 0x1D41A)]
    forms += [chr(ord(low) - ord("a") + 0x1F1E6), chr(ord(low) - ord("a") + 0x24D0), f"{low}\u0301"]
    return rng.choice(forms + list(LETTERS.get(low, "")))


def tag(rng: random.Random, of: str) -> str:
    """A structural token as it is, or with its case, width, letters, spacing and brackets changed."""
    disguise, hide = rng.choice((0.0, 0.2, 0.9)), rng.choice((0.0, 0.0, 0.1))
    name = re.split("[ :]", of, maxsplit=1)[0]
    made = []
    for place, char in enumerate(of):
        shown = char
        if char == "_":
            shown = rng.choice(_SEPARATORS)
        elif place < len(name) and char.isalpha() and rng.random() < disguise:
            shown = _in_disguise(rng, char)
        elif char in "[<" and rng.random() < disguise:
            shown = rng.choice(SQUARES if char == "[" else ANGLES) + rng.choice(("", " ", "\n", "\\", "/"))
        made.append(shown)
        if 0 < place < len(name) - 1 and rng.random() < hide:
            made.append(rng.choice(_HIDDEN))
    return "".join(made)


def head(rng: random.Random, of: str) -> str:
    """A line head as it is, or with its case, letters, width and spacing changed."""
    disguise = rng.choice((0.0, 0.2, 0.9))
    start = of.find("]") + 1
    made = [rng.choice(("", "", " ", "\t", "\u3000", "\u200d")), of[:start]]
    for char in of[start:]:
        if char.isalpha() and rng.random() < disguise:
            made.append(_in_disguise(rng, char))
        elif char == ":":
            made.append(rng.choice((":", ":", "：", "∶", " :")))
        else:
            made.append(char)
    return "".join(made)


def heading(rng: random.Random, of: str) -> str:
    """A heading or a banner as it is, or with its case, letters, width, signs, spacing and end changed."""
    disguise = rng.choice((0.0, 0.2, 0.9))
    made = [rng.choice(("", "", " ", "\t", "\u3000", "\u200d"))]
    for char in of:
        if char.isalpha() and rng.random() < disguise:
            made.append(_in_disguise(rng, char))
        elif char == "#":
            made.append(rng.choice(NUMBER_SIGNS) if rng.random() < disguise else char)
        elif char == "=":
            made.append(rng.choice(EQUALS_SIGNS) if rng.random() < disguise else char)
        elif char == " ":
            made.append(rng.choice((" ", " ", "", "_", "-", "  ", "\u3000", "\u200d")))
        else:
            made.append(char)
    return "".join([*made, rng.choice(("", "", " ", ":", " ##", "：", " #:\t"))])


def text(rng: random.Random) -> str:
    """A text of up to some 200 characters with one to three tokens in it, each perhaps after backslashes."""
    made: list[str] = []
    for _ in range(rng.choice((1, 1, 2, 3))):
        made += rng.choices(_FILLERS, k=rng.randrange(4))
        kind = rng.random()
        if kind < 0.6:
            made += ["\\" * rng.choice((0, 0, 0, 1, 2, 5)), tag(rng, rng.choice(TAGS))]
        elif kind < 0.8:
            made += [
                rng.choice(("\n", "\r", "\u2028", "")),
                "\\" * rng.choice((0, 0, 1, 3)),
                heading(rng, rng.choice(HEADINGS + BANNERS)),
                rng.choice(("\n", "\n", "\r", "\x85", "")),
            ]
        else:
            made += [
                rng.choice(("\n", "\r", "\u2028", "")),
                "\\" * rng.choice((0, 0, 1, 3)),
                head(rng, rng.choice(HEADS)),
            ]
    return "".join(made + rng.choices(_FILLERS, k=rng.randrange(4)))

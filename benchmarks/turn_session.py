"""A session in which literature is searched, filtered and read, for the benchmark of what turns cost."""

import json
import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, Final

Row = dict[str, Any]

_DRUGS: Final = ("SGLT2 inhibitors", "GLP-1 agonists", "statins", "beta blockers", "ACE inhibitors", "metformin")
_OUTCOMES: Final = ("cardiovascular death", "heart failure", "stroke", "kidney failure", "all-cause mortality")
_PEOPLE: Final = ("type 2 diabetes", "chronic kidney disease", "atrial fibrillation", "obesity", "hypertension")
_JOURNALS: Final = ("Lancet", "BMJ", "N Engl J Med", "JAMA", "Circulation", "Diabetes Care")
_KINDS: Final = ("systematic review", "meta-analysis", "randomised trial", "cohort study")


def literature(turns: int) -> Iterator[list[Row]]:
    """The rows of so many runs, the same each time.

    Each run asks something, calls tools in one to four rounds, and answers in two to six sentences. Results are lists
    of articles, pages of 1 to 9 KB, and extracted figures.
    """
    chance = random.Random(1)  # noqa: S311  # nothing of it is secret
    for number in range(turns):
        yield _Run(number, chance).rows


class _Run:
    """One run.

    Attributes:
        rows: as they are recorded.
    """

    def __init__(self, number: int, chance: random.Random) -> None:
        self._number, self._chance = number, chance
        self._drug, self._outcome, self._people = map(chance.choice, (_DRUGS, _OUTCOMES, _PEOPLE))
        self.rows: list[Row] = []
        self._say("HUMAN", self._question(), source="new_run")
        for _ in range(chance.randint(1, 4)):
            self._use_tools()
        self._say("AI", self._answer(), tool_calls=None, has_tool_calls=False)

    def _say(self, role: str, content: Any, **metadata: Any) -> None:
        place = len(self.rows)
        self.rows.append(
            {
                "id": f"m{self._number}_{place}",
                "run_id": f"run_{self._number}",
                "role": role,
                "content": content,
                "timestamp": datetime(2026, 1, 5, 9, tzinfo=UTC) + timedelta(minutes=self._number, seconds=place),
                "metadata": metadata,
            }
        )

    def _use_tools(self) -> None:
        made = [
            self._chance.choice((self._search, self._fetch, self._extract))() for _ in range(self._chance.randint(1, 2))
        ]
        calls = [
            {"id": f"c{len(self.rows)}_{place}", "function": {"name": name, "arguments": json.dumps(arguments)}}
            for place, (name, arguments, _) in enumerate(made)
        ]
        self._say("AI", self._chance.choice(("", "I will look that up.")), tool_calls=calls, has_tool_calls=True)
        for call, (name, _, result) in zip(calls, made, strict=True):
            failed = self._chance.random() < 0.05  # noqa: PLR2004  # one in twenty
            status = "error" if failed else "success"
            content = "time-out after 30 s" if failed else result
            known = {"tool_name": name, "status": status, "execution_success": not failed, "call_id": call["id"]}
            self._say("TOOL", content, **known)

    def _search(self) -> tuple[str, Row, Any]:
        query = f"{self._drug} AND {self._outcome} AND {self._people}"
        articles = [self._article() for _ in range(self._chance.randint(3, 10))]
        return (
            "pubmed_search",
            {"query": query, "limit": 10},
            {"total": self._chance.randint(12, 900), "articles": articles},
        )

    def _fetch(self) -> tuple[str, Row, Any]:
        return (
            "fetch_full_text",
            {"pmid": self._pmid()},
            " ".join(self._finding() for _ in range(self._chance.randint(20, 120))),
        )

    def _extract(self) -> tuple[str, Row, Any]:
        low, ratio, high = sorted(self._ratio() for _ in range(3))
        figures = {"patients": self._chance.randint(200, 60_000), "hr": ratio, "ci95": [low, high]}
        arguments = {"pmids": [self._pmid() for _ in range(3)], "outcome": self._outcome}
        return "extract_data", arguments, json.dumps(figures)

    def _article(self) -> Row:
        title = f"{self._chance.choice(_DRUGS)} and {self._chance.choice(_OUTCOMES)} in {self._chance.choice(_PEOPLE)}"
        year, kind = self._chance.randint(2005, 2025), self._chance.choice(_KINDS)
        return {
            "pmid": self._pmid(),
            "title": title,
            "journal": self._chance.choice(_JOURNALS),
            "year": year,
            "type": kind,
        }

    def _question(self) -> str:
        drug, outcome = self._drug, self._outcome
        wishes = (
            f"What is known of the effect of {drug} on {outcome} in people with {self._people}?",
            f"Find reviews on {drug} and {outcome}, only those since {self._chance.randint(2010, 2022)}.",
            f"Extract the hazard ratios for {outcome} from what we have.",
        )
        more = ("", " Leave out what is not in English.", " Say which are of low quality.")
        return self._chance.choice(wishes) + self._chance.choice(more)

    def _answer(self) -> str:
        ending = self._chance.choice(("The next step is to judge their quality.", "Shall I go on with the full texts?"))
        said = [self._finding() for _ in range(self._chance.randint(1, 5))]
        return " ".join([f"I found {self._chance.randint(12, 900)} articles on {self._drug}.", *said, ending])

    def _finding(self) -> str:
        low, ratio, high = sorted(self._ratio() for _ in range(3))
        findings = (
            f"{self._drug} lower the risk of {self._outcome} (HR {ratio}, 95% CI {low}-{high}).",
            f"Of these, {self._chance.randint(3, 40)} are a {self._chance.choice(_KINDS)} from the last ten years.",
            f"The effect was the same in people with and without {self._people}.",
            f"Data of {self._chance.randint(1, 60)},{self._chance.randint(100, 999)} patients were pooled.",
            "Most of the others were excluded because they had no control group.",
        )
        return self._chance.choice(findings)

    def _ratio(self) -> float:
        return round(self._chance.uniform(0.6, 1.2), 2)

    def _pmid(self) -> str:
        return str(self._chance.randint(10_000_000, 39_999_999))

"""Reading a model's reply: what is taken, what is rejected, how long its texts may be."""

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nexus.core.errors import ModelUnavailableError
from nexus.core.metrics import CallOutcome, Metrics, NoMetrics, Purpose
from nexus.services.text.model_reply import (
    SCHEMA,
    SCHEMA_NAME,
    CallLimit,
    Reply,
    SummaryModel,
    TooManyCallsError,
    UnusableReplyError,
    brief_within,
    cost,
    read_reply,
    within,
)
from nexus.services.text.summary_checks import Evidence
from nexus.services.turns.model_summary import evidence_of
from tests.nexus.support.fake_model import FakeModel
from tests.nexus.support.metrics import RecordingMetrics
from tests.nexus.support.sample_turns import CHINESE, ENGLISH, summary_of
from tests.nexus.support.tokens import tokens

EVIDENCE = evidence_of(ENGLISH)
ANY = Evidence(None, frozenset())
CANARY = "kanarienvogel"


def said(**fields: Any) -> str:
    """A good answer, with these fields in the place of its own."""
    return json.dumps(summary_of(ENGLISH, **fields), ensure_ascii=False)


def read(text: str) -> Reply:
    """What is in an answer about the English turn."""
    return read_reply(text, EVIDENCE)


def fault(text: str, evidence: Evidence = EVIDENCE) -> str:
    """What is wrong with an answer."""
    with pytest.raises(UnusableReplyError) as refused:
        read_reply(text, evidence)
    return str(refused.value)


def structured(**fields: Any) -> dict[str, Any]:
    """The structured part of a good answer, with these fields in the place of its own."""
    return {**summary_of(ENGLISH)["structured"], **fields}


FOREIGN = summary_of(CHINESE)["detailed"]
INVENTED = "It found 9,431 articles, 872 reviews and 5,519 patients, with an HR of 0.77."
SILENT = {
    "brief": "It found some articles.",
    "detailed": "The user asked about the inhibitors and the heart, and a search found articles about it. " * 2,
    "structured": structured(actions=["It searched."], results=["Articles"]),
    "insights": [],
}


class TestWhatIsTaken:
    """A summary, and what models put around it."""

    def test_a_good_answer(self) -> None:
        """All three depths, marked as the model's, and the insights."""
        reply = read(said())
        assert reply.summaries.source == "model"
        assert reply.summaries.brief == "It found 156 articles."
        assert reply.summaries.detailed.startswith("The user asked about")
        assert reply.summaries.structured.results == ("156", "15", "HR 0.86 (95% CI 0.80-0.93)")
        assert reply.insights == ("HR 0.86",)
        assert set(reply.to_json()) == {"brief", "detailed", "structured", "insights"}

    @pytest.mark.parametrize(
        ("before", "after"),
        [
            ("\ufeff \n", "\n"),
            ("```json\n", "\n```"),
            ("```\n", "\n```\nI hope this helps!"),
            ("Here is the summary you asked for {as JSON}:\n\n", "\n\nLet me know."),
            ("<think>\nThe user {wants} a summary.\n</think>\n\n", ""),
            ("The user wants a summary, so\n</think>\n", ""),
            ('<thinking>First {"brief": "no"} comes to mind.</thinking>', "</s>"),
            ('{"summary": ', "}"),
            ('[{"note": "a list"}, ', "]"),
        ],
    )
    def test_what_is_around_it(self, before: str, after: str) -> None:
        """Fences, thoughts, words, and another object."""
        assert read(f"{before}{said()}{after}") == read(said())

    def test_lists_as_models_write_them(self) -> None:
        """A text for one item, null or nothing for none, numbers, empty items, another name, fields of its own."""
        given = structured(actions="one", results=[156, " ", "", None, "x"], decisions=None, mood="good")
        given["nextSteps"] = given.pop("next_steps") or ["go on"]
        answer = summary_of(ENGLISH, structured=given, mood="good")
        del answer["insights"]
        found = read(json.dumps(answer))
        assert found.summaries.structured.model_dump(exclude={"overview"}) == {
            "actions": ("one",),
            "results": ("156", "x"),
            "decisions": (),
            "next_steps": ("go on",),
        }
        assert found.insights == ()

    def test_what_is_too_long(self) -> None:
        """It is cut where a sentence or a word ends, and lists are cut at their ends."""
        reply = read(
            said(
                brief="It found 156 articles. " * 9,
                detailed="It found 156 articles. " * 999,
                structured=structured(overview="It goes on. " * 99, results=["entry " * 99] * 99),
                insights=["insight " * 99] * 9,
            )
        )
        summaries, results = reply.summaries, reply.summaries.structured.results
        assert summaries.brief == ("It found 156 articles. " * 9).strip()
        assert summaries.detailed == ("It found 156 articles. " * 108).strip()
        assert summaries.structured.overview == ("It goes on. " * 66).strip()
        assert results == (results[0],) * 12
        assert (len(results[0]), results[0][-8:]) == (397, " entry …")
        assert reply.insights == ("insight " * 24 + "…",) * 5


class TestNonsense:
    """What is no summary; the text says why, and quotes nothing."""

    @pytest.mark.parametrize(
        ("text", "said_of_it"),
        [
            (" \n\t", "it is empty"),
            (f"The turn went well, {CANARY}.", "it holds no JSON object"),
            ("null", "it holds no JSON object"),
            ('["a", "b"]', "it holds no JSON object"),
            (f'{{"brief": "{CANARY}', "its JSON is broken"),
            ('{"brief": "a",, "detailed": "b"}', "its JSON is broken"),
            ("{" * 200_000, "its JSON is broken"),
            ('{"a":' * 100_000, "its JSON is broken"),
            ('{"a":' * 100_000 + "1" + "}" * 100_000, "its JSON is broken"),
            ("<think>I should answer, but first", "it ends before the answer begins"),
            ("{}", "brief: Field required"),
            (f'{{"{CANARY}": 1}}', "brief: Field required"),
            ('{"error": {"message": "brief"}}', "brief: Field required"),
        ],
    )
    def test_what_is_no_object(self, text: str, said_of_it: str) -> None:
        """Empty, prose, broken, only thoughts, or something else."""
        assert fault(text) == said_of_it

    @pytest.mark.parametrize(
        ("fields", "said_of_it"),
        [
            ({"brief": ""}, "brief: String should have at least 1 character"),
            ({"brief": " \u2003\n"}, "brief: String should have at least 1 character"),
            ({"detailed": None}, "detailed: Input should be a valid string"),
            ({"detailed": [CANARY]}, "detailed: Input should be a valid string"),
            ({"detailed": "x" * 25_001}, "detailed: String should have at most 25000 characters"),
            ({"structured": CANARY}, "structured: Input should be a valid dictionary"),
            ({"structured": {}}, "structured.overview: Field required"),
            ({"structured": structured(actions={"a": CANARY})}, "structured.actions: Input should be a valid list"),
            ({"structured": structured(results=["x"] * 121)}, "structured.results: List should have at most 120 items"),
            ({"structured": structured(results=["x", {}])}, "structured.results.1: Input should be a valid string"),
            ({"structured": structured(overview="...")}, "it repeats the form instead of filling it in"),
            ({"brief": "string"}, "it repeats the form instead of filling it in"),
            ({"brief": "<two or three sentences>"}, "it repeats the form instead of filling it in"),
            ({"brief": "[brief summary here]"}, "it repeats the form instead of filling it in"),
            ({"detailed": "5-8 sentences that keep names"}, "it repeats the form instead of filling it in"),
            ({"detailed": "N/A"}, "it repeats the form instead of filling it in"),
            ({"brief": "😀 …"}, "it repeats the form instead of filling it in"),
            ({"detailed": "Note: SUMMARY GENERATION FAILED (time-out)."}, "it says that it failed"),
            ({"insights": ["The summary generation failed."]}, "it says that it failed"),
            ({"brief": "I'm sorry, but I can't help with that."}, "it is a refusal"),
            ({"structured": structured(overview="Failed to generate summary.")}, "it is a refusal"),
            ({"detailed": "Literature was found."}, "it leaves out nearly everything"),
            ({"brief": "ok", "detailed": "ok", "structured": structured(overview="ok")}, "it leaves out nearly"),
            ({"structured": structured(actions=[], results=[])}, "it tells neither actions nor results"),
            ({"detailed": FOREIGN}, "it is in Chinese, and the user writes in English"),
            ({"structured": structured(actions=[], results=[FOREIGN])}, "it is in Chinese, and the user"),
            ({"brief": INVENTED}, "4 of 4 numbers are not in the turn"),
            ({"structured": structured(results=[INVENTED]), "insights": []}, "4 of 5 numbers are not in the turn"),
            (SILENT, "it names no number, and the turn holds some"),
        ],
    )
    def test_fields_that_are_none(self, fields: dict[str, Any], said_of_it: str) -> None:
        """Missing, empty, too long, of another kind, placeholders, refusals, inventions, in another language."""
        found = fault(said(**fields))
        assert found.startswith(said_of_it)
        assert CANARY not in found


def test_the_schema_is_what_is_read() -> None:
    """Its fields and those that are read are the same, and it is of the kind that strict endpoints take."""

    def check(schema: dict[str, Any]) -> None:
        if schema["type"] == "object":
            assert set(schema) == {"type", "properties", "required", "additionalProperties"}
            assert schema["required"] == [*schema["properties"]]
            assert schema["additionalProperties"] is False
            for inner in schema["properties"].values():
                check(inner)
        else:
            assert schema in ({"type": "string"}, {"type": "array", "items": {"type": "string"}})

    check(SCHEMA)
    assert SCHEMA["required"] == [*summary_of(ENGLISH)]
    assert SCHEMA["properties"]["structured"]["required"] == [*structured()]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["brief", "detailed", "structured", "overview", "actions", "insights", "x"]),
            inner,
            max_size=6,
        )
    ),
    max_leaves=20,
)


@given(JSON, st.text(max_size=10))
def test_any_answer(value: Any, around: str) -> None:
    """It is a summary with something in it, or nonsense; never anything else."""
    with suppress(UnusableReplyError):
        reply = read_reply(f"{around}{json.dumps(value)}{around}", ANY)
        assert reply.summaries.brief.strip()
        assert reply.summaries.detailed.strip()


DETAILED = (
    "The user asked what the reviews say. extract_data was called for 5 full texts with the outcome MACE. They report "
    "on 45,678 patients, and the risk of major events is 14% lower (HR 0.86, 95% CI 0.80-0.93). The next step is to "
    "judge the quality of each review, since two of them have no registered protocol."
)


@pytest.mark.parametrize(
    ("text", "most", "kept"),
    [
        ("", 10, ""),
        ("short", 5, "short"),
        ("It is so. It goes on.", 12, "It is so."),
        ("It goes on, and on, and on", 14, "It goes on …"),
        ("x" * 60, 12, "x" * 10 + " …"),
        ("共找到 156 篇文献。其中 15 篇是系统综述。", 14, "共找到 156 篇文献。"),
        ("共找到一百五十六篇相关文献和综述", 10, "共找到一百五十六 …"),
    ],
)
def test_within(text: str, most: int, kept: str) -> None:
    """Whole, or cut where a sentence ends, or a word."""
    assert within(text, most) == kept


@pytest.mark.parametrize(
    ("sentence", "others"),
    [
        ("The risk is lower by 14% (HR 0.86, 95% CI 0.80-0.93).", " It is so in men and in women."),
        ("风险降低了14%，置信区间为0.80到0.93。", "下载了五篇全文。"),
        ("リスクは14%低下した。", "全文を5件取得した。"),
        ("12345678, 23456789, 34567890, 45678901, 56789012", "\nMore followed."),
    ],
)
def test_brief_in_sentences(sentence: str, others: str) -> None:
    """Those that cost at most a third of the detailed one."""
    kept = brief_within(sentence + others * 9, DETAILED * 2)
    assert kept.startswith(sentence)
    assert kept.removeprefix(sentence) in {others * count for count in range(9)}
    assert cost(kept) * 3 <= cost(DETAILED * 2)


def test_brief_in_tokens() -> None:
    """A third of the tokens, that is; `[Turn n]` is on both sides."""
    kept = brief_within(DETAILED * 2, DETAILED * 2)
    assert 0 < tokens(f"[Turn 12] {kept}") * 3 <= tokens(f"[Turn 12] {DETAILED * 2}")


def test_brief_beside_little() -> None:
    """One sentence is kept whole where the detailed summary is as short as itself."""
    brief = "The user said hello, and the assistant said hello as well. Nothing else was said."
    assert brief_within(brief, "They greeted each other.") == brief
    assert brief_within("It went on and on, " * 20, "They greeted each other.") == ""


@pytest.mark.parametrize("sentence", ["and on it goes, " * 90, "x" * 1_400, "a🎉" * 900])
@pytest.mark.parametrize("name", ["brief", "detailed", "overview"])
def test_one_endless_sentence(name: str, sentence: str) -> None:
    """It is never cut, but the reply is rejected, with the reason."""
    fields = {"detailed": "It found 156 articles. " * 9}
    endless = sentence * (3 if name == "detailed" else 1)
    given = {"structured": structured(overview=endless)} if name == "overview" else {name: endless}
    assert fault(said(**{**fields, **given})) == f"the first sentence of its {name} is too long"


def test_one_endless_sentence_in_chinese() -> None:
    """Likewise where no space is anywhere."""
    answer = summary_of(CHINESE, brief="搜索了数据库并且下载了全文，" * 40)
    text = json.dumps(answer, ensure_ascii=False)
    assert fault(text, evidence_of(CHINESE)) == "the first sentence of its brief is too long"


@given(st.text(), st.text())
def test_any_brief(brief: str, detailed: str) -> None:
    """It is the whole text or its beginning, and costs no more than it may."""
    kept = brief_within(brief, detailed)
    assert brief.startswith(kept)
    assert cost(kept) <= max(cost(detailed) // 3, 300)


@given(st.text(), st.integers(2, 50))
def test_within_any_bound(text: str, most: int) -> None:
    """It is never longer than it may be."""
    assert len(within(text, most)) <= most


def asking(model: FakeModel, metrics: Metrics | None = None, most_kept: int = 1) -> SummaryModel[Reply]:
    """Asks this model for summaries of turns."""
    return SummaryModel[Reply](model, SCHEMA, SCHEMA_NAME, most_kept, Purpose.TURN, metrics or NoMetrics())


@pytest.mark.parametrize("unusable", ["it is empty", ""])
async def test_there_are_two_attempts(unusable: str) -> None:
    """Whatever the text of the fault is; it is in the second task."""

    def rejected(_text: str) -> Reply:
        raise UnusableReplyError(unusable)

    model = FakeModel(lambda *_: "")
    with pytest.raises(UnusableReplyError):
        await asking(model).ask("Task. {}".format, "{}", rejected, CallLimit(2))
    assert model.asked == [("Task. ", "{}"), (f"Task. {unusable}", "{}")]


async def test_calls_are_bounded_and_counted() -> None:
    """No call is made beyond the limit, over all attempts; one that fails takes nothing of it. Each is counted."""
    model, metrics, calls = FakeModel(lambda *_: "nonsense"), RecordingMetrics(), CallLimit(3)
    asked = asking(model, metrics)

    async def ask() -> Reply:
        return await asked.ask("Task. {}".format, "{}", read, calls)

    model.down = True
    with pytest.raises(ModelUnavailableError):
        await ask()
    assert calls.taken == 0
    model.down = False
    for taken in (2, 3):
        with pytest.raises(UnusableReplyError):
            await ask()
        assert calls.taken == taken
    with pytest.raises(TooManyCallsError, match=r"^it takes more than 3 calls of the model$"):
        await ask()
    assert len(model.asked) == 4
    model.answer = lambda *_: said()
    calls = CallLimit(1)
    await ask()
    assert metrics.called == {
        (Purpose.TURN, CallOutcome.UNAVAILABLE): 1,
        (Purpose.TURN, CallOutcome.UNUSABLE): 3,
        (Purpose.TURN, CallOutcome.USED): 1,
    }
    assert metrics.tokens == {Purpose.TURN: 4 * 110}

"""A summary by rules alone (contract §6)."""

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nexus.core.turns import Summaries
from nexus.services.text.sentences import printable_line, weight
from nexus.services.turns.rule_summary import summarise_by_rules, summarise_input
from tests.nexus.unit.services.text.test_digest import documents, numbers, short_documents
from tests.nexus.unit.services.text.test_sentences import hard
from tests.nexus.unit.services.turns.literature import LANGUAGES, PMIDS, session
from tests.nexus.unit.services.turns.runs import Run

pytestmark = pytest.mark.heavy


def summary(run: Run) -> Summaries:
    """What is said of the run."""
    return summarise_by_rules(run.facts)


def texts(of: Summaries) -> list[str]:
    """Everything that it says."""
    lists = (of.structured.actions, of.structured.results, of.structured.decisions, of.structured.next_steps)
    return [of.brief, of.detailed, of.structured.overview, *(text for texts in lists for text in texts)]


@pytest.mark.parametrize("language", LANGUAGES)
class TestLiterature:
    """The session by which the turn memory was asked for."""

    def test_figures_are_in_detailed(self, language: str) -> None:
        """How many were found and kept, what they say, and which they are."""
        search, choose, read = (summary(run).detailed for run in session(language))
        assert ("156 articles" if language == "English" else "156 篇相关文献") in search
        assert ("15 reviews" if language == "English" else "15 篇高质量综述") in choose
        assert ("by 14% (HR 0.86, 95% CI 0.80-0.93)" if language == "English" else "HR 0.86，95% CI 0.80-0.93") in read
        assert "45,678" in read
        assert all(pmid in read for pmid in PMIDS)

    def test_parameters_are_in_detailed(self, language: str) -> None:
        """What was searched for and by what was chosen."""
        search, choose, read = (summary(run).detailed for run in session(language))
        query = "SGLT2 inhibitors cardiovascular outcomes type 2 diabetes" if language == "English" else "SGLT2 抑制剂"
        assert f"pubmed_search (query: {query}" in search
        assert "limit: 200" in search
        assert "2018-2024" in choose
        assert ("meta-analysis" if language == "English" else "Meta 分析") in choose
        assert "MACE" in read

    def test_figures_are_in_the_right_fields(self, language: str) -> None:
        """Parameters in actions, what came of them in results, what is to come in next_steps."""
        search, choose, read = (summary(run).structured for run in session(language))
        assert "156" in search.results[0]
        assert "limit: 200" in search.actions[0]
        assert "15" in choose.results[0]
        assert "2018-2024" in choose.actions[0]
        assert all(pmid in choose.actions[1] for pmid in PMIDS)
        assert "HR 0.86 (95% CI 0.80-0.93)" in read.results[0]
        assert any("14%" in result for result in read.results[1:])
        assert "quality" in read.next_steps[0] or "质量" in read.next_steps[0]

    def test_the_brief_one(self, language: str) -> None:
        """With which tools, what came of it, and, where there is room, what was asked."""
        search, choose, read = (summary(run).brief for run in session(language))
        used = "Used " if language == "English" else "用了 "
        stop, asked, answered = (". ", "Asked: ", "Answered: ") if language == "English" else ("。 ", "问：", "答：")
        assert f"{used}pubmed_search{stop}{answered}PubMed" in search
        assert "156" in search
        # In Chinese the question and the tools leave no room for the answer, which counts most.
        assert ("Used filter_articles and 1 more. Answered: " if language == "English" else "答：筛选出") in choose
        assert "15" in choose
        assert read.startswith(f"{asked}{session(language)[2].facts.input} {used}extract_data{stop}{answered}SGLT2")
        assert "14%" in read


class TestWhatIsSaid:
    """Plainly, and never nothing."""

    def test_a_run_with_tools(self) -> None:
        """In the order in which it happened."""
        run = Run("How many are there?").call("find", {"q": "beans"}, {"total": 156})
        run.call("load", {"id": 7}, "time-out after 30 s", status="error").calls(("x", "count", {}))
        assert summary(run.answer("There are 156. One is lost.")).detailed == (
            "Asked: How many are there? find (q: beans) gave total: 156. load (id: 7) failed: time-out after 30 s. "
            "count has no result. Answered: There are 156. One is lost."
        )

    def test_a_turn_without_tools(self) -> None:
        """Says so."""
        said = summary(Run("hello").answer("Hello!"))
        assert said.detailed == "Asked: hello. No tool was called. Answered: Hello!"
        assert said.brief == "Answered: Hello!"
        assert said.structured.overview == "Asked: hello. Answered: Hello!"
        assert said.structured.actions == ()
        assert said.source == "fallback"

    @pytest.mark.parametrize(
        ("run", "detailed"),
        [
            (Run(), "Nothing is known of what was asked. No answer is known yet."),
            (Run("Find X."), "Asked: Find X. No answer is known yet."),
            (Run("Find X.").calls(("a", "f", {})), "Asked: Find X. f has no result. No answer is known yet."),
            (Run("\u200b").answer(""), "Nothing is known of what was asked. No tool was called. The answer is empty."),
            (Run().answer("Done."), "Nothing is known of what was asked. No tool was called. Answered: Done."),
            (Run("👍").answer("👍"), "Asked: 👍. No tool was called. Answered: 👍."),
            (Run("a").add("HUMAN", "and b").answer("c"), "Asked: a; and b. No tool was called. Answered: c."),
        ],
        ids=range(7),
    )
    def test_what_is_not_known(self, run: Run, detailed: str) -> None:
        """Is said to be so; every text says something."""
        said = summary(run)
        assert said.detailed == detailed
        assert said.brief
        assert said.structured.overview

    def test_figures_that_only_the_answer_has(self) -> None:
        """Are results; those that a result has shown are not told again."""
        run = Run("q").call("f", {}, {"total": 156})
        run.answer("156 were found. 15 are left. Bye.")
        assert summary(run).structured.results == ("f gave total: 156", "15 are left.")

    def test_more_calls_than_there_is_room_for(self) -> None:
        """The last are told, and those before it that gave figures; the others are counted."""
        run = Run("Find it.").call("read", {}, "HR 0.86, 95% CI 0.74-0.99, 7,020 patients")
        for number in range(60):
            run.call("search", {"q": f"a rather long question on the topic of {'abcdef'[number % 6] * 9}"}, "nothing")
        said = summary(run.call("load", {}, "gone", status="error").answer("I gave up."))
        assert 1_000 < weight(said.detailed) <= 1_200
        assert "Asked: Find it. read gave HR 0.86, 95% CI 0.74-0.99, 7,020 patients. search (" in said.detailed
        assert ". load failed: gone. Also used search 48 times. Answered: I gave up." in said.detailed
        assert said.structured.actions[0] == "read"
        assert said.structured.actions[-1] == "Also used search 48 times."
        assert said.structured.results[0] == "read gave HR 0.86, 95% CI 0.74-0.99, 7,020 patients"
        assert said.structured.results[-2:] == ("search gave nothing", "load failed: gone")


_runs = st.builds(
    lambda asked, calls, answer: (asked, calls, answer),
    hard | st.none(),
    st.lists(st.tuples(st.text(max_size=9), documents, documents | hard, st.booleans()), max_size=9),
    hard | st.none(),
)


class TestRules:
    """What holds of any turn."""

    @given(_runs, st.randoms(use_true_random=False))
    def test_any_turn(self, given_run: tuple[Any, list[Any], Any], chance: random.Random) -> None:
        """One line each, in UTF-8, not empty, bounded; the same words for the same facts, whatever the rows' order."""
        asked, calls, answer = given_run
        run = Run(asked)
        for name, arguments, result, failed in calls:
            run.call(name, {"a": arguments}, result, status="error" if failed else "success")
        said = summary(run if answer is None else run.answer(answer))
        for text in texts(said):
            assert text == printable_line(text) != ""
            text.encode()
            assert "Summary generation failed" not in text
        assert weight(said.detailed) <= 1_700
        assert weight(said.brief) <= 400
        assert sum(map(weight, texts(said))) <= 8_000
        chance.shuffle(run.rows)
        assert summary(run) == said

    @given(st.lists(short_documents, min_size=1, max_size=3))
    def test_every_number_of_short_results(self, results: list[Any]) -> None:
        """Is among the results."""
        run = Run("q")
        for result in results:
            run.call("f", {}, result)
        told = numbers(" ".join(summary(run.answer("Done.")).structured.results))
        assert set().union(*(numbers(str(result)) for result in results)) <= told

    @pytest.mark.parametrize(
        "unit", ["a", "9", "百", ". ", "!)", "# ", "👨‍👩‍👧‍👦", "\u0301", "\u202eمرحبا ", "[1,", '{"a":[', "I will 5. "]
    )
    def test_a_megabyte_of_anything(self, unit: str) -> None:
        """Is summarised as any other turn."""
        text = unit * (1_000_000 // len(unit))
        run = Run(text).call("f", {"q": text}, text).call("g", text, {"k": text, "l": [text]}, status="error")
        said = summary(run.calls(("x", "h", {text: text}), text=text).answer(text))
        assert all(text and text == printable_line(text) for text in texts(said))
        assert weight(said.detailed) <= 1_700

    def test_ten_thousand_calls(self) -> None:
        """Of as many tools, half of them without a result."""
        run = Run("Go.").calls(*((f"c{n}", f"tool_{n}", {"n": n}) for n in range(10_000)))
        for number in range(5_000):
            run.result(f"c{number}", number)
        said = summary(run.answer("All done."))
        assert "and 9,961 more (of 9,967 calls 4,999 without a result)." in said.detailed
        assert "5,000 without a result" in said.structured.overview
        assert said.structured.actions[-1].startswith("Also used tool_0, tool_1, ")
        assert said.structured.results[-1] == "results of other calls: 9,935 more"


class TestInputAlone:
    """A turn that has just begun is summed up in less time, in the same words."""

    @given(hard)
    def test_any_input(self, text: str) -> None:
        """Says what the rules say of any turn."""
        assert summarise_input(text) == summarise_by_rules(Run(text).facts)


class TestTheLanguage:
    """The words of a summary are those of the session: Chinese, or else English."""

    def test_a_run_in_chinese(self) -> None:
        """As the same one in English."""
        run = Run("请帮我数一数豆子，一共有多少颗？").call("find", {"q": "豆子"}, {"total": 156})
        run.call("load", {"id": 7}, "30 秒后超时", status="error").calls(("x", "count", {}))
        said = summary(run.answer("一共有156颗豆子。丢了一颗。"))
        assert said.detailed == (
            "问：请帮我数一数豆子，一共有多少颗？ find (q: 豆子) 得到 total: 156。 load (id: 7) 失败：30 秒后超时。 "
            "count 没有结果。 答：一共有156颗豆子。丢了一颗。"
        )
        assert said.structured.results[0] == "find 得到 total: 156"
        assert "用了 find" in said.structured.overview
        assert not any(word in text for text in texts(said) for word in ("Asked", "Answered", "gave", "Used", "failed"))

    def test_many_calls_in_chinese(self) -> None:
        """Those for which there is no room are counted in the same language."""
        run = Run("请把所有的文献都下载下来。")
        for number in range(60):
            run.call("download", {"pmid": number}, "网络错误，稍后再试" * 9, status="error")
        said = summary(run.answer("全部下载失败了，请稍后再试。"))
        assert "还用了 download " in said.detailed
        assert "次失败）。" in said.detailed
        assert any(result.startswith("其他调用的结果：另有 ") for result in said.structured.results)

    def test_without_an_answer(self) -> None:
        """Also where only the input is known."""
        assert summarise_input("请帮我找五家餐厅").detailed == "问：请帮我找五家餐厅。 尚无回答。"
        assert summary(Run("请帮我找五家餐厅")).detailed == "问：请帮我找五家餐厅。 尚无回答。"

    @pytest.mark.parametrize(
        ("asked", "answered", "begins"),
        [
            ("你好", "你好！", "问：你好。 "),
            ("請幫我翻譯這句話 🙏", "好的，已經翻譯完成了。", "问：請幫我翻譯這句話 🙏。 "),
            ("用 pubmed_search 查一下 SGLT2 抑制剂的心血管结局。", "156 篇。", "问："),
            ("What does 你好世界 mean in English?", "It means hello world.", "Asked: "),
            ("明日の天気を教えてください。", "明日は晴れです。", "Asked: "),
            ("내일 날씨를 알려 주세요.", "내일은 맑습니다.", "Asked: "),
            ("🙂", "👍", "Asked: "),
            ("", "一共有一百五十六颗豆子。", "不知所问。"),
        ],
    )
    def test_of_what_was_said(self, asked: str, answered: str, begins: str) -> None:
        """A word of another language changes nothing, and what is in none of the two is told in English."""
        assert summary(Run(asked).answer(answered)).detailed.startswith(begins)

    def test_an_endless_sentence(self) -> None:
        """It is cut between two characters, in a third of the room of all."""
        said = summary(Run("我想知道" * 4_000).answer("是这样的，" * 4_000))
        assert said.detailed.startswith("问：我想知道我想知道")
        assert len(said.detailed.encode()) <= 1_200
        assert "\ufffd" not in said.detailed

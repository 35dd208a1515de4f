"""The words of summaries by rules, in the language of what they summarise: Chinese, else English. Pure."""

from dataclasses import dataclass
from typing import Final

from nexus.services.text.sentences import is_ended


@dataclass(frozen=True, slots=True)
class Words:
    """Labels with the space behind them, whole sentences, and formats, in the order in which they are filled."""

    asked: str = "Asked: "
    answered: str = "Answered: "
    decided: str = "Decided: "
    tools: str = "Tools: "
    said: str = "Said: "
    stop: str = "."
    no_answer: str = "No answer is known yet."
    not_asked: str = "Nothing is known of what was asked."
    no_tool: str = "No tool was called."
    empty_answer: str = "The answer is empty."
    other_results: str = "results of other calls: {:,} more"
    other_sentences: str = "sentences of the answer with other figures: {:,} more"
    gave: str = "gave {}"
    failed: str = "failed"
    failed_because: str = "failed: {}"
    no_result: str = "has no result"
    empty_result: str = "an empty result"
    some_result: str = "a result"
    used: str = "Used {}{}{}."
    also_used: str = "Also used {}{}{}."
    times: str = " {:,} times"
    and_more: str = " and {:,} more"
    of_calls: str = " (of {:,} calls {})"
    of_them_failed: str = "{:,} failed"
    of_them_lost: str = "{:,} without a result"

    def ended(self, text: str) -> str:
        """`text` with a full stop, if nothing ends it."""
        return text if is_ended(text) else f"{text}{self.stop}"


ENGLISH: Final = Words()
CHINESE: Final = Words(
    asked="问：",
    answered="答：",
    decided="决定：",
    tools="工具：",
    said="说：",
    stop="。",
    no_answer="尚无回答。",
    not_asked="不知所问。",
    no_tool="未调用工具。",
    empty_answer="回答为空。",
    other_results="其他调用的结果：另有 {:,} 项",
    other_sentences="回答中含其他数字的句子：另有 {:,} 句",
    gave="得到 {}",
    failed="失败",
    failed_because="失败：{}",
    no_result="没有结果",
    empty_result="空结果",
    some_result="一项结果",
    used="用了 {}{}{}。",
    also_used="还用了 {}{}{}。",
    times=" {:,} 次",
    and_more="，另 {:,} 种",
    of_calls="（{:,} 次调用中 {}）",
    of_them_failed="{:,} 次失败",
    of_them_lost="{:,} 次没有结果",
)

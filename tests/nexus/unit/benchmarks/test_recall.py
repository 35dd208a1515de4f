"""The bench of long-term memory measures what is there: on files of a few sentences."""

import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import pytest

from benchmarks.conversations import Conversation, MadeUp, Question, Repeated, read_locomo, read_owners
from benchmarks.recall import main
from benchmarks.recall_quality import Recalled, indexed, leave_one_out, mean, measured
from nexus.services.recall.score import WEIGHTS

LOCOMO: Final = [
    {
        "sample_id": name,
        "conversation": {
            "session_1_date_time": "1:56 pm on 8 May, 2023",
            "session_1": [
                {"speaker": "Ada", "dia_id": "D1:1", "text": "We rented a cabin by the lake."},
                {"speaker": "Bo", "dia_id": "D1:2", "text": "Nice!", "blip_caption": "a red canoe"},
            ],
            "session_2_date_time": "9:00 am on 2 June, 2023",
            "session_2": [{"speaker": "Ada", "dia_id": "D2:1", "text": "My violin lessons began."}],
            "session_10_date_time": "9:00 am on 3 June, 2023",
            "session_10": [{"speaker": "Bo", "dia_id": "D10:1", "text": "I baked bread."}],
        },
        "qa": [
            {"question": "Who has a canoe?", "evidence": ["D1:2"]},
            {"question": "What of the violin and the zeppelin?", "evidence": ["D2:1", "D10:1", "D9:9"]},
            {"question": "Of what is there nothing?", "evidence": ["D9:9"]},
        ],
    }
    for name in ("one", "two")
]
OURS: Final[dict[str, Any]] = {
    "owners": [
        {
            "owner_key": "lan",
            "sessions": [
                {
                    "session_id": "s1",
                    "date": "2025-03-02T20:15:00+08:00",
                    "messages": [
                        {"id": "s1:1", "role": "HUMAN", "content": "糯米今天又吐了"},
                        {"id": "s1:2", "role": "AI", "content": "带它去医院吧"},
                    ],
                }
            ],
            "questions": [{"question": "糯米怎么了?", "evidence": ["s1:1"]}],
        }
    ],
    "baseline": {
        "overall": {"recall@5": 0.95, "recall@10": 0.5, "session_recall@5": 0.5, "session_recall@10": 0.5},
    },
}


@pytest.fixture
def locomo(tmp_path: Path) -> Path:
    """A file of two conversations in LoCoMo's form."""
    path = tmp_path / "locomo.json"
    path.write_text(json.dumps(LOCOMO), encoding="utf-8")
    return path


def test_what_a_file_has_becomes_stored_messages(locomo: Path) -> None:
    """Speaker, text and caption, in the order of sessions; only evidence that exists counts."""
    first = read_locomo(locomo)[0]
    assert [document["content"] for document in first.documents] == [
        "Ada: We rented a cabin by the lake.",
        "Bo: Nice! a red canoe",
        "Ada: My violin lessons began.",
        "Bo: I baked bread.",
    ]
    assert [question.evidence for question in first.questions] == [{"D1:2"}, {"D2:1", "D10:1"}]


def test_recall_is_the_share_of_the_evidence_that_is_found(locomo: Path) -> None:
    """One of two messages and sessions is found for the second question: the other shares no word with it."""
    results = measured(indexed(read_locomo(locomo)[0]))
    assert results == [Recalled(1, 1, 1, 1), Recalled(0.5, 0.5, 0.5, 0.5)]
    assert mean(results) == Recalled(0.75, 0.75, 0.75, 0.75)


def twelve_boats(evidence_by: str, others_by: str) -> Conversation:
    """The same text twelve times; the first of these messages is the evidence."""
    documents = [
        {
            "id": f"m{number}",
            "session_id": f"s{number}",
            "role": others_by if number else evidence_by,
            "content": "a boat",
            "timestamp": datetime(2025, 1, 1, tzinfo=UTC),
        }
        for number in range(12)
    ]
    return Conversation(evidence_by, documents, [Question("boat", frozenset({"m0"}))])


def test_a_conversation_is_scored_with_the_weights_that_are_best_on_the_others() -> None:
    """Two conversations of which each needs what harms the other: neither is scored with its own choice."""
    folds = leave_one_out(
        [indexed(twelve_boats("HUMAN", "AI")), indexed(twelve_boats("AI", "HUMAN"))],
        [replace(WEIGHTS, assistant=0.5), replace(WEIGHTS, assistant=2.0)],
    )
    assert [(fold.owner_key, fold.weights.assistant, fold.results) for fold in folds] == [
        ("HUMAN", 2.0, [Recalled(0, 0, 0, 0)]),
        ("AI", 0.5, [Recalled(0, 0, 0, 0)]),
    ]


def test_the_command_prints_what_is_recalled(
    locomo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line a file, beside the baseline that the file has."""
    ours = tmp_path / "ours.json"
    ours.write_text(json.dumps(OURS), encoding="utf-8")
    monkeypatch.setattr("sys.argv", ["recall", "quality", "--locomo", str(locomo), "--chinese", str(ours)])
    main()
    printed = capsys.readouterr().out
    assert "LoCoMo, words" in printed
    assert "0.7500 (0.73)" in printed
    assert "1.0000 (1.03)" in printed


def test_evidence_in_time_zones_and_roles(tmp_path: Path) -> None:
    """A message keeps its role and the moment of its session."""
    path = tmp_path / "ours.json"
    path.write_text(json.dumps(OURS), encoding="utf-8")
    (conversation,), baseline = read_owners(path)
    assert [document["role"] for document in conversation.documents] == ["HUMAN", "AI"]
    assert conversation.documents[1]["timestamp"].isoformat() == "2025-03-02T20:15:01+08:00"
    assert baseline["recall@5"] == 0.95


def test_made_texts_are_the_same_for_a_seed() -> None:
    """Two runs measure the same."""
    made = [[*MadeUp(seed=7).documents("ada", 100)] for _ in range(2)]
    assert made[0] == made[1]
    assert len({document["id"] for document in made[0]}) == 100


def test_repeated_conversations_are_new_messages_in_new_sessions(locomo: Path) -> None:
    """Eight messages once and then again, in six sessions each time; no id twice."""
    repeated = [*Repeated(read_locomo(locomo)).documents("ada", 16)]
    assert len({document["id"] for document in repeated}) == 16
    assert len({document["session_id"] for document in repeated}) == 12
    assert {document["owner_key"] for document in repeated} == {"ada"}

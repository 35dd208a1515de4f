"""Turns as a service keeps them."""

from datetime import UTC, datetime, timedelta
from typing import Any

from nexus.core.ports import Row


def a_turn(number: int, **changes: Any) -> Row:
    """Turn `number` of session s1 of ada, as a service keeps it, with changes."""
    structured = {
        "overview": "Statins were looked up. 😀",
        "actions": ["pubmed_search(query=statins)"],
        "results": ["156 articles", "HR 0.86 (95% CI 0.80-0.93)"],
        "decisions": [],
        "next_steps": ["Extract"],
    }
    return {
        "id": f"turn_{number}_{1767225600000 + number}",
        "turn_number": number,
        "owner_key": "ada",
        "session_id": "s1",
        "run_id": f"r{number}",
        "timestamp": datetime(2026, 1, 1, tzinfo=UTC) + timedelta(minutes=number),
        "status": "completed",
        "task_context": "Review statins.\nOnly new trials.",
        "workspace_context": "",
        "messages": ["m1", "m2"],
        "removed": [],
        "thinking_phase": {
            "rounds": [{"round_number": 1, "content": "Look\nfirst.", "tokens_used": 7}],
            "tokens_used": 7,
        },
        "tool_calls": [
            {"name": "pubmed_search", "arguments": {"query": "statins"}, "success": True, "result": "156 articles"},
            {
                "name": "pubmed_search",
                "arguments": {"query": "文章"},
                "success": False,
                "result": {"$ref": "a", "$id": 1},
            },
            {"name": "filter", "arguments": None, "success": None, "result": None},
        ],
        "summaries": {
            "brief": f"Asked for statins, {number}. 156.",
            "detailed": "Asked.\nFound 156.",
            "structured": structured,
            "source": "model",
        },
        "insights": ["15 reviews remain"],
        "token_usage": {"thinking": 7, "action": 93, "total": 100},
        "work": "summarise",
        "due_at": datetime(2026, 1, 1, tzinfo=UTC),
        "heard_at": datetime(2026, 1, 1, tzinfo=UTC),
        "rows": 5,
        "attempts": 1,
        "overtaken": False,
        "given_up": "",
        **changes,
    }

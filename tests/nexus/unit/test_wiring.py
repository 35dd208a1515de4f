"""The settings as each service takes them."""

import pytest

from nexus.config import Settings
from nexus.wiring import builder_settings


@pytest.mark.parametrize(
    ("llm", "by_model"),
    [({}, False), ({"base_url": "http://127.0.0.1:1/v1", "model": "m"}, True)],
)
def test_whether_summaries_are_replaced(llm: dict[str, str], by_model: bool) -> None:
    """Only where there is a model to ask."""
    assert builder_settings(Settings(llm=llm)).summaries_by_model is by_model

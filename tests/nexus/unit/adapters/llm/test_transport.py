"""Where an endpoint is and how to log in there."""

import pytest

from nexus.adapters.llm.transport import read_address
from nexus.core.errors import ConfigError


@pytest.mark.parametrize(
    ("base_url", "api_key", "expected"),
    [
        ("http://h:1/v1", "", ("http://h:1/v1", {}, "")),
        ("https://h/v1/", " sk-1\n", ("https://h/v1/", {}, "Bearer sk-1")),
        ("http://u:p%40%3A@h/v1", "", ("http://h/v1", {}, "Basic dTpwQDo=")),
        ("http://u@h/v1", "", ("http://h/v1", {}, "Basic dTo=")),
        ("http://u:p@h/v1", "sk-1", ("http://h/v1", {}, "Bearer sk-1")),
        (
            "https://h/openai?api-version=2026&empty=",
            "",
            ("https://h/openai", {"api-version": "2026", "empty": ""}, ""),
        ),
        ("http://[::1]:11434", "", ("http://[::1]:11434", {}, "")),
    ],
)
def test_an_address_in_its_parts(base_url: str, api_key: str, expected: tuple[str, dict[str, str], str]) -> None:
    """What is secret is apart from it, and a key comes before user and password."""
    address = read_address(base_url, api_key)
    assert (address.url, address.query, address.authorization) == expected
    assert not {"sk-1", "p@", "dTpw"} & {*repr(address).split("'")}


@pytest.mark.parametrize(
    "base_url",
    ["http://", "http://canary:x/v1", "http://h:99999/", "http://h:0/", "http://[::canary", "http://u:p@/v1"],
)
def test_an_address_that_cannot_be_used(base_url: str) -> None:
    """It is refused, and not repeated."""
    with pytest.raises(ConfigError, match=r"^llm\.base_url: ") as refused:
        read_address(base_url, "")
    assert "canary" not in str(refused.value)


@pytest.mark.parametrize("key", ["канарейка", "canary\r\nX-Evil: 1", "canary\0"])
def test_a_key_that_cannot_be_sent(key: str) -> None:
    """It is refused at the start, and not repeated."""
    with pytest.raises(ConfigError, match=r"^llm\.api_key: ") as refused:
        read_address("http://h/v1", key)
    assert key not in str(refused.value)

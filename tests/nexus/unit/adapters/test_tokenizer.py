"""The bundled tokenizer: exact, by itself, and loaded once."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import quicktok  # type: ignore[import-untyped]  # it comes without types
from hypothesis import example, given, settings
from hypothesis import strategies as st

from nexus.adapters.tokenizer import VOCABULARIES, open_tokenizer
from nexus.core.errors import ConfigError
from tests.nexus.support.tokens import tokens

OPENAI = ("o200k_base", "cl100k_base")
TEXTS = {
    "prose": "The quick brown fox doesn't jump over 1,234 lazy dogs; it's THE end.\n\n  And then?\r\n",
    "code": "def f(x: int) -> list[int]:\n\treturn [y**2 for y in range(1_000) if y != x]  # 0xFF\n",
    "JSON": '{"a":[1.5e-7,null,{"b":"c\\u00e9"}],"tool_calls":[{"id":"call_1"}]}',
    "Chinese": "今天天气很好，我们去公园散步吧。他说：“好的，明天见！”",
    "scripts": "здравствуйте العربية हिन्दी 한국어 ไทย ελληνικά עברית",
    "emoji": "😀👩‍👩‍👧‍👦🇵🇹👍🏽 ❤️",
    "white space": " \t \n\n   \r\n \u00a0\u3000 x",
    "markers": "<|endoftext|><|im_start|>user<|im_sep|>[CONTEXT_META]",
    "letters that look alike": "[ТНIS_МОМЕNT] ａｂｃ ﬁ ǅ",
}
ODD_LETTERS = [*"aZ1 \n\r\t'’sStTmMlL-/.，中あ한😀\u00e9ſİǅª٣\u0301\u200d\ufe0f\u00a0\u3000"]
UNREADABLE = """
from nexus.adapters.tokenizer import open_tokenizer
from nexus.core.errors import ConfigError

try:
    open_tokenizer("o200k_base").count("")
except ConfigError as error:
    print(error)
"""
WITHOUT_A_NETWORK = """
import sys
from nexus.adapters.tokenizer import open_tokenizer

def refuse(event, arguments):
    if event.startswith(("socket.", "urllib.", "http.")):
        raise RuntimeError(event)
sys.addaudithook(refuse)
print(*(open_tokenizer(name).count("one two") for name in ("cl100k_base", "qwen3")))
"""


def run(program: str, **environment: str) -> str:
    """What a Python program prints."""
    known = {**os.environ, **environment}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env=known)
    return done.stdout.strip()


@pytest.mark.parametrize("vocabulary", OPENAI)
@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS.keys())
def test_exact(vocabulary: str, text: str) -> None:
    """Every kind of text has as many tokens as another implementation finds."""
    assert open_tokenizer(vocabulary).count(text) == tokens(text, vocabulary)


@pytest.mark.parametrize("vocabulary", OPENAI)
@given(text=st.text() | st.text(ODD_LETTERS, max_size=60))
@example(text="\u0344\U000e0041\ufeff")
@settings(max_examples=300)
def test_exact_whatever_the_text_is(vocabulary: str, text: str) -> None:
    """So has every text that can be sent."""
    assert open_tokenizer(vocabulary).count(text) == tokens(text, vocabulary)


@pytest.mark.parametrize("name", ["", "O200K_BASE", "gpt-4o", "llama4", "../o200k_base", "\0", "\ud800"])
def test_unknown_names(name: str) -> None:
    """They are refused at once, with the names that there are, and nothing is looked for."""
    with pytest.raises(ConfigError, match=r"memory\.tokenizer: one of o200k_base, .*qwen3 is needed"):
        open_tokenizer(name)


def test_nothing_is_fetched(tmp_path: Path) -> None:
    """Without a network or a home, and with a folder of somebody's vocabularies at hand, the count is the same."""
    for name in VOCABULARIES:
        (tmp_path / f"{name}.vocab").write_bytes(b"nonsense")
    nowhere = {"HOME": str(tmp_path), "QUICKTOK_DATA": str(tmp_path)}
    assert run(WITHOUT_A_NETWORK, **nowhere) == "2 2"


def test_a_package_without_its_vocabularies(tmp_path: Path) -> None:
    """What is wrong is told as a matter of configuration, and no other place is looked at."""
    package = Path(quicktok.__file__).parent
    shutil.copytree(package, tmp_path / "quicktok", ignore=shutil.ignore_patterns("o200k.*"))
    (tmp_path / "home").mkdir()
    for file in (package / "data").glob("o200k*"):
        shutil.copy(file, tmp_path / "home" / file.name)
    said = run(UNREADABLE, PYTHONPATH=str(tmp_path), QUICKTOK_DATA=str(tmp_path / "home"))
    assert said.startswith("memory.tokenizer: o200k_base cannot be read, install quicktok-v1 anew (")

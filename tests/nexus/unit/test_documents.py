"""docs/schemas and docs/asyncapi.yaml are what the code says, whole, and refer to what is there."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from nexus.core.models import ANSWER_TOPICS, Topics
from nexus.services.context.formats import FORMATS
from nexus.services.requests.dispatcher import NEWS, work
from scripts import documents

DOCS: Final = documents.DOCS
DOCUMENT: Final = yaml.safe_load((DOCS / "asyncapi.yaml").read_text(encoding="utf-8"))


def references(value: Any) -> Iterator[str]:
    """Every `$ref` in a document."""
    if isinstance(value, dict):
        if isinstance(value.get("$ref"), str):
            yield value["$ref"]
        for each in value.values():
            yield from references(each)
    elif isinstance(value, list):
        for each in value:
            yield from references(each)


def at(value: Any, pointer: str) -> Any:
    """What a JSON pointer leads to; KeyError where it leads nowhere."""
    for name in pointer.split("/")[1:]:
        value = value[name.replace("~1", "/").replace("~0", "~")]
    return value


def of_topic(topic: str) -> dict[str, dict[str, Any]]:
    """The operations on a topic by their action, those on `<topic>.<reply_to>` left out."""
    (key,) = (key for key, channel in DOCUMENT["channels"].items() if channel["address"] == topic)
    on_it = [each for each in DOCUMENT["operations"].values() if each["channel"]["$ref"] == f"#/channels/{key}"]
    return {each["action"]: each for each in on_it}


def test_they_are_what_the_code_says(capsys: pytest.CaptureFixture[str]) -> None:
    """`--check` finds nothing. Where it does, run `make documents` and commit what it writes."""
    code = documents.main(["--check"])
    assert (code, capsys.readouterr().out) == (0, "Nothing differs.\n")


def test_differences_are_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A changed line, a missing file and one too many are printed; writing mends all three."""
    monkeypatch.setattr(documents, "DOCS", tmp_path / "docs")
    (tmp_path / "docs").mkdir()
    assert documents.main([]) == 0
    schemas = tmp_path / "docs" / "schemas"
    changed = schemas / "answer.json"
    changed.write_text(changed.read_text("utf-8").replace('"retryable"', '"again"', 1), encoding="utf-8")
    (schemas / "manifest.json").unlink()
    (schemas / "surplus.json").write_text("{}\n", encoding="utf-8")
    capsys.readouterr()
    assert documents.main(["--check"]) == 1
    shown = capsys.readouterr().out
    for line in (
        '-        "again": {',
        '+        "retryable": {',
        "+++ docs/schemas/manifest.json (from the code)",
        "-{}",
    ):
        assert line in shown.splitlines()
    assert documents.main([]) == 0
    assert documents.main(["--check"]) == 0


def test_every_topic_is_there() -> None:
    """What is read is received and what is written is sent; of all other topics it is known whose they are."""
    received = {each.topic for each in work(1, tool_calls=True)} | set(NEWS)
    sent = {*ANSWER_TOPICS.values(), Topics.TOOLS_RESULTS}
    every = {value for name, value in vars(Topics).items() if name.isupper()}
    assert {topic for topic in every - documents.LEFT_ALONE if "receive" in of_topic(topic)} == received
    assert {topic for topic in every - documents.LEFT_ALONE if "send" in of_topic(topic)} == sent
    addresses = {channel["address"] for channel in DOCUMENT["channels"].values()}
    assert addresses == (every - documents.LEFT_ALONE) | {f"{each}.{{reply_to}}" for each in ANSWER_TOPICS.values()}


@pytest.mark.parametrize(
    ("topic", "schema"), [(Topics.CONTEXT_BUILD_REQUEST, "answer"), (Topics.MEMORY_SEARCH, "memory-search-result")]
)
def test_a_request_has_a_reply(topic: str, schema: str) -> None:
    """It comes on the topic of the request's `reply_to`, which is a parameter of that channel."""
    reply = of_topic(topic)["receive"]["reply"]
    channel = at(DOCUMENT, reply["channel"]["$ref"][1:])
    assert channel["address"] == f"{ANSWER_TOPICS[topic]}.{{{next(iter(channel['parameters']))}}}"
    assert [at(DOCUMENT, each["$ref"][1:])["$ref"] for each in reply["messages"]] == [f"#/components/messages/{schema}"]


def test_every_reference_leads_somewhere() -> None:
    """In AsyncAPI to a part of it or to a schema, in a schema to a part of it. No file is left over."""
    files = set()
    for reference in references(DOCUMENT):
        path, _, pointer = reference.partition("#")
        if path:
            files.add((DOCS / path).resolve())
        else:
            assert at(DOCUMENT, pointer)
    schemas = {path: json.loads(path.read_text("utf-8")) for path in (DOCS / "schemas").iterdir()}
    assert files <= schemas.keys()
    assert {path.stem for path in schemas.keys() - files} == {"envelope", "manifest", "tool-definition", "stored-row"}
    for schema in schemas.values():
        assert all(at(schema, reference.removeprefix("#")) for reference in references(schema))


def test_every_format_has_a_context() -> None:
    """An answer is a context in the form of one of the providers, or an error."""
    schema = documents.schema("answer")
    forms = [at(schema, each["$ref"][1:]) for each in schema["properties"]["content"]["anyOf"]]
    named = {form["properties"]["format"]["const"] for form in forms if "format" in form["properties"]}
    assert (named, len(forms)) == (set(FORMATS), len(FORMATS) + 1)

"""`deploy/alerts.yml` and `deploy/dashboard.json`: every series and label that they ask for is one that Nexus has."""

import itertools
import json
import re
import shutil
import subprocess
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from nexus.adapters.prometheus import PrometheusMetrics
from nexus.bootstrap import checks
from nexus.core.metrics import Reading
from nexus.core.models import Topics
from tests.nexus.unit.test_docs import anchors

ROOT: Final = Path(__file__).parents[4]
RULES: Final[list[dict[str, Any]]] = yaml.safe_load((ROOT / "deploy/alerts.yml").read_text("utf-8"))["groups"][0][
    "rules"
]
BOARD: Final[dict[str, Any]] = json.loads((ROOT / "deploy/dashboard.json").read_text("utf-8"))
PANELS: Final = [panel for panel in BOARD["panels"] if panel["type"] != "row"]
QUERIES: Final = [(panel["title"], target["expr"]) for panel in PANELS for target in panel["targets"]]
EXPRESSIONS: Final = [*((rule["alert"], rule["expr"]) for rule in RULES), *QUERIES]
# What the dashboard's panels are measured in.
UNITS: Final = {"short", "reqps", "cps", "s", "bytes", "percentunit", "bool_on_off"}

# What Prometheus itself puts on every series.
TARGET: Final = {"job", "instance"}
GROUPING: Final = {"by", "without", "on", "ignoring", "group_left", "group_right"}
WORDS: Final = GROUPING | {"and", "or", "unless", "offset", "bool"}
TOKEN: Final = re.compile(r'"(?:[^"\\]|\\.)*"|\[[^\]]*\]|[A-Za-z_:$][\w:]*|=~|!~|!=|[{}(),=]')

Labels = dict[str, set[str]]


def known() -> dict[str, Labels]:
    """Every series of Nexus by its name, with its labels and their values."""
    metrics: Any = PrometheusMetrics(version="1")
    for reading in Reading:
        metrics.read_from(reading, lambda: 1)
    for topic in (Topics.CONTEXT_BUILD_REQUEST, Topics.LLM_RESULTS):
        metrics.backlog_from(topic, lambda: 1)
    nothing: Any = None
    page = metrics.exposition(dict.fromkeys(checks(nothing, nothing, nothing, 1), True)).decode()
    found: dict[str, Labels] = {"up": {}}
    for sample in itertools.chain.from_iterable(family.samples for family in text_string_to_metric_families(page)):
        labels = found.setdefault(sample.name, defaultdict(set))
        for name, value in sample.labels.items():
            labels[name].add(value)
    return found


KNOWN: Final = known()


def faults(expression: str) -> Iterator[str]:
    """What an expression asks for that no series of Nexus has."""
    tokens = TOKEN.findall(expression)
    names = [token for place, token in enumerate(tokens) if is_metric(tokens, place)]
    if not names:
        yield "no metric"
    yield from (f"no metric {name}" for name in names if name not in KNOWN)
    labels = TARGET.union(*(KNOWN.get(name, {}) for name in names))
    for words in re.findall(rf"\b(?:{'|'.join(GROUPING)})\s*\(([^)]*)\)", expression):
        yield from (f"no label {word}" for word in re.findall(r"\w+", words) if word not in labels)
    for name, matchers in re.findall(r"([\w:]+)\{([^}]*)\}", expression):
        for label, operator, text in re.findall(r'(\w+)\s*(=~|!~|!=|=)\s*"([^"]*)"', matchers):
            if label in TARGET:
                continue
            values = text.split("|") if "~" in operator else [text]
            yield from (f"{name} has no {label}={v}" for v in values if v not in KNOWN.get(name, {}).get(label, ()))


def is_metric(tokens: list[str], place: int) -> bool:
    """Whether the token is the name of a metric: no word of the language, function, label or value."""
    token, before = tokens[place], tokens[:place]
    behind = tokens[place + 1] if place + 1 < len(tokens) else ""
    in_braces = before.count("{") > before.count("}")
    opened = [at for at, each in enumerate(before) if each == "("]
    grouped = bool(opened) and ")" not in before[opened[-1] :] and opened[-1] > 0 and before[opened[-1] - 1] in GROUPING
    named = bool(re.match(r"[A-Za-z_:]", token)) and token not in WORDS
    return named and not in_braces and not grouped and behind != "(" and behind not in GROUPING


@pytest.mark.parametrize(("where", "expression"), EXPRESSIONS, ids=lambda text: text[:30])
def test_what_is_asked_for_exists(where: str, expression: str) -> None:
    """Metrics, labels, and the values that labels are compared with; and the job is told."""
    assert [*faults(expression)] == [], where
    assert expression.count("{") == expression.count("{job=")


@pytest.mark.parametrize(
    ("expression", "fault"),
    [
        ("sum(rate(nexus_request_total{job='x'}[5m]))", "no metric nexus_request_total"),
        ("nexus_stage_seconds", "no metric nexus_stage_seconds"),
        ("sum by (layout) (rate(nexus_requests_total[5m])) > 1", "no label layout"),
        ('nexus_requests_total{outcome=~"OVERLOADED|LATE"}', "nexus_requests_total has no outcome=LATE"),
        ('rate(nexus_loop_stall_seconds_bucket{le="0.3"}[5m])', "nexus_loop_stall_seconds_bucket has no le=0.3"),
        ("absent(nexus_gone) or on (instance) up", "no metric nexus_gone"),
        ("vector(1)", "no metric"),
    ],
)
def test_what_does_not_exist_is_found(expression: str, fault: str) -> None:
    """A name, a label or a value that is wrong, by itself."""
    assert [*faults(expression)] == [fault]


def test_every_metric_is_on_the_dashboard() -> None:
    """But for what processes have beyond memory, CPU and descriptors, and the parts of histograms."""
    shown = {name for _, expression in QUERIES for name in KNOWN if re.search(rf"\b{name}\b", expression)}
    assert {name for name in KNOWN if name.startswith("nexus_") and not name.endswith(("_sum", "_count"))} <= shown


def test_every_metric_is_in_the_documentation() -> None:
    """And no other is."""
    page = (ROOT / "docs/operations.md").read_text("utf-8")
    documented = set(re.findall(r"`(nexus_[a-z_]+)`", "\n".join(re.findall(r"^\| `nexus_.*", page, re.MULTILINE))))
    names = {re.sub("_(bucket|sum|count)$", "", name) for name in KNOWN if name.startswith("nexus_")}
    assert documented == names


def test_alerts_say_what_to_do() -> None:
    """In words, and with the heading where to read on; none twice."""
    assert len({rule["alert"] for rule in RULES}) == len(RULES)
    for rule in RULES:
        assert rule["labels"].keys() == {"severity"}
        assert rule["labels"]["severity"] in {"page", "ticket"}
        notes = rule["annotations"]
        assert notes.keys() == {"summary", "description", "runbook"}
        assert len(notes["description"]) > len(notes["summary"])
        page, _, anchor = notes["runbook"].partition("#")
        assert anchor in anchors(ROOT / page), notes["runbook"]


def test_panels_say_what_to_do() -> None:
    """A title of its own, a description, a unit and the data source that is chosen; an id for each."""
    assert len({panel["id"] for panel in BOARD["panels"]}) == len(BOARD["panels"])
    assert len({panel["title"] for panel in PANELS if panel["type"] == "timeseries"}) == len(
        [panel for panel in PANELS if panel["type"] == "timeseries"]
    )
    assert {"datasource", "job"} == {variable["name"] for variable in BOARD["templating"]["list"]}
    for panel in PANELS:
        assert len(panel["description"]) > len(panel["title"]), panel["title"]
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        assert panel["fieldConfig"]["defaults"]["unit"] in UNITS


def test_alerts_name_panels_that_exist() -> None:
    """What an alert's text quotes is a panel's title; and likewise in the texts of panels."""
    titles = {panel["title"].partition(" (")[0] for panel in PANELS}
    texts = [*(rule["annotations"]["description"] for rule in RULES), *(panel["description"] for panel in PANELS)]
    quoted = {name for text in texts for name in re.findall(r'"([^"]+)"', text)}
    assert quoted
    assert quoted <= titles


def test_panels_do_not_overlap() -> None:
    """Nor does one leave the grid of 24 columns."""
    taken: set[tuple[int, int]] = set()
    for panel in BOARD["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken, panel["title"]
        assert at["x"] + at["w"] <= 24
        taken |= cells


def promtool(*arguments: str | Path) -> None:
    """Run it, where it is installed."""
    program = shutil.which("promtool")
    if not program:
        pytest.skip("promtool is not installed (Debian: the package prometheus)")
    done = subprocess.run([program, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_prometheus_takes_the_rules() -> None:
    """And they fire for what they are for, and for nothing else."""
    promtool("check", "rules", ROOT / "deploy/alerts.yml")
    promtool("test", "rules", Path(__file__).with_name("alerts_test.yml"))


def test_prometheus_takes_the_queries(tmp_path: Path) -> None:
    """Those of the dashboard, with its variables filled."""
    filled = [expression.replace("$__rate_interval", "1m").replace("$job", "nexus") for _, expression in QUERIES]
    rules = [{"record": f"panel:{number}", "expr": expression} for number, expression in enumerate(filled)]
    (tmp_path / "rules.yml").write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}), "utf-8")
    promtool("check", "rules", tmp_path / "rules.yml")

"""`deploy/k8s/nexus.yml`: what Kubernetes takes, and what Nexus is: its ports, paths, settings and user."""

import re
import shlex
from pathlib import Path
from typing import Any, Final

import kubernetes_validate  # type: ignore[import-untyped]  # it has no types
import pytest
import yaml
from starlette.routing import Route

from nexus.adapters.redis.urls import parse_redis_url
from nexus.config.loading import load_settings
from nexus.http.server import create_app

ROOT: Final = Path(__file__).parents[4]
TEXT: Final = (ROOT / "deploy/k8s/nexus.yml").read_text("utf-8")
OBJECTS: Final[dict[str, dict[str, Any]]] = {each["kind"]: each for each in yaml.safe_load_all(TEXT)}
POD: Final[dict[str, Any]] = OBJECTS["Deployment"]["spec"]["template"]["spec"]
CONTAINER: Final[dict[str, Any]] = POD["containers"][0]
PAGE: Final = (ROOT / "deploy/README.md").read_text("utf-8")


def secret() -> dict[str, str]:
    """The keys and values of the Secret that the page has people make."""
    command = re.search(r"^kubectl .*create secret generic nexus.*?[^\\]$", PAGE, re.MULTILINE | re.DOTALL)
    assert command
    words = shlex.split(command[0].replace("\\\n", " "))
    return dict(word.removeprefix("--from-literal=").split("=", 1) for word in words if "--from-literal" in word)


def variables() -> dict[str, str]:
    """The environment of the container but for NEXUS_CONFIG."""
    return {each["name"]: each["value"] for each in CONTAINER["env"]} | secret()


@pytest.mark.parametrize("version", ["1.28", kubernetes_validate.latest_version()])
@pytest.mark.parametrize("kind", sorted(OBJECTS))
def test_kubernetes_takes_it(kind: str, version: str) -> None:
    """By its schemas, with no field that they do not know."""
    kubernetes_validate.validate(OBJECTS[kind], version, strict=True)


def test_a_field_that_is_wrong_is_found() -> None:
    """Or the test above says nothing."""
    wrong = {**OBJECTS["Service"], "spec": {**OBJECTS["Service"]["spec"], "publishNotReady": True}}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, kubernetes_validate.latest_version(), strict=True)


def test_nothing_is_secret_and_all_is_there() -> None:
    """No Secret in the file; every object is called, and chooses, as all others do."""
    expected = ["ConfigMap", "Deployment", "NetworkPolicy", "PodDisruptionBudget", "Service", "ServiceAccount"]
    assert sorted(OBJECTS) == expected
    assert {each["metadata"]["name"] for each in OBJECTS.values()} == {"nexus"}
    assert "://" not in TEXT
    labels = OBJECTS["Deployment"]["spec"]["template"]["metadata"]["labels"]
    assert OBJECTS["Service"]["spec"]["selector"] == labels
    chosen = [OBJECTS[kind]["spec"]["selector"] for kind in ("Deployment", "PodDisruptionBudget")]
    chosen += [OBJECTS["NetworkPolicy"]["spec"]["podSelector"], POD["topologySpreadConstraints"][0]["labelSelector"]]
    assert chosen == [{"matchLabels": labels}] * 4


def test_the_settings(tmp_path: Path) -> None:
    """File and variables are what Nexus takes, the file stands where it is looked for, and the drain has its time."""
    mounted = {mount["name"]: Path(mount["mountPath"]) for mount in CONTAINER["volumeMounts"]}
    (name,) = OBJECTS["ConfigMap"]["data"]
    file = tmp_path / name
    file.write_text(OBJECTS["ConfigMap"]["data"][name], "utf-8")
    given = variables()
    assert Path(given.pop("NEXUS_CONFIG")) == mounted["config"] / name
    settings = load_settings(file, given)
    assert CONTAINER["envFrom"] == [{"secretRef": {"name": "nexus"}}]
    assert parse_redis_url(settings.bus.url.get_secret_value()).login == {"password": "PASSWORD"}
    assert "redis.data" in settings.bus.url.get_secret_value()
    assert settings.console.token.get_secret_value()
    assert settings.system.http_host == "0.0.0.0"  # noqa: S104  # as it must be in a pod
    assert settings.system.http_port == CONTAINER["ports"][0]["containerPort"]
    assert POD["terminationGracePeriodSeconds"] >= settings.system.drain_seconds + 5


def test_ports_and_paths() -> None:
    """Probes ask for what is answered, on the port that listens; restarts by /livez alone."""
    answered = {route.path for route in create_app({}, lambda _checks: b"").routes if isinstance(route, Route)}
    probes = {name: CONTAINER[f"{name}Probe"] for name in ("startup", "liveness", "readiness")}
    paths = {name: probe["httpGet"]["path"] for name, probe in probes.items()}
    assert paths == {"startup": "/livez", "liveness": "/livez", "readiness": "/readyz"}
    assert set(paths.values()) < answered
    (port,) = CONTAINER["ports"]
    assert {probe["httpGet"]["port"] for probe in probes.values()} == {port["name"]}
    (served,) = OBJECTS["Service"]["spec"]["ports"]
    assert (served["port"], served["targetPort"]) == (port["containerPort"], port["name"])
    (let_in,) = OBJECTS["NetworkPolicy"]["spec"]["ingress"]
    assert [each["port"] for each in let_in["ports"]] == [port["containerPort"]]
    assert all(peer["namespaceSelector"]["matchLabels"] for peer in let_in["from"])
    # A check of readiness takes up to 2 s.
    assert probes["readiness"]["timeoutSeconds"] > 2


def test_the_user_is_that_of_the_image() -> None:
    """Not root, and nothing can be written but /tmp."""
    built = (ROOT / "Dockerfile").read_text("utf-8")
    assert re.search(r"--uid (\d+) nexus", built)
    assert f"--uid {POD['securityContext']['runAsUser']} nexus" in built
    assert POD["securityContext"]["runAsNonRoot"]
    assert CONTAINER["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    writable = {volume["name"] for volume in POD["volumes"] if "emptyDir" in volume}
    assert [mount["mountPath"] for mount in CONTAINER["volumeMounts"] if mount["name"] in writable] == ["/tmp"]  # noqa: S108
    assert not POD["automountServiceAccountToken"]
    assert not OBJECTS["ServiceAccount"]["automountServiceAccountToken"]


def test_a_replica_always_answers() -> None:
    """While one is replaced, or a node is emptied."""
    spec = OBJECTS["Deployment"]["spec"]
    assert spec["replicas"] >= 2
    assert spec["strategy"]["rollingUpdate"]["maxUnavailable"] == 0
    assert OBJECTS["PodDisruptionBudget"]["spec"]["minAvailable"] >= 1


def test_what_may_be_reached() -> None:
    """Redis and MongoDB at the ports of the addresses on the page, names, a collector, and the model's endpoint."""
    ports = [{each["port"] for each in rule["ports"]} for rule in OBJECTS["NetworkPolicy"]["spec"]["egress"]]
    assert ports == [{53}, {6379, 27017}, {4318}, {443}]
    assert {int(port) for port in re.findall(r"\.data:(\d+)", PAGE)} == ports[1]

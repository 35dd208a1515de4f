"""`docker-compose.yml`: images by digest, passwords from outside, ports of this machine, URLs that Nexus can use."""

import ast
import json
import re
import shlex
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib.metadata import packages_distributions
from pathlib import Path
from threading import Thread
from typing import Any, Final

import pytest
import yaml
from pymongo.uri_parser import parse_uri

from nexus.adapters.mongo import open_mongo
from nexus.adapters.redis.urls import parse_redis_url
from nexus.config.loading import load_settings

ROOT: Final = Path(__file__).parents[3]
TEXT: Final = (ROOT / "docker-compose.yml").read_text("utf-8")
SERVICES: Final[dict[str, Any]] = yaml.safe_load(TEXT)["services"]
VARIABLE: Final = re.compile(r"\$\{([A-Z_]+)(?::\?([^}]+))?\}")
DIGEST: Final = r"[a-z0-9./-]+:[A-Za-z0-9._-]+@sha256:[0-9a-f]{64}"


def filled(text: str) -> str:
    """A value with its variables filled as compose fills them."""
    return VARIABLE.sub(lambda match: f"secret-{match[1]}", text)


def test_images_have_digests() -> None:
    """Those of the services, and those that Nexus's own is built from."""
    images = [service["image"] for service in SERVICES.values() if "build" not in service]
    built = re.findall(r"^FROM (\S+)", (ROOT / "Dockerfile").read_text("utf-8"), re.MULTILINE)
    assert len(images) == len(built) == 2
    assert all(re.fullmatch(DIGEST, image) for image in [*images, *built])


def test_the_image_is_no_root_s() -> None:
    """Its last user has a number of its own."""
    built = (ROOT / "Dockerfile").read_text("utf-8").rpartition("\nFROM ")[2]
    (user,) = re.findall(r"^USER (\S+)$", built, re.MULTILINE)
    assert re.search(rf"useradd .*--uid [1-9]\d+ {user}$", built, re.MULTILINE)
    (port,) = re.findall(r"NEXUS_SYSTEM__HTTP_PORT=(\d+)", built)
    assert f"\nEXPOSE {port}\n" in built


def test_the_image_says_whether_it_lives() -> None:
    """Its health check asks for /livez at the port of the setting, and fails where nobody answers there."""
    built = (ROOT / "Dockerfile").read_text("utf-8")
    words = json.loads(built.partition("\nHEALTHCHECK ")[2].partition("CMD ")[2].partition("\n")[0])
    asked: list[str] = []

    class Service(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(200)
            self.end_headers()

    def check(port: int) -> int:
        environment = {"NEXUS_SYSTEM__HTTP_PORT": str(port)}
        return subprocess.run(
            [sys.executable, *words[1:]], env=environment, capture_output=True, check=False
        ).returncode

    with HTTPServer(("127.0.0.1", 0), Service) as server:
        Thread(target=server.handle_request).start()
        assert (check(server.server_port), asked) == (0, ["/livez"])
    assert check(server.server_port) == 1


def test_passwords_come_from_outside() -> None:
    """A variable that is not set ends compose with what to do; git does not know the file that sets them."""
    told = {name: text for name, text in VARIABLE.findall(TEXT) if text}
    assert told.keys() == {name for name, _ in VARIABLE.findall(TEXT)} == {"REDIS_PASSWORD", "MONGO_PASSWORD"}
    assert all(f"write {name} into .env" in text for name, text in told.items())
    assert ".env" in (ROOT / ".gitignore").read_text("utf-8").splitlines()
    assert SERVICES["redis"]["command"][-2] == "--requirepass"
    assert "--keyFile" in SERVICES["mongo"]["command"][-1]


def test_ports_are_of_this_machine() -> None:
    """Nothing else can reach them."""
    ports = [port for service in SERVICES.values() for port in service["ports"]]
    assert len(ports) == 3
    assert all(port.startswith("127.0.0.1:") for port in ports)


@pytest.mark.parametrize("driver", ["motor", "pymongo"])
async def test_nexus_can_use_what_it_is_given(driver: Any) -> None:
    """Settings, both addresses with their passwords, and the user that MongoDB makes."""
    given = {name: filled(value) for name, value in SERVICES["nexus"]["environment"].items() if value is not None}
    settings = load_settings(None, given)
    passed_on = [name for name, value in SERVICES["nexus"]["environment"].items() if value is None]
    assert "NEXUS_CONSOLE__TOKEN" in passed_on
    load_settings(None, dict.fromkeys(passed_on, "https://x"))
    assert parse_redis_url(settings.bus.url.get_secret_value()).login == {"password": "secret-REDIS_PASSWORD"}
    user = SERVICES["mongo"]["environment"]["MONGO_INITDB_ROOT_USERNAME"]
    uri = settings.database.uri.get_secret_value()
    assert uri.startswith(f"mongodb://{user}:secret-MONGO_PASSWORD@mongo:27017/?replicaSet=rs0&authSource=admin")
    async with open_mongo(uri, settings.database.name, driver=driver):
        pass


def test_addresses_from_outside() -> None:
    """Those that the file tells: the published ports, the members' own names not asked for, the same users."""
    told = dict(re.findall(r'^#   export (\w+)="(.+)"$', TEXT, re.MULTILINE))
    given = {name: re.sub(r"\$([A-Z_]+)", r"secret-\1", value) for name, value in told.items()}
    settings = load_settings(None, given)
    redis = parse_redis_url(settings.bus.url.get_secret_value())
    assert redis.login == {"password": "secret-REDIS_PASSWORD"}
    assert f"127.0.0.1:{redis.addresses[0][1]}:6379" in SERVICES["redis"]["ports"]
    mongo = parse_uri(settings.database.uri.get_secret_value())
    user = SERVICES["mongo"]["environment"]["MONGO_INITDB_ROOT_USERNAME"]
    assert (mongo["username"], mongo["password"]) == (user, "secret-MONGO_PASSWORD")
    assert mongo["options"] == {"directConnection": True, "authSource": "admin"}
    assert f"127.0.0.1:{mongo['nodelist'][0][1]}:27017" in SERVICES["mongo"]["ports"]


def copied() -> list[Path]:
    """What the Dockerfile copies from this folder, as it stands in the files that docker is given."""
    lines = re.findall(r"^COPY (?!--from)(.+)$", (ROOT / "Dockerfile").read_text("utf-8"), re.MULTILINE)
    return [Path(source) for line in lines for source in shlex.split(line)[:-1]]


def test_docker_is_given_what_the_image_copies() -> None:
    """Each of it is there, and no line of .dockerignore keeps it back."""
    lines = (ROOT / ".dockerignore").read_text("utf-8").splitlines()
    given = [Path(line[1:]) for line in lines if line.startswith("!")]
    for source in copied():
        assert (ROOT / source).exists(), source
        assert any(source.is_relative_to(path) for path in given), source


def test_scripts_of_the_image() -> None:
    """Both are in it, and import nothing that is not installed there."""
    files = [found for source in copied() if source.parts[0] == "scripts" for found in python_files(ROOT / source)]
    assert {"database_manager.py", "context_preview.py", "operations.py"} <= {file.name for file in files}
    installed = re.findall(r"^([a-z0-9-]+)==", (ROOT / "requirements" / "base.txt").read_text("utf-8"), re.MULTILINE)
    of_packages = packages_distributions()
    for name in {name for file in files for name in imported(file)} - sys.stdlib_module_names - {"nexus", "dbmanager"}:
        assert {found.lower().replace("_", "-") for found in of_packages[name]} & {*installed}, name


def python_files(path: Path) -> list[Path]:
    """The programs below a path."""
    return [*path.rglob("*.py")] if path.is_dir() else [path]


def imported(file: Path) -> set[str]:
    """The packages that a program imports."""
    nodes = [*ast.walk(ast.parse(file.read_text("utf-8")))]
    names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    names += [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom) and not node.level]
    return {name.split(".")[0] for name in names}

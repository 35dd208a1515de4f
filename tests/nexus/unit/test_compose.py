"""`docker-compose.yml`: images by digest, passwords from outside, ports of this machine, URLs that Nexus can use."""

import re
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

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
    assert parse_redis_url(settings.bus.url.get_secret_value()).login == {"password": "secret-REDIS_PASSWORD"}
    user = SERVICES["mongo"]["environment"]["MONGO_INITDB_ROOT_USERNAME"]
    uri = settings.database.uri.get_secret_value()
    assert uri.startswith(f"mongodb://{user}:secret-MONGO_PASSWORD@mongo:27017/?replicaSet=rs0&authSource=admin")
    async with open_mongo(uri, settings.database.name, driver=driver):
        pass

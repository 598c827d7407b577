"""What systemd, Compose and Kubernetes are given, as far as it can be checked without them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import kubernetes_validate
import pytest
import yaml

from penstock.plugins.access.first_policy import PUBLISHED

ROOT: Final = Path(__file__).resolve().parents[2]
DEPLOY: Final = ROOT / "deploy"
UNIT: Final = DEPLOY / "penstock.service"
OPERATIONS: Final = (ROOT / "docs" / "how-to" / "operations.md").read_text()
DOCKERFILE: Final = (ROOT / "Dockerfile").read_text()
KUSTOMIZATION: Final[dict[str, Any]] = yaml.safe_load(
    (DEPLOY / "kubernetes" / "kustomization.yaml").read_text()
)
MANIFESTS: Final[list[dict[str, Any]]] = [
    manifest
    for name in KUSTOMIZATION["resources"]
    for manifest in yaml.safe_load_all((DEPLOY / "kubernetes" / name).read_text())
]


def systemd_analyze(*words: str) -> str:
    """Return what it says; a complaint fails the test."""
    done = subprocess.run(["systemd-analyze", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    """Without a warning; the program alone stands elsewhere."""
    unit = UNIT.read_text()
    program = "/opt/penstock/bin/penstock"
    assert f"ExecStart={program} broker" in unit
    (tmp_path / UNIT.name).write_text(unit.replace(program, sys.executable))
    assert systemd_analyze("verify", str(tmp_path / UNIT.name)) == ""


def test_the_exposure_is_what_the_page_says() -> None:
    """The figure of systemd itself, from 0 to 10."""
    told = systemd_analyze("security", "--offline=true", str(UNIT))
    figure = re.search(r"exposure level for \S+: (\S+) OK", told)
    assert figure is not None, told
    assert f"gives the unit {figure[1]} of 10" in OPERATIONS


def test_compose_names_what_there_is() -> None:
    """Files that are mounted, the volume of the image, the port and group of the broker."""
    services = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    for service in services.values():
        for volume in service["volumes"]:
            source = volume.split(":")[0]
            assert not source.startswith(".") or (DEPLOY / source).exists(), source
        for port in service["ports"]:
            assert port == "1883:1883" or port.startswith("127.0.0.1:")
    assert "broker:/data" in services["broker"]["volumes"]
    assert "VOLUME /data" in DOCKERFILE
    (group,) = services["prometheus"]["group_add"]
    assert f"USER {group}:{group}" in DOCKERFILE
    scrape = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yaml").read_text())
    (job,) = scrape["scrape_configs"]
    assert job["static_configs"] == [{"targets": ["broker:8081"]}]
    assert "http: 0.0.0.0:8081" in PUBLISHED["console"]
    assert job["authorization"]["credentials_file"] == "penstock/prometheus.token"


@pytest.mark.parametrize("manifest", MANIFESTS, ids=lambda one: one["kind"])
def test_kubernetes_takes_each_manifest(manifest: dict[str, Any]) -> None:
    """By the schemas of its API, with no key that it would ignore."""
    kubernetes_validate.validate(manifest, "1.30", strict=True)


def test_the_probes_and_services_reach_the_broker() -> None:
    """Each by a port that the container names; the user is the image's."""
    ((broker,), services) = (
        [one for one in MANIFESTS if one["kind"] == kind] for kind in ("StatefulSet", "Service")
    )
    pod = broker["spec"]["template"]
    (container,) = pod["spec"]["containers"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert {f"EXPOSE {ports['mqtt']} {ports['console']}"} <= set(DOCKERFILE.splitlines())
    for kind, path in (("startup", "/healthz"), ("liveness", "/healthz"), ("readiness", "/readyz")):
        probe = container[f"{kind}Probe"]["httpGet"]
        assert probe == {"path": path, "port": "console"}
    for service in services:
        assert service["spec"]["selector"] == pod["metadata"]["labels"]
        assert {port["targetPort"] for port in service["spec"]["ports"]} <= set(ports)
    assert broker["spec"]["serviceName"] in {one["metadata"]["name"] for one in services}
    security = pod["spec"]["securityContext"]
    assert f"USER {security['runAsUser']}:{security['runAsGroup']}" in DOCKERFILE
    assert container["image"] in {image["name"] for image in KUSTOMIZATION["images"]}

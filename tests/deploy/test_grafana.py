"""The panels of the dashboard are complete. tests/server runs their queries on a live server."""

import json
from itertools import combinations
from pathlib import Path

import pytest

GRAFANA = Path(__file__).resolve().parents[2] / "deploy" / "grafana"


@pytest.fixture(scope="module")
def dashboard():
    return json.loads((GRAFANA / "tandem.json").read_text())


def test_every_panel_has_a_description_and_a_unit(dashboard):
    for panel in dashboard["panels"]:
        assert panel["title"]
        assert panel["description"]
        assert panel["fieldConfig"]["defaults"]["unit"] in {"s", "short", "percentunit"}
        assert panel["datasource"]["uid"] == "${datasource}"


def test_panels_do_not_overlap(dashboard):
    cells = [
        {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        for place in (panel["gridPos"] for panel in dashboard["panels"])
    ]
    assert not any(one & other for one, other in combinations(cells, 2))
    assert max(x for panel in cells for x, _ in panel) < 24


def test_the_dashboard_uses_the_provisioned_datasource(dashboard):
    provisioned = (GRAFANA / "provisioning" / "datasources" / "prometheus.yaml").read_text()
    datasource = dashboard["templating"]["list"][0]
    assert f"uid: {datasource['current']['value']}" in provisioned

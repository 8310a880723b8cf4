"""The dashboard file is up to date. tests/server runs its queries on a live server."""

import importlib.util
import json
from pathlib import Path

import pytest

GRAFANA = Path(__file__).resolve().parents[2] / "deploy" / "grafana"


@pytest.fixture(scope="module")
def dashboard():
    return json.loads((GRAFANA / "tandem.json").read_text())


def test_the_dashboard_file_is_up_to_date():
    spec = importlib.util.spec_from_file_location("dashboard", GRAFANA / "dashboard.py")
    program = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(program)
    assert (GRAFANA / "tandem.json").read_text() == program.text()


def test_every_panel_has_a_description_and_a_unit(dashboard):
    for panel in dashboard["panels"]:
        assert panel["title"]
        assert panel["description"]
        assert panel["fieldConfig"]["defaults"]["unit"] in {"s", "short", "percentunit"}
        assert panel["datasource"]["uid"] == "${datasource}"

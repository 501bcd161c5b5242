"""The alerts and recording rules, with Prometheus's own promtool."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_peer import ROOT, RULES, promtool

pytestmark = [pytest.mark.slow, pytest.mark.peer]
CASES = Path(__file__).with_name("alert_cases.yaml")
PAGE = ROOT / "docs" / "operations.md"


def alerts() -> list[dict[str, Any]]:
    groups = yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]
    return [rule for group in groups for rule in group["rules"] if "alert" in rule]


def test_prometheus_accepts_the_rules() -> None:
    checked = promtool("check", "rules", "--lint=all", "--lint-fatal", str(RULES))
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_prometheus_accepts_the_configuration_of_compose(tmp_path: Path) -> None:
    """With the rules where compose mounts them."""
    text = (ROOT / "docker" / "compose" / "prometheus.yml").read_text(encoding="utf-8")
    (tmp_path / "prometheus.yml").write_text(text.replace("/etc/prometheus/rules.yaml", str(RULES)), encoding="utf-8")
    checked = promtool("check", "config", str(tmp_path / "prometheus.yml"))
    assert checked.returncode == 0 and "rule files found" in checked.stdout, checked.stdout + checked.stderr


def test_each_alert_fires_in_its_case_and_is_quiet_otherwise() -> None:
    ran = promtool("test", "rules", str(CASES))
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_a_wrong_threshold_fails_the_cases(tmp_path: Path) -> None:
    """The cases judge the rules: an alert that never fires, and one that always does, are found."""
    rules, cases = RULES.read_text(encoding="utf-8"), CASES.read_text(encoding="utf-8")
    (tmp_path / "cases.yaml").write_text(re.sub(r"rule_files: .*", "rule_files: [rules.yaml]", cases), encoding="utf-8")
    for changed in (
        rules.replace("telephony_tts:calls_used:ratio > 0.9", "telephony_tts:calls_used:ratio > 0.97"),
        rules.replace("telephony_tts:frames_late:ratio_5m > 0.01", "telephony_tts:frames_late:ratio_5m > 0.0001"),
    ):
        assert changed != rules
        (tmp_path / "rules.yaml").write_text(changed, encoding="utf-8")
        assert promtool("test", "rules", str(tmp_path / "cases.yaml")).returncode != 0


def test_every_alert_has_a_case_in_which_it_fires_and_one_in_which_it_does_not() -> None:
    cases = yaml.safe_load(CASES.read_text(encoding="utf-8"))["tests"]
    tried = [each for case in cases for each in case["alert_rule_test"]]
    names = {rule["alert"] for rule in alerts()}
    assert {each["alertname"] for each in tried if each["exp_alerts"]} == names
    assert {each["alertname"] for each in tried if not each["exp_alerts"]} == names


def test_every_alert_has_its_row_and_its_section_in_the_operators_page() -> None:
    page = PAGE.read_text(encoding="utf-8")
    for rule in alerts():
        name, severity = rule["alert"], rule["labels"]["severity"]
        assert f"| [{name}](#{name.lower()}) ({severity}) |" in page, name
        assert f"\n### {name}\n" in page, name
        assert rule["annotations"]["runbook"] == f"docs/operations.md#{name.lower()}"
    assert set(re.findall(r"^### (TelephonyTts\w+)$", page, re.MULTILINE)) == {rule["alert"] for rule in alerts()}

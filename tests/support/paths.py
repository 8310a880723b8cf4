"""Folders of the repository that tests read."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROFILES = ROOT / "tandem" / "profiles"
BENCHMARKS = ROOT / "benchmarks"
TOKENIZER = ROOT / "tandem" / "demo" / "tokenizer"
TEMPLATES = ROOT / "tests" / "data" / "chat_templates"

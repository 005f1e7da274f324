"""The house stands: one namespace over four roots."""

from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_no_root_hides_the_others_behind_an_init_file() -> None:
    assert [p for root in ("storage", "service", "tui", "cli") for p in ROOT.glob(f"{root}/gpuwatch/__init__.py")] == []

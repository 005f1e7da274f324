"""What the documents say is what the tables say."""

import re
from pathlib import Path

import pytest

from gpuwatch.service.errors import REFUSALS, RefusalKind
from gpuwatch.storage.knobs import KNOBS, KnobSpec
from gpuwatch.storage.records import Outcome
from gpuwatch.storage.units import say_size

ROOT = Path(__file__).parents[1]


def row(page: str, name: str) -> list[str]:
    (line,) = (line for line in (ROOT / "docs" / page).read_text().splitlines() if line.startswith(f"| `{name}` |"))
    return [cell.strip() for cell in line.strip("|").split(" | ")]


@pytest.mark.parametrize("spec", KNOBS, ids=lambda spec: spec.key)
def test_every_knob_is_documented_with_its_default_range_and_help(spec: KnobSpec) -> None:
    _, default, takes, what = row("knobs.md", spec.key)
    said = (
        say_size(int(spec.default))
        if spec.unit == "bytes" and spec.default
        else f"{spec.default:g}"
        if isinstance(spec.default, float)
        else str(spec.default)
    )
    assert (default, takes, what.rstrip(" |")) == (said, spec.range_text, spec.help)


@pytest.mark.parametrize(("reason", "kind"), REFUSALS.items(), ids=str)
def test_every_refusal_is_documented_with_its_status(reason: Outcome, kind: RefusalKind) -> None:
    _, status, retry, title = row("refusals.md", reason)
    assert (str(kind.status) in status, retry, title.rstrip(" |")) == (True, "yes" if kind.retry else "no", kind.title)


def test_the_readme_shows_pictures_that_exist_and_links_that_lead_somewhere() -> None:
    text = (ROOT / "README.md").read_text()
    targets = [target for target in re.findall(r"\]\(([^)#]+)\)", text) if "://" not in target]
    assert targets
    assert [target for target in targets if not (ROOT / target).exists()] == []

"""From a target's text to a model, and one line that says what is wrong where there is none."""

import itertools
import sys
from collections.abc import Callable
from contextlib import chdir
from pathlib import Path

import pytest

from gpuwatch.service.models.loading import CannotLoad, resolve

_names = itertools.count()
GOOD = """
class Echo:
    name = "echo"
    lane = "default"
    def load(self, device): pass
    def dims(self, body, content_type): return {}
    def decode(self, body, content_type): return body
    def infer(self, batch): return batch
    def encode(self, result): return result

instance = Echo()

class Needy(Echo):
    def __init__(self): raise OSError("no weights here")

class Partial:
    name = "partial"

class Numbered(Echo):
    name = 5

number = 4
"""


@pytest.fixture
def target_of(tmp_path: Path) -> Callable[..., str]:
    """Write a module of its own name and give the target of one of its attributes."""

    def make(attribute: str, text: str = GOOD) -> str:
        name = f"user_module_{next(_names)}"
        (tmp_path / f"{name}.py").write_text(text)
        return f"{name}:{attribute}"

    return make


def loading(directory: Path, target: str) -> object:
    before = list(sys.path)
    try:
        with chdir(directory):
            return resolve(target)()
    finally:
        sys.path[:] = before


def test_a_class_is_made_anew_each_time_and_an_instance_is_itself(
    tmp_path: Path, target_of: Callable[..., str]
) -> None:
    with chdir(tmp_path):
        make = resolve(target_of("Echo"))
        assert make() is not make()
        make = resolve(target_of("instance"))
        assert make() is make()
    sys.path.remove(str(tmp_path))


@pytest.mark.parametrize(
    ("attribute", "says"),
    [
        ("Absent", "has no Absent"),
        ("Needy", "raised OSError: no weights here"),
        ("Partial", "lacks lane, load, dims, decode, infer, encode"),
        ("Numbered", "name is no text"),
        ("number", "lacks name, lane"),
    ],
)
def test_what_is_no_model_is_told(tmp_path: Path, target_of: Callable[..., str], attribute: str, says: str) -> None:
    with pytest.raises(CannotLoad, match=says) as error:
        loading(tmp_path, target_of(attribute))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("import gone_for_good", "No module named 'gone_for_good'"),
        ("1 / 0", "raised ZeroDivisionError"),
        ("def f(:", "raised SyntaxError"),
    ],
)
def test_a_module_that_cannot_be_imported_is_told(
    tmp_path: Path, target_of: Callable[..., str], text: str, says: str
) -> None:
    with pytest.raises(CannotLoad, match=says):
        loading(tmp_path, target_of("Echo", text))


@pytest.mark.parametrize(
    "target", ["", ":", "nothing", "nothing:", ":Model", "builtin:", "builtin:nothing", "no_such_module:Model", "..x:Y"]
)
def test_what_is_no_target_is_told(tmp_path: Path, target: str) -> None:
    with pytest.raises(CannotLoad):
        loading(tmp_path, target)


def test_the_detector_is_built_in() -> None:
    assert resolve("builtin:detector")().name == "detector"

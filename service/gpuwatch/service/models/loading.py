"""From ``builtin:NAME`` or ``package.module:attribute`` to a model, with an error that says what is wrong."""

import importlib
import inspect
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from gpuwatch.service.models.base import Model

BUILTIN: Final[Mapping[str, str]] = {"detector": "gpuwatch.service.models.detector:Detector"}
_NEEDED: Final = ("name", "lane", "load", "dims", "decode", "infer", "encode")


class CannotLoad(Exception):
    """The target names no usable model; the message says why."""


def resolve(target: str) -> Callable[[], Model]:
    """Give what makes the model: a class, or a function that gives the instance named. Raises `CannotLoad`."""
    found = _attribute(_builtin(target))
    if inspect.isclass(found):
        return lambda: _checked(target, _made(target, found))
    return lambda: _checked(target, found)


def _builtin(target: str) -> str:
    if not target.startswith("builtin:"):
        return target
    name = target.removeprefix("builtin:")
    if name not in BUILTIN:
        raise CannotLoad(f"there is no {target}; built in are {', '.join(f'builtin:{n}' for n in BUILTIN)}")
    return BUILTIN[name]


def _attribute(target: str) -> Any:  # noqa: ANN401 - whatever the module holds
    module_name, colon, attribute = target.partition(":")
    if not (module_name and colon and attribute):
        raise CannotLoad(f"{target!r} is no target; write package.module:attribute or builtin:detector")
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))  # as `python -m` and uvicorn do: the user's module lies where they stand
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise CannotLoad(f"{target}: cannot import {module_name}: {error}") from error
    except Exception as error:
        raise CannotLoad(f"{target}: importing {module_name} raised {type(error).__name__}: {error}") from error
    try:
        return getattr(module, attribute)
    except AttributeError:
        raise CannotLoad(f"{target}: module {module_name} has no {attribute}") from None


def _made(target: str, kind: type) -> Any:  # noqa: ANN401 - checked by the caller
    try:
        return kind()
    except Exception as error:
        raise CannotLoad(f"{target}: {kind.__name__}() raised {type(error).__name__}: {error}") from error


def _checked(target: str, model: Any) -> Model:  # noqa: ANN401 - this is the check
    missing = [name for name in _NEEDED if not hasattr(model, name)]
    if missing:
        raise CannotLoad(f"{target} is no model: it lacks {', '.join(missing)}")
    for name in ("name", "lane"):
        if not isinstance(getattr(model, name), str):
            raise CannotLoad(f"{target} is no model: its {name} is no text")
    return model  # type: ignore[no-any-return]  # just checked, by its attributes

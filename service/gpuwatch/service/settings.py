"""Configuration: read once, frozen. File (``gpuwatch.toml``), environment (``GPUWATCH_…``), command line: later wins.

Nested names use ``__`` in the environment (``GPUWATCH_SIM__NEIGHBOUR_BYTES=256MiB``). ``[knobs]`` holds start values,
as dotted keys or nested tables; sizes and durations may be written with their units.
"""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic_settings import (
    BaseSettings,
    InitSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)
from pydantic_settings import (
    SettingsError as SourceError,
)

from gpuwatch.storage.errors import BadValue
from gpuwatch.storage.units import parse_size

DEFAULT_FILE: Final = "gpuwatch.toml"


class SettingsError(Exception):
    """The configuration cannot be used; the message names every bad key."""


def _bytes(value: object) -> object:
    return parse_size(value) if isinstance(value, str) else value


Size = Annotated[int, BeforeValidator(_bytes), Field(ge=0)]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ModelSettings(_Part):
    """``[models.NAME]``: what to serve under that name."""

    target: str
    version: str | None = None
    lane: str | None = None


class InferenceSettings(_Part):
    """``[inference]``: the public listener. A body must arrive within ``body_timeout_s``; 0 is no limit."""

    max_body_bytes: Size = 64 << 20
    body_timeout_s: float = Field(default=30.0, ge=0)
    lane_header: bool = False


class AdminSettings(_Part):
    """``[admin]``: the operator's listener. Hosts beside loopback that a request may name."""

    allowed_hosts: tuple[str, ...] = ()


class RefusalSettings(_Part):
    """``[refusals]``: whether problem bodies carry figures of the card and the queue."""

    figures: bool = True


class RecordSettings(_Part):
    """``[record]``: whether an error's text is stored beside its type."""

    error_text: bool = False


class SimSettings(_Part):
    """``[sim]``: the simulated card. A neighbour is scripted, and labelled so everywhere."""

    context_bytes: Size | None = None
    neighbour_bytes: Size = 0
    neighbour_first_s: float = Field(default=5.0, ge=0)
    neighbour_every_s: float = Field(default=10.0, gt=0)
    neighbour_for_s: float = Field(default=4.0, gt=0)


class Settings(BaseSettings):
    """Everything that is fixed while the service runs."""

    model_config = SettingsConfigDict(
        env_prefix="GPUWATCH_",
        env_nested_delimiter="__",
        frozen=True,
        extra="forbid",
        nested_model_default_partial_update=True,
    )

    targets: tuple[str, ...] = ()
    models: dict[str, ModelSettings] = Field(default_factory=dict)
    lanes: tuple[str, ...] = ()
    gpu: str = "auto"
    host: str = "127.0.0.1"
    port: int = Field(default=8000, ge=0, le=65535)
    admin_host: str = "127.0.0.1"
    admin_port: int = Field(default=8001, ge=0, le=65535)
    data_dir: Path | None = None
    name: str = ""
    grace_s: float = Field(default=30.0, ge=0)
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    knobs: dict[str, Any] = Field(default_factory=dict)
    inference: InferenceSettings = InferenceSettings()
    admin: AdminSettings = AdminSettings()
    refusals: RefusalSettings = RefusalSettings()
    record: RecordSettings = RecordSettings()
    sim: SimSettings = SimSettings()

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Order the sources: command line, environment, file."""
        del dotenv_settings, file_secret_settings
        assert isinstance(init_settings, InitSettingsSource)  # noqa: S101 - pydantic-settings gives no other
        given = dict(init_settings.init_kwargs)
        document = given.pop("_document", {})
        return (
            InitSettingsSource(settings_cls, init_kwargs=given),
            env_settings,
            InitSettingsSource(settings_cls, init_kwargs=document),
        )

    @classmethod
    def load(cls, config: Path | None = None, overrides: Mapping[str, object] | None = None) -> "Settings":
        """Read file, environment and command line. Raises `SettingsError`."""
        given: dict[str, Any] = {k: v for k, v in (overrides or {}).items() if v is not None and v != []}
        try:
            return cls(_document=_read(config), **given)  # type: ignore[call-arg]  # a source of its own, see above
        except ValidationError as bad:
            lines = (f"{'.'.join(str(p) for p in e['loc'])}: {e['msg']}" for e in bad.errors())
            raise SettingsError("; ".join(lines)) from None
        except (SourceError, BadValue) as bad:
            raise SettingsError(str(bad)) from None

    @property
    def knob_values(self) -> dict[str, Any]:
        """Start values by dotted key, whatever way they were written."""
        return dict(_flat("", self.knobs))


def _read(config: Path | None) -> dict[str, Any]:
    path = config or Path(DEFAULT_FILE)
    if config is None and not path.is_file():
        return {}
    try:
        return tomllib.loads(path.read_text())
    except OSError as error:
        raise SettingsError(f"{path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path}: {error}") from None


def _flat(prefix: str, table: Mapping[str, Any]) -> list[tuple[str, Any]]:
    pairs: list[tuple[str, Any]] = []
    for key, value in table.items():
        name = f"{prefix}{key}"
        pairs += _flat(f"{name}.", value) if isinstance(value, Mapping) else [(name, value)]
    return pairs

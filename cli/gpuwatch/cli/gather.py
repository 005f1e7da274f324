"""The edge of `gpuwatch doctor`: looks at this machine and states `Facts`.

Rules: looking changes nothing (no directory is made, no file written), and nothing that is missing or broken stops the
rest from being looked at.
"""

import importlib.util
import os
import shutil
import sqlite3
import sys
import time
import warnings
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from gpuwatch.cli.findings import Facts

ASKED_FOR = (
    "PYTORCH_ALLOC_CONF",
    "PYTORCH_CUDA_ALLOC_CONF",
    "CUDA_VISIBLE_DEVICES",
    "WEB_CONCURRENCY",
    "UVICORN_WORKERS",
)


def gather(data_dir: Path, database: Path, environment: Mapping[str, str] = os.environ) -> Facts:
    """State what is so on this machine. Takes a second or two where torch is installed."""
    error, free_bytes = place(data_dir)
    return Facts(
        python=sys.version_info[:3],
        **_torch(),
        **_nvml(),
        old_pynvml_version=_installed("pynvml"),
        environment={name: environment[name] for name in ASKED_FOR if name in environment},
        data_dir=str(data_dir),
        data_dir_error=error,
        free_disk_bytes=free_bytes,
        sqlite=_sqlite(),
        now=time.time(),
        last_written_at=_written_at(database),
    )


def place(directory: Path) -> tuple[str | None, int | None]:
    """Say why ``directory`` cannot be written (``None`` if it can) and how many bytes are free there.

    A directory that does not exist yet is judged by its nearest parent that does: it would be made there.
    """
    standing = next((p for p in (directory, *directory.absolute().parents) if p.exists()), None)
    if standing is None:
        return "no such place", None
    free_bytes = shutil.disk_usage(standing).free
    if not standing.is_dir():
        return f"{standing} is a file", free_bytes
    if not os.access(standing, os.W_OK | os.X_OK):
        return f"{standing} is not writable by this user", free_bytes
    return None, free_bytes


def _torch() -> dict[str, Any]:
    if importlib.util.find_spec("torch") is None:
        return {}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns about the old pynvml; that is a finding of its own
            import torch  # noqa: PLC0415 - takes over a second, and only this command needs it
    except Exception as error:  # noqa: BLE001 - a broken install raises anything, and that is the finding
        return {"torch_error": f"{type(error).__name__}: {error}"}
    return {
        "torch_version": torch.__version__,
        "torch_cuda_build": torch.version.cuda,
        "torch_cuda_available": torch.cuda.is_available(),
        "detector_weights": _weights(),
    }


def _weights() -> bool | None:
    from gpuwatch.service.models.mtcnn import WeightsMissing, weights_dir  # noqa: PLC0415 - loads torch

    try:
        return weights_dir().is_dir()
    except WeightsMissing:
        return False


def _nvml() -> dict[str, Any]:
    import pynvml  # type: ignore[import-untyped]  # nvidia-ml-py has no types  # noqa: PLC0415 - only this command needs it

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        if error.value == pynvml.NVML_ERROR_LIBRARY_NOT_FOUND:
            return {"nvml_no_driver": True}
        return {"nvml_error": str(error)}
    try:
        handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
        return {
            "nvml_driver": pynvml.nvmlSystemGetDriverVersion(),
            "nvml_cards": tuple(pynvml.nvmlDeviceGetName(handle) for handle in handles),
        }
    except pynvml.NVMLError as error:
        return {"nvml_error": str(error)}
    finally:
        pynvml.nvmlShutdown()


def _installed(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def _sqlite() -> tuple[int, int, int]:
    major, minor, patch = sqlite3.sqlite_version_info
    return (major, minor, patch)


def _written_at(database: Path) -> float | None:
    try:
        return database.stat().st_mtime
    except OSError:
        return None

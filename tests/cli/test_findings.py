"""What the doctor thinks of a machine."""

from dataclasses import replace

import pytest

from gpuwatch.cli.findings import Facts, Finding, Level, findings, worst

HEALTHY = Facts(
    python=(3, 11, 9),
    torch_version="2.13.0+cu126",
    torch_cuda_build="12.6",
    torch_cuda_available=True,
    nvml_driver="560.35",
    nvml_cards=("NVIDIA RTX 3090",),
    data_dir="/data",
    free_disk_bytes=50 << 30,
    sqlite=(3, 40, 1),
    now=1.8e9,
    last_written_at=1.8e9 - 5,
    detector_weights=True,
)


def judge(facts: Facts, check: str) -> list[Finding]:
    return [f for f in findings(facts) if f.check == check]


def test_a_healthy_machine_has_nothing_but_ok() -> None:
    assert {f.level for f in findings(HEALTHY)} == {Level.OK}
    assert worst(findings(HEALTHY)) is Level.OK


BARE = Facts(python=(3, 11, 0), nvml_no_driver=True, data_dir="/d", sqlite=(3, 40, 1), now=1.8e9)


def test_a_box_with_neither_torch_nor_driver_has_no_problem() -> None:
    assert worst(findings(BARE)) is Level.NOTE


@pytest.mark.parametrize(
    ("facts", "check", "level", "said"),
    [
        (replace(HEALTHY, python=(3, 10, 2)), "python", Level.PROBLEM, "older than 3.11"),
        (replace(HEALTHY, torch_version="2.5.1"), "torch", Level.PROBLEM, "older than 2.6"),
        (replace(HEALTHY, torch_version=None, torch_error="libcudart.so"), "torch", Level.PROBLEM, "libcudart.so"),
        (replace(HEALTHY, torch_cuda_build=None, torch_cuda_available=False), "cuda", Level.WARNING, "CPU build"),
        (replace(HEALTHY, torch_cuda_available=False), "cuda", Level.PROBLEM, "cannot use it"),
        (
            replace(HEALTHY, torch_cuda_available=False, environment={"CUDA_VISIBLE_DEVICES": ""}),
            "cuda", Level.PROBLEM, "hides every card",
        ),
        (replace(HEALTHY, nvml_error="Unknown Error"), "nvml", Level.PROBLEM, "Unknown Error"),
        (replace(HEALTHY, nvml_no_driver=True), "nvml", Level.NOTE, "no NVIDIA driver"),
        (replace(HEALTHY, old_pynvml_version="11.5.0"), "pynvml", Level.WARNING, "deprecated"),
        (replace(HEALTHY, data_dir_error="Permission denied"), "data-dir", Level.PROBLEM, "Permission denied"),
        (replace(HEALTHY, free_disk_bytes=500 << 20), "data-dir", Level.WARNING, "500 MiB"),
        (replace(HEALTHY, free_disk_bytes=5 << 20), "data-dir", Level.PROBLEM, "5 MiB"),
        (replace(HEALTHY, sqlite=(3, 31, 1)), "sqlite", Level.PROBLEM, "STRICT"),
        (replace(HEALTHY, now=1000.0), "clock", Level.PROBLEM, "before 2025"),
        (replace(HEALTHY, last_written_at=1.8e9 + 3600), "clock", Level.WARNING, "3600 s in the future"),
        (replace(HEALTHY, detector_weights=False), "weights", Level.NOTE, "no weights"),
        (replace(HEALTHY, environment={"WEB_CONCURRENCY": "4"}), "workers", Level.WARNING, "4 processes"),
        (replace(HEALTHY, environment={"UVICORN_WORKERS": "2"}), "workers", Level.WARNING, "2 processes"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_found_with_its_level_and_a_remedy(facts: Facts, check: str, level: Level, said: str) -> None:
    (found,) = (f for f in judge(facts, check) if f.level is not Level.OK)
    assert found.level is level
    assert said in found.text
    assert found.remedy


@pytest.mark.parametrize("workers", ["1", "0", ""])
def test_one_worker_is_no_finding(workers: str) -> None:
    assert judge(replace(HEALTHY, environment={"WEB_CONCURRENCY": workers}), "workers") == []


def test_expandable_segments_with_a_split_size_is_a_problem_under_either_name() -> None:
    both = "expandable_segments:True,max_split_size_mb:128"
    for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):
        (found,) = judge(replace(HEALTHY, environment={name: both}), "allocator")
        assert found.level is Level.PROBLEM
        assert name in found.text


@pytest.mark.parametrize(
    "value",
    ["expandable_segments:True", "max_split_size_mb:128", "expandable_segments:False,max_split_size_mb:64"],
)
def test_one_of_the_two_alone_is_fine(value: str) -> None:
    (found,) = judge(replace(HEALTHY, environment={"PYTORCH_ALLOC_CONF": value}), "allocator")
    assert found.level is Level.OK


def test_both_names_of_the_allocator_setting_are_a_warning() -> None:
    environment = {"PYTORCH_ALLOC_CONF": "expandable_segments:True", "PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64"}
    (found,) = judge(replace(HEALTHY, environment=environment), "allocator")
    assert found.level is Level.WARNING
    assert found.remedy == "keep one: unset PYTORCH_CUDA_ALLOC_CONF"


def test_every_finding_that_is_not_ok_says_what_to_do() -> None:
    ill = replace(
        BARE, python=(3, 9, 0), torch_error="broken", environment={"WEB_CONCURRENCY": "8"}, data_dir_error="denied",
        sqlite=(3, 8, 0), now=0.0, detector_weights=False,
    )  # fmt: skip
    assert all(f.remedy for f in findings(ill) if f.level is not Level.OK)
    assert worst(findings(ill)) is Level.PROBLEM

"""How fast a knob takes hold under load, and what a SIGTERM leaves behind: prints figures.

Fifty clients post a photograph to a service on a simulated card; a model that counts its forwards says how many really
run. The lane's concurrency goes 8 > 1 > 8 by `gpuwatch knobs set`; then the service gets SIGTERM under load. Times are
milliseconds on one monotonic clock of this machine.
"""

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import httpx

from gpuwatch.cli.photos import demo_bodies
from gpuwatch.storage.datadir import DataDir
from gpuwatch.storage.reader import Reader

CLIENTS = 50
LANE = "lanes.image.concurrency"


async def client(url: str, body: bytes, seen: Counter[str], stop: asyncio.Event) -> None:
    """Post one after the other until told to stop; count what came back."""
    async with httpx.AsyncClient(timeout=60) as http:
        while not stop.is_set():
            try:
                answer = await http.post(url, content=body, headers={"content-type": "image/jpeg"})
                seen[str(answer.json().get("reason", "ok"))] += 1
                if answer.is_error:
                    await asyncio.sleep(0.2)
            except httpx.HTTPError as error:
                seen[type(error).__name__] += 1
                return


def command(*words: str, home: Path) -> str:
    """Run the gpuwatch command and give what it printed."""
    done = subprocess.run(
        [sys.executable, "-m", "gpuwatch.cli", *words, "--data-dir", str(home)],
        check=True,
        capture_output=True,
        text=True,
    )
    return done.stdout.strip()


def forwards(log: Path) -> list[tuple[str, float, int]]:
    """Read the model's own log."""
    lines = (line.split() for line in log.read_text().splitlines())
    return [(what, float(at), int(running)) for what, at, running in lines]


def report(log: Path, turned_s: float, limit: int, until_s: float) -> None:
    """Print what the model saw after a turn that the service decided at ``turned_s``, before its journal's fsync."""
    after = [row for row in forwards(log) if row[0] == "begin" and turned_s <= row[1] < until_s]
    above = [row for row in after if row[2] > limit]
    late = (max(row[1] for row in above) - turned_s) * 1000 if above else 0.0
    print(f"  limit {limit}: {len(after)} forwards began after it, {len(above)} above it; the last {late:.1f} ms in")


async def main() -> None:
    """Run it."""
    root = Path(tempfile.mkdtemp(prefix="gpuwatch-bench-"))
    home, log = root / "data", root / "forwards.log"
    log.touch()
    environment = os.environ | {"COUNTED_LOG": str(log), "PYTHONPATH": str(Path(__file__).parent / "models")}
    service = subprocess.Popen(
        [sys.executable, "-m", "gpuwatch.cli", "serve", "counted:Counted", "--gpu", "sim:4GiB", "--port", "0",
         "--admin-port", "0", "--data-dir", str(home)],
        env=environment | {"GPUWATCH_KNOBS": f'{{"{LANE}": 8, "lanes.image.queue_timeout_s": 60}}'},
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    while (info := DataDir(home).service()) is None:
        await asyncio.sleep(0.1)
    body = demo_bodies()[0].content
    seen: Counter[str] = Counter()
    stop = asyncio.Event()
    clients = [asyncio.create_task(client(f"{info.inference_url}/predict", body, seen, stop)) for _ in range(CLIENTS)]
    await asyncio.sleep(6)
    for limit in (1, 8, 1, 8):
        began_s = time.monotonic()
        await asyncio.to_thread(command, "knobs", "set", f"{LANE}={limit}", "--note", "bench", home=home)
        ended_s = time.monotonic()
        await asyncio.sleep(5)
        decided_s = Reader(home / "telemetry.db").knob_changes(limit=1)[0].at - (time.time() - time.monotonic())
        took = f"{(ended_s - began_s) * 1000:.0f} ms, {(ended_s - decided_s) * 1000:.0f} ms of them after the decision"
        print(f"knobs set {LANE}={limit}: the whole command took {took}")
        report(log, decided_s, limit, time.monotonic())
    print(command("knobs", "history", home=home))

    before = sum(seen.values())
    service.send_signal(signal.SIGTERM)
    asked_s = time.monotonic()
    status = await asyncio.to_thread(service.wait)
    ended_s = time.monotonic()
    stop.set()
    await asyncio.gather(*clients, return_exceptions=True)
    rows = forwards(log)
    begun, ended = (sum(what == kind for what, _, _ in rows) for kind in ("begin", "end"))
    counts: Counter[str] = Counter()
    for outcomes in Reader(home / "telemetry.db").outcome_counts().values():
        counts.update({str(outcome): count for outcome, count in outcomes.items()})
    print(
        f"SIGTERM under load: exit {status} after {ended_s - asked_s:.1f} s, {sum(seen.values()) - before} more answers"
    )
    print(f"  forwards begun {begun}, ended {ended}; service.json gone: {not (home / 'service.json').exists()}")
    print(f"  the clients saw {dict(seen)}")
    print(f"  the database holds {dict(counts)}")
    print(f"  most forwards at once, as the model counted: {max(running for _, _, running in rows)} (limit 8)")


if __name__ == "__main__":
    asyncio.run(main())

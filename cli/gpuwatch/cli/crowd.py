"""The demo's clients as a process: ``python -m gpuwatch.cli.crowd --url …`` posts photographs and prints a summary.

Rules: the summary is one JSON object on stdout, whatever ends the sending.
"""

import argparse
import asyncio
import json
import signal
import sys
from collections.abc import Sequence
from dataclasses import asdict

from gpuwatch.cli.photos import PhotosMissing, demo_bodies
from gpuwatch.cli.traffic import Summary, Traffic


def main(arguments: Sequence[str] | None = None) -> int:
    """Send the demo's photographs to a URL; print the summary as JSON. SIGTERM and SIGINT end the sending early."""
    parser = argparse.ArgumentParser(prog="python -m gpuwatch.cli.crowd", description=__doc__.split("\n")[0])
    parser.add_argument("--url", required=True, help="where to POST, e.g. http://127.0.0.1:8000/predict")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="how long to send; default: until stopped")
    parser.add_argument("--rate", type=float, default=2.5, help="arrivals a second, on average")
    parser.add_argument("--max-in-flight", type=int, default=64)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--prefix", default="traffic", help="request ids are PREFIX-N")
    given = parser.parse_args(arguments)

    async def send() -> Summary:
        traffic = Traffic(
            given.url,
            demo_bodies(),
            rate_per_s=given.rate,
            duration_s=given.seconds,
            max_in_flight=given.max_in_flight,
            seed=given.seed,
            prefix=given.prefix,
        )
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, traffic.stop)
        return await traffic.run()

    try:
        summary = asyncio.run(send())
    except PhotosMissing as missing:
        sys.stderr.write(f"{missing}\n")
        return 1
    sys.stdout.write(json.dumps(asdict(summary)) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

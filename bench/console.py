"""What the console costs: CPU seconds a second over the scripted scene, live at 4 states a second, 120x40 cells.

Headless, so what the terminal itself costs is not in it; the scene's own making of states is. Prints one line.
"""

import asyncio
import time

from gpuwatch.tui.app import Console
from gpuwatch.tui.screenshots import settled
from gpuwatch.tui.sources import scene
from gpuwatch.tui.sources.scripted import PERIOD_S, ScriptedSource

SECONDS = 15.0


async def main() -> None:
    """Run the console for `SECONDS` and print its share of one core."""
    began_s = time.time()
    console = Console(ScriptedSource(live=True), clock=lambda: scene.NOW + time.time() - began_s)
    async with console.run_test(size=(120, 40)) as pilot:
        await settled(console, pilot)
        wall_s, cpu_s = time.perf_counter(), time.process_time()
        await asyncio.sleep(SECONDS)
        wall_s, cpu_s = time.perf_counter() - wall_s, time.process_time() - cpu_s
    print(f"console at {1 / PERIOD_S:g} Hz, 120x40: {100 * cpu_s / wall_s:.1f} % of a core over {wall_s:.0f} s")


if __name__ == "__main__":
    asyncio.run(main())

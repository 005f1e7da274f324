"""`python -m gpuwatch.cli`: the command, for an interpreter whose scripts are not on the path."""

from gpuwatch.cli.main import run

if __name__ == "__main__":
    run()

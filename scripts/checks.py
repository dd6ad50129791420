"""What the checks have in common: running a program, and a failure that names what did not hold."""

import subprocess
from pathlib import Path


class Failure(Exception):
    """A check that did not hold; the message is the cell of the table."""


def run(*command, cwd: Path | None = None) -> None:
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False, cwd=cwd)
    if done.returncode != 0:
        said = (done.stderr or done.stdout).strip().splitlines() or ["no message"]
        raise Failure(f"exit {done.returncode}: {said[-1][:120]}")


def attempt(check) -> str:
    """The figure of a check, or what went wrong: one family never hides the others."""
    try:
        return check()
    except Failure as failure:
        return f"FAIL {failure}"
    except Exception as error:  # noqa: BLE001
        return f"FAIL {type(error).__name__}: {str(error).splitlines()[0][:120]}"

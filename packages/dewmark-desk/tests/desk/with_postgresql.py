"""Run a command against a throw-away PostgreSQL server: ``python -m tests.desk.with_postgresql COMMAND …``.

The server lives in a temporary folder, listens on a socket there and on no network address, and is deleted at
the end. ``DEWMARK_TEST_POSTGRESQL`` has its URL. PostgreSQL refuses to run as root, so root runs it as
``postgres``.
"""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path


def programs() -> Path:
    """The folder of initdb and pg_ctl, which Debian does not put on the PATH."""
    found = shutil.which("pg_ctl")
    if found:
        return Path(found).parent
    versions = sorted(Path("/usr/lib/postgresql").glob("*/bin/pg_ctl"), key=lambda path: int(path.parts[-3]))
    if not versions:
        raise SystemExit("no PostgreSQL server here: install postgresql, or run make test-postgresql")
    return versions[-1].parent


def main(command: Sequence[str]) -> int:
    folder = Path(tempfile.mkdtemp(prefix="dewmark-postgresql-"))
    user = "postgres" if os.geteuid() == 0 else pwd.getpwuid(os.geteuid()).pw_name
    prefix = ["runuser", "-u", user, "--"] if os.geteuid() == 0 else []
    if prefix:
        shutil.chown(folder, user)
    folder.chmod(0o755)
    data, bin_ = folder / "data", programs()

    def run(program: str, *arguments: str) -> None:
        made = subprocess.run(
            [*prefix, str(bin_ / program), *arguments],
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
        )
        if made.returncode:
            raise SystemExit(f"{program} failed: {made.stdout}{made.stderr}")

    try:
        run("initdb", "-D", str(data), "--auth=trust", "--encoding=UTF8", "--no-sync")
        settings = f"-k {folder} -c listen_addresses='' -c fsync=off"
        run("pg_ctl", "-D", str(data), "-l", str(folder / "log"), "-o", settings, "-w", "start")
        try:
            url = f"postgresql+psycopg://{user}@/postgres?host={folder}"
            environment = {**os.environ, "DEWMARK_TEST_POSTGRESQL": url}
            return subprocess.run(list(command), env=environment, check=False).returncode
        finally:
            run("pg_ctl", "-D", str(data), "-m", "immediate", "stop")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Run a command on a terminal of its own, as a person would, and type answers."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

#: Makes the terminal on its standard input the controlling one, so that Ctrl-C reaches what it becomes.
_ON_TERMINAL = (
    "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execv(sys.argv[1], sys.argv[1:])"
)
CTRL_C = b"\x03"
#: Seconds after which a person presses Ctrl-C once more.
_PRESS_AGAIN = 2.0


@dataclass(frozen=True)
class Ended:
    """How a command ended; ``screen`` is all that it showed, what was typed included."""

    code: int
    screen: str


def on_terminal(
    arguments: Sequence[str],
    *,
    prompt: str | None = None,
    answers: Sequence[bytes] = (),
    columns: int = 80,
    environ: Mapping[str, str] | None = None,
    timeout: float = 60.0,
) -> Ended:
    """Run ``python ARGUMENTS`` on a terminal; each time that ``prompt`` shows up, the next answer is typed.

    Raises:
      AssertionError: when it does not end in time, or asks more or less often than there are answers.
    """
    master, slave = pty.openpty()
    deadline = time.monotonic() + timeout
    process = None
    try:
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        process = subprocess.Popen(
            [sys.executable, "-c", _ON_TERMINAL, sys.executable, *arguments],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            env={**os.environ, **(environ or {})},
        )
        os.close(slave)
        slave = -1
        left, screen, seen, typed = list(answers), b"", 0, b""
        while True:
            rest = max(0.0, deadline - time.monotonic())
            ready, _, _ = select.select([master], [], [], min(rest, _PRESS_AGAIN) if typed == CTRL_C else rest)
            if not ready and rest and typed == CTRL_C:
                # It came between the prompt and the read, where Python notes it and goes on to wait for a line.
                os.write(master, CTRL_C)
                continue
            assert ready, f"it did not end; it shows {screen.decode(errors='replace')!r}"
            try:
                data = os.read(master, 65_536)
            except OSError as error:
                if error.errno != errno.EIO:
                    raise
                # Linux says so when nobody holds the other side any more.
                break
            if not data:
                break
            screen += data
            if prompt is not None and (found := screen.find(prompt.encode(), seen)) >= 0:
                seen = found + len(prompt)
                assert left, f"it asks once more than expected: {screen.decode(errors='replace')!r}"
                typed = left.pop(0)
                os.write(master, typed)
        code = process.wait(max(0.1, deadline - time.monotonic()))
        shown = screen.decode().replace("\r\n", "\n")
        assert not left, f"it asked less often than expected: {shown!r}"
        return Ended(code, shown)
    finally:
        for descriptor in (master, slave):
            if descriptor >= 0:
                with contextlib.suppress(OSError):
                    os.close(descriptor)
        if process is not None and process.poll() is None:
            process.kill()
            process.wait()

"""Ends what a run of the tests left behind when it was ended itself, amid a test.

Engines outlive node agents on purpose, and a run that is interrupted tears nothing down. So each process of
the tests has one of these beside it: at the end of its standard input it kills every process that has to do
with the run's temporary folder, by its arguments, its environment or its working folder.
"""

import os
import sys
import time

import psutil

TRIES = 20


def main(folder: str) -> None:
    sys.stdin.buffer.read()
    for _ in range(TRIES):
        left = [process for process in psutil.process_iter() if _belongs(process, folder)]
        if not left:
            return
        for process in left:
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue
        time.sleep(0.5)  # a guard that lost its engine may be about to start something


def _belongs(process: psutil.Process, folder: str) -> bool:
    try:
        if process.pid == os.getpid():
            return False
        said = [*process.cmdline(), *process.environ().values(), process.cwd()]
    except psutil.Error:  # gone, a zombie, or somebody else's
        return False
    return any(folder + os.sep in one for one in said)


if __name__ == "__main__":
    main(sys.argv[1])

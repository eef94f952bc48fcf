"""The local broker's jars: fetched once by Maven into a cache folder named by the pom's digest."""

import contextlib
import fcntl
import hashlib
import logging
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from agents.kafka_probe import BrokerUnavailable

log = logging.getLogger(__name__)

KAFKA_FILES = Path(__file__).resolve().parent.parent / "docker" / "kafka"
POM = KAFKA_FILES / "pom.xml"
JAVA_NEEDED = 17
FETCH_TIMEOUT_S = 900.0

GET_JAVA = "Debian/Ubuntu: apt-get install openjdk-17-jre-headless; macOS: brew install openjdk@17"
GET_MAVEN = "Debian/Ubuntu: apt-get install maven; macOS: brew install maven"


def find_java() -> str:
    """Path of a Java of 17 or newer. Raises BrokerUnavailable otherwise."""
    java = shutil.which("java")
    if java is None:
        raise BrokerUnavailable(f"java is not on PATH ({GET_JAVA})")
    told = subprocess.run([java, "-version"], capture_output=True, text=True, check=False)
    version = re.search(r'version "(\d+)', told.stderr)
    if version is None or int(version[1]) < JAVA_NEEDED:
        raise BrokerUnavailable(f"java at {java} is not {JAVA_NEEDED} or newer ({GET_JAVA})")
    return java


def fetch_jars(cache_dir: Path) -> Path:
    """Folder of the pom's jars below `cache_dir`, fetched if it is not there yet (55 MB).

    Whole or absent: Maven fills a folder beside it, which is then renamed; a lock file makes a second starter
    wait for the first. Raises BrokerUnavailable if Maven is missing or fails.
    """
    digest = hashlib.sha256(POM.read_bytes()).hexdigest()[:16]
    # Absolute: Maven takes a relative folder from the pom's.
    jars = cache_dir.resolve() / "kafka" / f"jars-{digest}"
    if jars.is_dir():
        return jars
    maven = shutil.which("mvn")
    if maven is None:
        raise BrokerUnavailable(
            f"mvn is not on PATH, and Kafka's jars are not in {jars.parent} yet ({GET_MAVEN})"
        )
    jars.parent.mkdir(parents=True, exist_ok=True)
    with _locked(jars.with_suffix(".lock")):
        if not jars.is_dir():  # the one who held the lock before may have fetched them
            _fetch(maven, jars)
    return jars


def _fetch(maven: str, jars: Path) -> None:
    log.info("fetching Kafka's jars with Maven (once, 55 MB)")
    partial = Path(tempfile.mkdtemp(prefix="partial-", dir=jars.parent))
    command = [
        maven,
        "-q",
        "-B",
        "-f",
        str(POM),
        "dependency:copy-dependencies",
        f"-DoutputDirectory={partial}",
    ]
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=FETCH_TIMEOUT_S,
            check=False,
        )
        if done.returncode != 0 or not any(partial.glob("kafka_*.jar")):
            raise BrokerUnavailable(f"Maven could not fetch Kafka's jars: {done.stdout[-2000:].strip()}")
        # mkdtemp's folder is private to its maker; a cache may be shared.
        partial.chmod(0o755)
        partial.rename(jars)
    except subprocess.TimeoutExpired as error:
        raise BrokerUnavailable(f"Maven had not fetched Kafka in {FETCH_TIMEOUT_S:.0f} s") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock; the kernel frees it when its holder dies."""
    descriptor = os.open(path, os.O_CREAT | os.O_RDWR, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)

"""A local broker that asks who one is: TLS with keys made on the spot, SASL with one user."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from agents.broker import DEFAULT_CACHE, LocalBroker
from agents.kafka_local import Listener

USER, PASSWORD = "alice", "wonder land"


class Keys:
    """Two certificate authorities, of which the broker knows one, and what that one signed. All PEM."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ca, self.other_ca = self._authority("ca"), self._authority("other")
        self.client, self.client_key = self._signed("client", "DNS:client")
        server, server_key = self._signed("server", "IP:127.0.0.1")
        self.server = folder / "server-both.pem"
        self.server.write_text(server_key.read_text() + server.read_text())

    def _authority(self, name: str) -> Path:
        made = self.folder / f"{name}.pem"
        self._openssl("req", "-x509", "-keyout", f"{name}.key", "-out", made.name, "-subj", f"/CN={name}")
        return made

    def _signed(self, name: str, alternative: str) -> tuple[Path, Path]:
        self._openssl(
            *("req", "-x509", "-CA", "ca.pem", "-CAkey", "ca.key", "-subj", f"/CN={name}"),
            *("-addext", f"subjectAltName={alternative}", "-addext", "basicConstraints=critical,CA:FALSE"),
            *("-keyout", f"{name}.key", "-out", f"{name}.pem"),
        )
        return self.folder / f"{name}.pem", self.folder / f"{name}.key"

    def _openssl(self, *arguments: str) -> None:
        fresh = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2")
        subprocess.run(["openssl", *arguments, *fresh], cwd=self.folder, check=True, capture_output=True)


@contextmanager
def secured_broker(folder: Path, keys: Keys) -> Iterator[LocalBroker]:
    """One broker with all three kinds of listeners, and a plain one for those who look on."""
    tls = {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(keys.server),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(keys.ca),
    }
    login = "org.apache.kafka.common.security"
    sasl = {
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512",
        "plain.sasl.jaas.config": f'{login}.plain.PlainLoginModule required user_{USER}="{PASSWORD}";',
        "scram-sha-512.sasl.jaas.config": f"{login}.scram.ScramLoginModule required;",
    }
    listeners = [
        Listener("SASL_SSL", {**tls, **sasl}),
        Listener("SASL_PLAINTEXT", sasl),
        Listener("SSL", {**tls, "ssl.client.auth": "required"}),
    ]
    broker = LocalBroker(DEFAULT_CACHE, folder / "kafka", listeners=listeners, scram={USER: PASSWORD})
    try:
        broker.start()
        yield broker
    finally:
        broker.close()

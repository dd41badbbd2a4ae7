"""A Kubernetes API as far as Ray's autoscaler asks it: pods and one RayCluster over HTTPS with client certificates.

GET raycluster, GET pods, GET pod and PATCH raycluster (JSON patch) are what Ray 2.60 needs. Everything else is 404.
"""

from __future__ import annotations

import copy
import datetime
import ipaddress
import json
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

Object = dict[str, Any]


@dataclass
class FakeKubernetes:
    """What the API holds. Whoever reads or changes it holds `lock`."""

    cluster: Object  # the RayCluster
    pods: dict[str, Object] = field(default_factory=dict)
    patches: list[list[Object]] = field(default_factory=list)  # in the order they came
    lock: threading.RLock = field(default_factory=threading.RLock)
    port: int = 0
    version: int = 1

    @property
    def namespace(self) -> str:
        """Of everything here."""
        return str(self.cluster["metadata"]["namespace"])

    @property
    def name(self) -> str:
        """The RayCluster's."""
        return str(self.cluster["metadata"]["name"])

    def get(self, path: str) -> Object | None:
        """The answer to GET, or None for what is not there."""
        pods, clusters = (
            f"/api/v1/namespaces/{self.namespace}/pods",
            f"/apis/ray.io/v1/namespaces/{self.namespace}/rayclusters",
        )
        with self.lock:
            if path == f"{clusters}/{self.name}":
                return copy.deepcopy(self.cluster)
            if path == pods:
                return {
                    "metadata": {"resourceVersion": str(self.version)},
                    "items": copy.deepcopy([*self.pods.values()]),
                }
            return copy.deepcopy(self.pods.get(path.removeprefix(f"{pods}/")))

    def patch(self, path: str, operations: list[Object]) -> Object | None:
        """The changed object: JSON patch (RFC 6902), of which Ray uses `replace`."""
        with self.lock:
            if self.get(path) is None or not path.endswith(f"/rayclusters/{self.name}"):
                return None
            for operation in operations:
                assert operation["op"] == "replace", operation
                *way, last = operation["path"].strip("/").split("/")
                place: Any = self.cluster
                for key in way:
                    place = place[int(key)] if isinstance(place, list) else place[key]
                place[last] = operation["value"]
            self.version += 1
            self.patches.append(copy.deepcopy(operations))
            return copy.deepcopy(self.cluster)


@contextmanager
def serving(kubernetes: FakeKubernetes, folder: Path) -> Iterator[dict[str, str]]:
    """The API, while it is entered. Yields the variables by which a process of Ray finds it and proves who it is."""
    authority = _Authority(folder)
    server_files, client_files = authority.issue("server"), authority.issue("autoscaler")

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer(kubernetes.get(self.path.partition("?")[0]))

        def do_PATCH(self) -> None:
            operations = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            self._answer(kubernetes.patch(self.path, operations))

        def _answer(self, found: Object | None) -> None:
            body = json.dumps(found if found is not None else {"kind": "Status", "code": 404}).encode()
            self.send_response(200 if found is not None else 404)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Say nothing."""

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*server_files)
    context.load_verify_locations(authority.certificate_file)
    context.verify_mode = ssl.CERT_REQUIRED
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    kubernetes.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield {
            "KUBERNETES_SERVICE_HOST": "127.0.0.1",
            "KUBERNETES_SERVICE_PORT_HTTPS": str(kubernetes.port),
            "RAY_KUBERAY_CA_CERT_PATH": authority.certificate_file,
            "RAY_KUBERAY_CLIENT_CERT_PATH": client_files[0],
            "RAY_KUBERAY_CLIENT_KEY_PATH": client_files[1],
        }
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Authority:
    """Signs certificates for 127.0.0.1 that are good for a day."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._key = folder, ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "test authority")])
        certificate = self._sign(self._name, self._key, x509.BasicConstraints(ca=True, path_length=0))
        self.certificate_file = str(folder / "authority.crt")
        Path(self.certificate_file).write_bytes(certificate.public_bytes(serialization.Encoding.PEM))

    def issue(self, name: str) -> tuple[str, str]:
        """Files with a certificate and its key."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
        address = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
        certificate = self._sign(subject, key, address)
        files = self._folder / f"{name}.crt", self._folder / f"{name}.key"
        files[0].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        encoding, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
        files[1].write_bytes(key.private_bytes(encoding, form, serialization.NoEncryption()))
        return str(files[0]), str(files[1])

    def _sign(
        self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, extension: x509.ExtensionType
    ) -> x509.Certificate:
        now = datetime.datetime.now(datetime.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(hours=1))
            .not_valid_after(now + datetime.timedelta(days=1))
            .add_extension(extension, critical=True)
            .sign(self._key, hashes.SHA256())
        )

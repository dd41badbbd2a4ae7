"""A Kubernetes API as far as Ray's autoscaler asks it: pods and one RayCluster over HTTPS with client certificates.

GET raycluster, GET pods, GET pod and PATCH raycluster (JSON patch) are what Ray 2.60 needs. Everything else is 404.
"""

import copy
import json
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import trustme

from tests.k8s.manifests import Object


@dataclass
class FakeKubernetes:
    """The objects behind the API. A thread that reads or changes them holds `lock`."""

    cluster: Object  # the RayCluster
    pods: dict[str, Object] = field(default_factory=dict)
    patches: list[list[Object]] = field(default_factory=list)  # in the order they came
    lock: threading.RLock = field(default_factory=threading.RLock)
    version: int = 1

    @property
    def namespace(self) -> str:
        """The namespace of all objects."""
        return str(self.cluster["metadata"]["namespace"])

    @property
    def name(self) -> str:
        """The name of the RayCluster."""
        return str(self.cluster["metadata"]["name"])

    def get(self, path: str) -> Object | None:
        """Return the answer to GET, or None if there is no such object."""
        pods = f"/api/v1/namespaces/{self.namespace}/pods"
        with self.lock:
            if path == f"/apis/ray.io/v1/namespaces/{self.namespace}/rayclusters/{self.name}":
                return copy.deepcopy(self.cluster)
            if path == pods:
                items = copy.deepcopy([*self.pods.values()])
                return {"metadata": {"resourceVersion": str(self.version)}, "items": items}
            return copy.deepcopy(self.pods.get(path.removeprefix(f"{pods}/")))

    def patch(self, path: str, operations: list[Object]) -> Object | None:
        """Apply a JSON patch (RFC 6902), of which Ray uses `replace`; return the changed object, None without one."""
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
    """Serve the API; yield the variables by which a process of Ray finds it and proves its own identity."""
    authority = trustme.CA()
    server_certificate, client_certificate = authority.issue_cert("127.0.0.1"), authority.issue_cert("autoscaler")
    authority_file, certificate_file, key_file = (str(folder / name) for name in ("ca.crt", "client.crt", "client.key"))
    authority.cert_pem.write_to_path(authority_file)
    client_certificate.cert_chain_pems[0].write_to_path(certificate_file)
    client_certificate.private_key_pem.write_to_path(key_file)

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
    server_certificate.configure_cert(context)
    authority.configure_trust(context)
    context.verify_mode = ssl.CERT_REQUIRED
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield {
            "KUBERNETES_SERVICE_HOST": "127.0.0.1",
            "KUBERNETES_SERVICE_PORT_HTTPS": str(server.server_address[1]),
            "RAY_KUBERAY_CA_CERT_PATH": authority_file,
            "RAY_KUBERAY_CLIENT_CERT_PATH": certificate_file,
            "RAY_KUBERAY_CLIENT_KEY_PATH": key_file,
        }
    finally:
        server.shutdown()
        server.server_close()
        thread.join()

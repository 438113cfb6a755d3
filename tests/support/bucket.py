"""A storage bucket in memory, for tests of paths that begin with `gs://` or `s3://`.

fsspec reads and writes the bucket directly. TensorStore and array_record use a server on localhost,
which implements a part of the JSON API of Google Cloud Storage.
"""

import json
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar
from urllib.parse import parse_qsl, unquote, urlsplit

import pytest
from etils.epath import backend
from fsspec.implementations.memory import MemoryFileSystem
from fsspec.registry import _registry

OBJECT = re.compile("(?:/upload)?/storage/v1/b/([^/]+)/o/?(.*)")


class Bucket(MemoryFileSystem):
    """A file system of objects by name. The bucket `missing` does not exist."""

    protocol = ("gs", "gcs", "s3")
    store: ClassVar[Any] = {}  # the bucket's files by path, shared by all instances
    pseudo_dirs: ClassVar[Any] = [""]

    @classmethod
    def _strip_protocol(cls, path):
        name = MemoryFileSystem._strip_protocol(re.sub("^(gs|gcs|s3)://", "/", str(path)))
        if name.startswith("/missing"):
            raise FileNotFoundError(name)
        return name

    def makedirs(self, path, exist_ok=False):
        """Do nothing, because a bucket has no folders."""

    def mkdir(self, path, create_parents=True, **_):
        """Do nothing, because a bucket has no folders."""


class Handler(BaseHTTPRequestHandler):
    """Serves requests to read, write, list and remove objects. A part of an object can be read."""

    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *_: Any) -> None:
        """Do not log requests."""

    def reply(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)

    def parsed(self) -> tuple[str, str, dict[str, str]]:
        """The bucket, the name of the object and the query of the request's address."""
        url = urlsplit(self.path)
        found, query = OBJECT.fullmatch(url.path), dict(parse_qsl(url.query))
        return (found[1], unquote(found[2]), query) if found else ("missing", "", query)

    def do_GET(self) -> None:
        bucket, name, query = self.parsed()
        if not name:
            return self.listed(bucket, query)
        if (file := Bucket.store.get(f"/{bucket}/{name}")) is None:
            return self.reply(404)
        content = file.getvalue()
        part = re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range", ""))
        if part is None:
            return self.reply(200, content, x_goog_generation="1")
        start, stop = int(part[1] or max(0, len(content) - int(part[2] or 0))), len(content)
        stop = min(stop, int(part[2]) + 1) if part[1] and part[2] else stop
        span = f"bytes {start}-{stop - 1}/{len(content)}"
        return self.reply(206, content[start:stop], x_goog_generation="1", Content_Range=span)

    def listed(self, bucket: str, query: dict[str, str]) -> None:
        prefix = f"/{bucket}/"
        names = sorted(key.removeprefix(prefix) for key in Bucket.store if key.startswith(prefix))
        chosen = [n for n in names if n >= query.get("startOffset", "")]
        end = query.get("endOffset")
        items = [about(bucket, name) for name in chosen if end is None or name < end]
        self.reply(200, json.dumps({"items": items}).encode())

    def do_POST(self) -> None:
        bucket, _, query = self.parsed()
        content = self.rfile.read(int(self.headers["Content-Length"]))
        Bucket().pipe_file(f"{bucket}/{query['name']}", content)
        self.reply(200, json.dumps(about(bucket, query["name"])).encode())

    def do_DELETE(self) -> None:
        bucket, name, _ = self.parsed()
        self.reply(404 if Bucket.store.pop(f"/{bucket}/{name}", None) is None else 204)


def about(bucket: str, name: str) -> dict[str, str]:
    """The API's description of an object."""
    size = str(len(Bucket.store[f"/{bucket}/{name}"].getvalue()))
    return {"bucket": bucket, "name": name, "size": size, "generation": "1", "metageneration": "1"}


@contextmanager
def served(patch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """Serve buckets that libraries use like cloud buckets, and yield their objects by path."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    address = f"127.0.0.1:{server.server_port}"
    patch.setenv("TENSORSTORE_GCS_HTTP_URL", f"http://{address}")
    patch.setenv("CLOUD_STORAGE_EMULATOR_ENDPOINT", f"http://{address}")
    patch.setenv("GCE_METADATA_ROOT", address)
    for name in Bucket.protocol:
        patch.setitem(_registry, name, Bucket)
    backend.fsspec_backend._get_filesystem.cache_clear()
    # Orbax uses Google's client only to find out whether the bucket has folders.
    storage: Any = ModuleType("google.cloud.storage")
    storage.Client = lambda: SimpleNamespace(get_bucket=lambda _: SimpleNamespace())
    cloud: Any = ModuleType("google.cloud")
    cloud.storage = storage
    patch.setitem(sys.modules, "google.cloud", cloud)
    patch.setitem(sys.modules, "google.cloud.storage", storage)
    Bucket.store.clear()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield Bucket.store
    finally:
        server.shutdown()
        server.server_close()
        backend.fsspec_backend._get_filesystem.cache_clear()

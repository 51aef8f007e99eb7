"""A Hugging Face Hub on loopback: the endpoints `huggingface_hub` reads, and the ways they fail.

In a test: `with LoopbackHub() as hub: commit = hub.add("owner/name", "main", {"a.bin": b"..."})`.
By hand: `python tests/hub.py FOLDER`, where FOLDER/<owner>/<name>/<quoted revision>/ holds files.
"""

import argparse
import fcntl
import hashlib
import json
import re
import socket
import struct
import termios
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, Self
from urllib.parse import parse_qs, quote, unquote, urlsplit

CHUNK = 1 << 18
LFS_SUFFIXES = {".bin", ".safetensors", ".pt", ".pth", ".gguf", ".h5", ".onnx"}
REF_PREFIXES = {"branch": "refs/heads/", "tag": "refs/tags/", "pr": ""}
DATE = "2024-01-01T00:00:00.000Z"

Kind = Literal["branch", "tag", "pr"]


@dataclass
class Request:
    """A request as it arrived, and what was sent back; `path` is decoded and without its query."""

    method: str
    path: str
    query: str
    range: str | None
    headers: dict[str, str]  # names in lower case
    status: int = 0
    bytes_sent: int = 0  # of the body


@dataclass
class Fault:
    """One way to fail the next `times` requests whose decoded path matches."""

    match: str
    status: int | None = None  # answer this instead
    headers: Mapping[str, str] = field(default_factory=dict)  # added to whatever is answered
    times: float = 1
    only_method: str | None = None
    relabel: int | None = None  # answer as ever, but call it this status, and send no Content-Range
    replace: bytes | None = None  # a body in the place of the right one
    ignore_range: bool = False  # answer a range request with 200 and the whole file
    flip_byte: int | None = None  # invert this byte of the body
    truncate_to: int | None = None  # a shorter body, of which Content-Length tells the truth
    close_after: int | None = None  # hang up in order after this much of the promised body
    reset_after: int | None = None  # reset the connection after this much of the body
    stall_s: float | None = None  # pause this long...
    stall_after: int | None = None  # ...after this much of the body, or before the answer
    drip_s: float | None = None  # send one byte at a time, with this pause after each
    announce_s: float | None = None  # announce an answer (103) again and again, with this pause


@dataclass(frozen=True)
class Blob:
    """The content of a file, with the names git and git-lfs give it."""

    source: bytes | Path
    size: int
    oid: str
    sha256: str | None  # only of git-lfs files

    @classmethod
    def of(cls, name: str, source: bytes | Path) -> Self:
        size = len(source) if isinstance(source, bytes) else source.stat().st_size
        if Path(name).suffix not in LFS_SUFFIXES:
            return cls(source, size, _digest("sha1", b"blob %d\0" % size, source), None)
        sha256 = _digest("sha256", b"", source)
        return cls(source, size, _git_oid(_pointer(sha256, size)), sha256)

    @property
    def name(self) -> str:
        return self.sha256 or self.oid

    @property
    def lfs(self) -> dict[str, Any] | None:
        if self.sha256 is None:
            return None
        return {"size": self.size, "pointerSize": len(_pointer(self.sha256, self.size))}

    def read(self, start: int, stop: int) -> Iterator[bytes]:
        if isinstance(self.source, bytes):
            edges = [*range(start, stop, CHUNK), stop]
            yield from (self.source[left:right] for left, right in pairwise(edges))
            return
        with self.source.open("rb") as file:
            file.seek(start)
            while start < stop and (chunk := file.read(min(CHUNK, stop - start))):
                start += len(chunk)
                yield chunk


@dataclass
class Repo:
    commits: dict[str, dict[str, Blob]] = field(default_factory=dict)
    refs: dict[str, str] = field(default_factory=dict)
    token: str | None = None


@dataclass
class Reply:
    status: int
    headers: dict[str, str]
    length: int = 0
    body: Iterator[bytes] = field(default_factory=lambda: iter(()))

    @classmethod
    def of_json(cls, content: Any, status: int = 200, **headers: str) -> Self:
        body = json.dumps(content).encode()
        headers = {name.replace("_", "-"): value for name, value in headers.items()}
        return cls(status, {"Content-Type": "application/json", **headers}, len(body), iter([body]))


class Refusal(Exception):
    """An error as the Hub words it: the code is what `huggingface_hub` makes its exception from."""

    def __init__(self, status: int, message: str, code: str | None = None, **headers: str) -> None:
        super().__init__(message)
        if code is not None:
            headers["X_Error_Code"] = code
        self.reply = Reply.of_json({"error": message}, status, X_Error_Message=message, **headers)


class LoopbackHub:
    """A Hub bound to a free port of 127.0.0.1 from the start to the end of its `with` block."""

    def __init__(self, port: int = 0) -> None:
        self.requests: list[Request] = []
        self.faults: list[Fault] = []
        self._repos: dict[str, Repo] = {}
        self._blobs: dict[str, Blob] = {}
        self._cdn: str | None = None
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._server = _Server(self, port)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    @property
    def other_host(self) -> str:
        """The same server by another name, which clients must not send the token to."""
        return f"http://localhost:{self._server.server_port}"

    def add(
        self,
        repo: str,
        revision: str,
        files: Path | Mapping[str, bytes | Path],
        kind: Kind = "branch",
    ) -> str:
        """Commit a folder, or files by name, to a branch, a tag, or a pull request (refs/pr/1)."""
        if isinstance(files, Path):
            files = {
                path.relative_to(files).as_posix(): path
                for path in files.rglob("*")
                if path.is_file()
            }
        blobs = {name: Blob.of(name, files[name]) for name in sorted(files)}
        tree = "".join(f"{blob.oid} {name}\n" for name, blob in blobs.items())
        commit = hashlib.sha1(f"{repo}\n{tree}".encode()).hexdigest()
        home = self._repos.setdefault(repo, Repo())
        home.commits[commit] = blobs
        home.refs[REF_PREFIXES[kind] + revision] = commit
        self._blobs.update({blob.name: blob for blob in blobs.values()})
        return commit

    def move(self, repo: str, branch: str, commit: str) -> None:
        assert commit in self._repos[repo].commits, f"no commit {commit} in {repo}"
        self._repos[repo].refs[REF_PREFIXES["branch"] + branch] = commit

    def gate(self, repo: str, token: str) -> None:
        """Give out files to bearers of this token only; as on the Hub, anyone may list them.

        No token is 401, a token of another gated repo 403, and an unknown token 401.
        """
        self._repos[repo].token = token

    def redirect_files_to(self, cdn: "str | LoopbackHub | None") -> None:
        """Answer for git-lfs files with a redirect to `<cdn>/cdn/<sha256>/<name>`."""
        if isinstance(cdn, LoopbackHub):
            cdn._blobs = self._blobs
            cdn = cdn.endpoint
        self._cdn = cdn

    def bytes_sent(self, path_suffix: str = "") -> int:
        return sum(seen.bytes_sent for seen in self.requests if seen.path.endswith(path_suffix))

    def take_fault(self, request: Request) -> Fault | None:
        with self._lock:
            for fault in self.faults:
                if (
                    fault.times > 0
                    and fault.only_method in (None, request.method)
                    and re.search(fault.match, request.path)
                ):
                    fault.times -= 1
                    return fault
        return None

    def pause(self, seconds: float) -> bool:
        """Wait, and return whether the Hub is closing."""
        return self._closing.wait(seconds)

    def answer(self, request: Request, target: str, form: bytes) -> Reply:
        """Route a request; `target` is its path as sent, where a slash in a name is still %2F."""
        parts = [unquote(part) for part in target.strip("/").split("/")]
        query = {name: values[-1] for name, values in parse_qs(request.query).items()}
        try:
            match parts:
                case ["cdn", name, *_] if name in self._blobs:
                    return _content(self._blobs[name], request, {})
                case ["api", "models", owner, name, *rest]:
                    repo_id, repo = self._find(owner, name)
                    return self._api(repo_id, repo, rest, query, form)
                case [owner, name, "resolve", revision, *path]:
                    repo_id, repo = self._find(owner, name)
                    self._admit(repo_id, repo, request)
                    return self._resolve(repo, revision, "/".join(path), request)
        except Refusal as refusal:
            return refusal.reply
        return Refusal(404, "Sorry, we can't find the page you are looking for.").reply

    def _find(self, owner: str, name: str) -> tuple[str, Repo]:
        repo_id = f"{owner}/{name}"
        if repo_id not in self._repos:
            raise Refusal(404, "Repository not found", "RepoNotFound")
        return repo_id, self._repos[repo_id]

    def _admit(self, repo_id: str, repo: Repo, request: Request) -> None:
        bearer = request.headers.get("authorization", "").removeprefix("Bearer ")
        if repo.token in (None, bearer):
            return
        restricted = f"Access to model {repo_id} is restricted"
        if not bearer:
            raise Refusal(401, f"{restricted}. Please log in.", "GatedRepo")
        if bearer in {other.token for other in self._repos.values()}:
            raise Refusal(403, f"{restricted} and you are not in the authorized list.", "GatedRepo")
        raise Refusal(401, "Invalid credentials in Authorization header")

    def _api(
        self, repo_id: str, repo: Repo, rest: list[str], query: dict[str, str], form: bytes
    ) -> Reply:
        match rest:
            case ["refs"]:
                return Reply.of_json(_refs(repo, "include_prs" in query))
            case []:
                return Reply.of_json(_info(repo_id, repo, "main", query))
            case ["revision", revision]:
                return Reply.of_json(_info(repo_id, repo, revision, query))
            case ["tree", revision, *path]:
                entries = _entries(repo.commits[_commit(repo, revision)])
                return Reply.of_json(
                    _listing(entries, "/".join(path), _is_true(query, "recursive"))
                )
            case ["paths-info", revision]:
                entries = _entries(repo.commits[_commit(repo, revision)])
                paths = parse_qs(form.decode()).get("paths", [])
                return Reply.of_json([entries[path] for path in paths if path in entries])
        raise Refusal(404, "Sorry, we can't find the page you are looking for.")

    def _resolve(self, repo: Repo, revision: str, path: str, request: Request) -> Reply:
        commit = _commit(repo, revision)
        blob = repo.commits[commit].get(path)
        if blob is None:
            raise Refusal(404, "Entry not found", "EntryNotFound", X_Repo_Commit=commit)
        headers = {"X-Repo-Commit": commit}
        if blob.sha256 is not None:
            headers |= {"X-Linked-Size": str(blob.size), "X-Linked-Etag": f'"{blob.sha256}"'}
            if self._cdn is not None:
                headers["Location"] = f"{self._cdn}/cdn/{blob.sha256}/{quote(Path(path).name)}"
                return Reply(HTTPStatus.FOUND, {"ETag": f'"{blob.oid}"', **headers})
        return _content(blob, request, headers)


@lru_cache(maxsize=256)
def _digest_of_file(algorithm: str, prefix: bytes, path: Path, size: int, mtime_ns: int) -> str:
    digest = hashlib.new(algorithm, prefix)
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def _digest(algorithm: str, prefix: bytes, source: bytes | Path) -> str:
    if isinstance(source, bytes):
        return hashlib.new(algorithm, prefix + source).hexdigest()
    found = source.stat()
    return _digest_of_file(algorithm, prefix, source, found.st_size, found.st_mtime_ns)


def _git_oid(content: bytes) -> str:
    return _digest("sha1", b"blob %d\0" % len(content), content)


def _pointer(sha256: str, size: int) -> bytes:
    version = "https://git-lfs.github.com/spec/v1"
    return f"version {version}\noid sha256:{sha256}\nsize {size}\n".encode()


def _is_true(query: dict[str, str], name: str) -> bool:
    return query.get(name, "").lower() in ("1", "true")


def _commit(repo: Repo, revision: str) -> str:
    for prefix in REF_PREFIXES.values():
        if prefix + revision in repo.refs:
            return repo.refs[prefix + revision]
    if revision in repo.commits:
        return revision
    raise Refusal(404, f"Invalid rev id: {revision}", "RevisionNotFound")


def _refs(repo: Repo, with_pull_requests: bool) -> dict[str, list[dict[str, str]]]:
    def under(prefix: str, shown_without: str) -> list[dict[str, str]]:
        return [
            {"name": ref.removeprefix(shown_without), "ref": ref, "targetCommit": commit}
            for ref, commit in sorted(repo.refs.items())
            if ref.startswith(prefix)
        ]

    refs = {
        "branches": under("refs/heads/", "refs/heads/"),
        "tags": under("refs/tags/", "refs/tags/"),
        "converts": [],
    }
    return refs | ({"pullRequests": under("refs/pr/", "")} if with_pull_requests else {})


def _info(repo_id: str, repo: Repo, revision: str, query: dict[str, str]) -> dict[str, Any]:
    def sibling(path: str, blob: Blob) -> dict[str, Any]:
        if not _is_true(query, "blobs"):
            return {"rfilename": path}
        lfs = {"lfs": {"sha256": blob.sha256, **blob.lfs}} if blob.lfs else {}
        return {"rfilename": path, "size": blob.size, "blobId": blob.oid, **lfs}

    commit = _commit(repo, revision)
    return {
        "id": repo_id,
        "modelId": repo_id,
        "author": repo_id.split("/")[0],
        "sha": commit,
        "createdAt": DATE,
        "lastModified": DATE,
        "private": False,
        "gated": "manual" if repo.token is not None else False,
        "disabled": False,
        "tags": [],
        "siblings": [sibling(path, blob) for path, blob in repo.commits[commit].items()],
    }


def _entries(files: dict[str, Blob]) -> dict[str, dict[str, Any]]:
    """Every file and folder of a commit as the tree and paths-info endpoints describe it."""
    entries: dict[str, dict[str, Any]] = {}
    for path, blob in files.items():
        for folder in list(Path(path).parents)[-2::-1]:
            name = folder.as_posix()
            entries[name] = {
                "type": "directory",
                "oid": hashlib.sha1(name.encode()).hexdigest(),
                "size": 0,
                "path": name,
            }
        lfs = {"lfs": {"oid": blob.sha256, **blob.lfs}} if blob.lfs else {}
        entries[path] = {"type": "file", "oid": blob.oid, "size": blob.size, "path": path, **lfs}
    return entries


def _listing(entries: dict[str, Any], folder: str, recursive: bool) -> list[dict[str, Any]]:
    if folder and entries.get(folder, {}).get("type") != "directory":
        raise Refusal(404, f"{folder} does not exist", "EntryNotFound")
    inside = f"{folder}/" if folder else ""
    return [
        entry
        for path, entry in entries.items()
        if path.startswith(inside) and (recursive or "/" not in path.removeprefix(inside))
    ]


def _content(blob: Blob, request: Request, headers: dict[str, str]) -> Reply:
    """The file, or the single range of it that was asked for."""
    start, stop, status = 0, blob.size, HTTPStatus.OK
    headers = {
        "Content-Type": "application/octet-stream",
        "Accept-Ranges": "bytes",
        "ETag": f'"{blob.name}"',
        **headers,
    }
    asked = re.fullmatch(r"bytes=(\d*)-(\d*)", request.range or "")
    if asked and any(asked.groups()):
        first, last = asked.groups()
        start = int(first) if first else max(0, blob.size - int(last))
        if start >= blob.size or (first and last and int(last) < start):
            size = f"bytes */{blob.size}"
            raise Refusal(416, "The requested range is not satisfiable", Content_Range=size)
        stop = min(blob.size, int(last) + 1) if first and last else blob.size
        status = HTTPStatus.PARTIAL_CONTENT
        headers["Content-Range"] = f"bytes {start}-{stop - 1}/{blob.size}"
    return Reply(status, headers, stop - start, blob.read(start, stop))


class _Server(ThreadingHTTPServer):
    def __init__(self, hub: LoopbackHub, port: int) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.hub = hub
        self._open: set[socket.socket] = set()

    def process_request(self, request: Any, client_address: Any) -> None:
        self._open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self._open.discard(request)
        super().shutdown_request(request)

    def server_close(self) -> None:
        """Also hang up on clients that keep their connection, as a stopped server would."""
        super().server_close()
        for connection in list(self._open):
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass  # the client hung up, or a fault did


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Server

    def do_GET(self) -> None:
        hub = self.server.hub
        target = urlsplit(self.path)
        request = Request(
            method=self.command,
            path=unquote(target.path),
            query=target.query,
            range=self.headers["Range"],
            headers={name.lower(): value for name, value in self.headers.items()},
        )
        form = self.rfile.read(int(self.headers["Content-Length"] or 0))
        hub.requests.append(request)
        fault = hub.take_fault(request) or Fault("")
        if fault.stall_s is not None and fault.stall_after is None:
            hub.pause(fault.stall_s)
        if fault.status is not None:
            reply = Refusal(fault.status, HTTPStatus(fault.status).phrase).reply
        elif fault.ignore_range:
            whole = Request(**{**vars(request), "range": None})
            reply = hub.answer(whole, target.path, form)
        else:
            reply = hub.answer(request, target.path, form)
        if fault.relabel is not None:
            reply.status = fault.relabel
            reply.headers.pop("Content-Range", None)
        if fault.replace is not None:
            reply.length, reply.body = len(fault.replace), iter([fault.replace])
        self._send(request, reply, fault)

    do_HEAD = do_POST = do_GET

    def _send(self, request: Request, reply: Reply, fault: Fault) -> None:
        request.status = reply.status
        length = reply.length
        if fault.truncate_to is not None:
            length = min(length, fault.truncate_to)
        while fault.announce_s is not None and not self.server.hub.pause(fault.announce_s):
            self.wfile.write(b"HTTP/1.1 103 Early Hints\r\n\r\n")
        self.send_response(reply.status)
        for name, value in {**reply.headers, **fault.headers}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(length))
        self.end_headers()
        if request.method == "HEAD":
            return
        stops = (length, fault.reset_after, fault.close_after)
        marks = [fault.stall_after, fault.flip_byte]
        for chunk in _split(reply.body, min(stop for stop in stops if stop is not None), marks):
            if request.bytes_sent == fault.stall_after:
                self.server.hub.pause(fault.stall_s or 0)
            if request.bytes_sent == fault.flip_byte:
                chunk = bytes([chunk[0] ^ 0xFF]) + chunk[1:]
            if fault.drip_s is not None:
                self._drip(request, chunk, fault.drip_s)
                continue
            request.bytes_sent += len(chunk)  # first, so that a client with all of it sees it all
            self.wfile.write(chunk)
        if fault.reset_after is not None:
            self._reset()
        elif fault.close_after is not None:
            self.close_connection = True

    def _drip(self, request: Request, chunk: bytes, seconds: float) -> None:
        for byte in chunk:
            request.bytes_sent += 1
            self.wfile.write(bytes([byte]))
            self.server.hub.pause(seconds)

    def _reset(self) -> None:
        """Close with RST instead of FIN, once the kernel has delivered what was written."""
        deadline = time.monotonic() + 5
        while time.monotonic() < deadline:
            (unsent,) = struct.unpack(
                "i", fcntl.ioctl(self.connection, termios.TIOCOUTQ, b"\0" * 4)
            )
            if not unsent:
                break
            time.sleep(0.001)
        linger = struct.pack("ii", 1, 0)
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self.connection.close()
        self.close_connection = True

    def log_message(self, format: str, *args: Any) -> None:
        pass  # `LoopbackHub.requests` is the log


def _split(body: Iterator[bytes], limit: int, marks: list[int | None]) -> Iterator[bytes]:
    """Cut the first `limit` bytes so that each mark begins a chunk."""
    position = 0
    for chunk in body:
        end = min(position + len(chunk), limit)
        inner = sorted(mark for mark in marks if mark is not None and position < mark < end)
        for left, right in pairwise([position, *inner, end]):
            if left < right:
                yield chunk[left - position : right - position]
        position = end
        if position == limit:
            return


def main() -> None:
    parser = argparse.ArgumentParser(description="Serve folders as a Hugging Face Hub.")
    parser.add_argument("folder", type=Path, help="<owner>/<name>/<quoted revision>/ inside")
    parser.add_argument("--port", type=int, default=0)
    options = parser.parse_args()
    with LoopbackHub(options.port) as hub:
        for tree in sorted(options.folder.glob("*/*/*/")):
            owner, name, revision = tree.relative_to(options.folder).parts
            kind: Kind = "pr" if unquote(revision).startswith("refs/pr/") else "branch"
            commit = hub.add(f"{owner}/{name}", unquote(revision), tree, kind)
            print(f"{owner}/{name} {unquote(revision)} {commit}")
        print(f"HF_ENDPOINT={hub.endpoint}", flush=True)
        with suppress(KeyboardInterrupt):
            threading.Event().wait()


if __name__ == "__main__":
    main()

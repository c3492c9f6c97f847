"""A model hub on a loopback port, for the real clients: tiny repositories, and faults on demand.

Below ``root`` lie ``models/OWNER/NAME@REVISION/FILE`` and ``datasets/...``, whose files a commit hashes, and
``files/NAME``.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from benchmarks.inputs import hub_row
from qa_arch.data.question_sets import question_set
from qa_arch.data.synthetic import generate
from qa_arch.types import QuestionSet

QUESTIONS = {
    split: question_set(split, [replace(e, kind=None, plausible=()) for e in questions.examples], "2.0")
    for split, questions in (("train", generate(3, 5, 1, "train")), ("validation", generate(2, 5, 2, "dev")))
}
"""Questions of a small data set; the hub's have neither kinds nor plausible answers."""


@dataclass
class Fault:
    """What happens to the first ``times`` requests whose ``METHOD PATH`` matches."""

    pattern: str
    times: int = 10**9
    status: int = 0
    """Answer with this status."""
    cut: int = 0
    """Break off after this many bytes."""
    delay: float = 0.0
    """Seconds before the answer."""


@dataclass
class Hub:
    root: Path
    moved: dict[str, str] = field(default_factory=dict)
    """Former id -> id."""
    closed: dict[str, str] = field(default_factory=dict)
    """Id -> ``gated`` or ``private``; both open to the token ``hf_member``."""
    faults: list[Fault] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    """``METHOD PATH`` of each."""
    ranges: list[str | None] = field(default_factory=list)
    """The header ``Range`` of each request below ``/files``."""
    resumes: bool = True
    """Whether that header is heeded."""

    def __post_init__(self) -> None:
        handler = type("Handler", (_Handler,), {"hub": self})
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()

    def add(self, kind: str, name: str, files: dict[str, bytes | str], revision: str = "main") -> str:
        """Write a revision of a repository; returns its commit."""
        for path, content in files.items():
            file = self.root / kind / f"{name}@{revision}" / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content if isinstance(content, bytes) else content.encode())
        return self.commit(self.folder(kind, name, revision))

    def folder(self, kind: str, name: str, revision: str) -> Path:
        """Folder of a branch or a commit, which may not exist."""
        owner, _, short = name.rpartition("/")
        folders = sorted((self.root / kind / owner).glob(f"{short}@*"))
        commits = {self.commit(folder): folder for folder in folders}
        return commits.get(revision, self.root / kind / f"{name}@{revision}")

    @staticmethod
    def commit(folder: Path) -> str:
        digest = hashlib.sha1()
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                digest.update(path.name.encode() + path.read_bytes())
        return digest.hexdigest()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        self.content = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        url = urlsplit(self.path)
        path, self.query = unquote(url.path), parse_qs(url.query)
        self.hub.requests.append(request := f"{self.command} {path}")
        self.fault = Fault("")
        for fault in self.hub.faults:
            if fault.times > 0 and re.search(fault.pattern, request):
                fault.times -= 1
                self.fault = fault
                break
        threading.Event().wait(self.fault.delay)
        if self.fault.status:
            return self.answer(self.fault.status)
        for pattern, method in ROUTES:
            if match := re.fullmatch(pattern, path):
                return method(self, **match.groupdict())
        return self.answer(404)

    do_HEAD = do_POST = do_DELETE = do_GET  # noqa: N815

    def answer(self, status: int, content: Any = b"", **headers: str) -> None:
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        asked = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range") or "")
        if asked and status == 200 and self.hub.resumes:
            status, whole = 206, len(body)
            body = body[int(asked[1]) :]
            headers["Content-Range"] = f"bytes {asked[1]}-{whole - 1}/{whole}"
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body[: self.fault.cut] if self.fault.cut else body)
            if 0 < self.fault.cut < len(body):
                self.wfile.flush()
                self.close_connection = True

    def open(self, kind: str, name: str, revision: str) -> Path | None:
        """The folder of a repository; None after a redirect or an error was sent."""
        if name in self.hub.moved:
            self.answer(307, Location=self.path.replace(name, self.hub.moved[name], 1))
            return None
        token = (self.headers.get("Authorization") or "").removeprefix("Bearer ")
        state = "" if token == "hf_member" else self.hub.closed.get(name, "")
        owner, _, short = name.rpartition("/")
        exists = any((self.hub.root / kind / owner).glob(f"{short}@*"))
        if not exists or state == "private":  # the hub does not tell a stranger which
            self.answer(404 if token else 401, X_Error_Code="RepoNotFound")
        elif state:
            self.answer(
                403 if token else 401, X_Error_Code="GatedRepo", X_Error_Message="Access is restricted"
            )
        elif (folder := self.hub.folder(kind, name, revision)).is_dir():
            return folder
        else:
            self.answer(404, X_Error_Code="RevisionNotFound")
        return None

    def entries(self, folder: Path) -> list[dict[str, Any]]:
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        return [
            {
                "type": "file",
                "path": p.relative_to(folder).as_posix(),
                "size": p.stat().st_size,
                "oid": _oid(p),
            }
            for p in files
        ]

    def info(self, kind: str, name: str, revision: str | None) -> None:
        if folder := self.open(kind, name, revision or "main"):
            files = [{"rfilename": entry["path"]} for entry in self.entries(folder)]
            facts = {
                "id": name,
                "sha": self.hub.commit(folder),
                "siblings": files,
                "tags": [],
                "private": False,
            }
            self.answer(200, facts)

    def tree(self, kind: str, name: str, revision: str, below: str | None) -> None:
        if folder := self.open(kind, name, revision):
            found = [e for e in self.entries(folder) if e["path"].startswith(f"{below or ''}")]
            self.answer(200, found) if found else self.answer(404, X_Error_Code="EntryNotFound")

    def paths_info(self, kind: str, name: str, revision: str) -> None:
        if folder := self.open(kind, name, revision):
            form = self.content.decode()
            asked = json.loads(form)["paths"] if form.startswith("{") else parse_qs(form).get("paths", [])
            self.answer(200, [entry for entry in self.entries(folder) if entry["path"] in asked])

    def file(self, kind: str | None, name: str, revision: str, path: str) -> None:
        if folder := self.open((kind or "models/").rstrip("/"), name, revision):
            commit = self.hub.commit(folder)
            if (folder / path).is_file():
                tag = f'"{_oid(folder / path)}"'
                self.answer(200, (folder / path).read_bytes(), ETag=tag, X_Repo_Commit=commit)
            else:
                self.answer(404, X_Error_Code="EntryNotFound", X_Repo_Commit=commit)

    def plain(self, path: str) -> None:
        self.hub.ranges.append(self.headers.get("Range"))
        file = self.hub.root / "files" / path
        self.answer(200, file.read_bytes()) if file.is_file() else self.answer(404)

    # Uploads, for the token hf_member ----------------------------------------------------------------

    def create(self) -> None:
        asked = json.loads(self.content)
        name = f"{asked.get('organization') or 'me'}/{asked['name']}"
        known = self.hub.folder("models", name, "main")
        code = 409 if known.is_dir() else 200
        known.mkdir(parents=True, exist_ok=True)
        if asked.get("private") or asked.get("visibility") == "private":
            self.hub.closed[name] = "private"
        self.answer(code, {"url": f"{self.hub.url}/{name}", "name": name})

    def delete(self) -> None:
        asked = json.loads(self.content)
        name = f"{asked.get('organization') or 'me'}/{asked['name']}"
        folder = self.hub.folder("models", name, "main")
        for path in sorted(folder.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
        folder.rmdir()
        self.answer(200, {})

    def preupload(self, kind: str, name: str) -> None:
        files = json.loads(self.content)["files"]
        self.answer(
            200,
            {"files": [{"path": f["path"], "uploadMode": "regular", "shouldIgnore": False} for f in files]},
        )

    def commit(self, kind: str, name: str) -> None:
        lines = [json.loads(line) for line in self.content.splitlines()]
        files = {
            line["value"]["path"]: base64.b64decode(line["value"]["content"])
            for line in lines
            if line["key"] == "file"
        }
        oid = self.hub.add(kind, name, files)
        self.answer(
            200, {"commitOid": oid, "commitUrl": f"{self.hub.url}/{name}/commit/{oid}", "success": True}
        )


def _oid(path: Path) -> str:
    return hashlib.sha1(path.read_bytes()).hexdigest()


_NAME = r"(?P<name>[\w.-]+(?:/[\w.-]+)?)"
_API = rf"/api/(?P<kind>models|datasets)/{_NAME}"
ROUTES = (
    (r"/", lambda handler: handler.answer(200)),
    (r"/files/(?P<path>.+)", _Handler.plain),
    (r"/api/validate-yaml", lambda handler: handler.answer(200, {"errors": [], "warnings": []})),
    (r"/api/repos/create", _Handler.create),
    (r"/api/repos/delete", _Handler.delete),
    (rf"{_API}(?:/revision/(?P<revision>[^/]+))?", _Handler.info),
    (rf"{_API}/tree/(?P<revision>[^/]+)(?:/(?P<below>.+))?", _Handler.tree),
    (rf"{_API}/paths-info/(?P<revision>[^/]+)", _Handler.paths_info),
    (rf"{_API}/preupload/main", _Handler.preupload),
    (rf"{_API}/commit/main", _Handler.commit),
    (rf"/(?P<kind>datasets/)?{_NAME}/resolve/(?P<revision>[^/]+)/(?P<path>.+)", _Handler.file),
)
"""(pattern of the path, its handler)."""


def rows(questions: QuestionSet) -> str:
    """JSON Lines with SQuAD's columns."""
    return "".join(json.dumps(hub_row(example)) + "\n" for example in questions.examples)


def data_card(*configs: str) -> str:
    """README of a data set whose configurations are its folders; none: files at its top."""
    if not configs:
        return "# Data\n"
    blocks = "".join(
        f"- config_name: {name}\n  data_files:\n  - split: validation\n    path: {name}/validation.jsonl\n"
        for name in configs
    )
    return f"---\nconfigs:\n{blocks}---\n"

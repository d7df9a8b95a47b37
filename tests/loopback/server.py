"""A W&B service on this machine, for the real client: it keeps what is sent and can be made to fail.

It answers what wandb 0.31 asks when a run is begun, resumed, logged to, alerted, finished and read back.
`python -m tests.loopback.server` prints the address of one that lives as long as its standard input. A line
there sets its health, or names a run by its id and is answered by the run's rows as a line of JSON.
"""

import gzip
import json
import re
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Literal, Self

KEY = "loopback" * 5  # an API key has 40 characters
ENTITY, PROJECT_ID = "me", "1"  # the client reads the project's id as an integer


@dataclass
class Run:
    """What the service holds of a run. Lines of history stand at the offset that they were sent for."""

    id: str
    project: str
    name: str | None = None
    group: str | None = None
    config: dict = field(default_factory=dict)
    summary: dict = field(default_factory=dict)
    lines: dict[int, dict] = field(default_factory=dict)
    state: str = "running"
    opened: int = 0  # how often a client began or resumed it

    @property
    def rows(self) -> list[dict]:
        """History in the order of lines, without what wandb adds (keys that begin with an underscore)."""
        return [
            {key: value for key, value in self.lines[at].items() if not key.startswith("_")}
            for at in sorted(self.lines)
        ]


class Loopback:
    """`health` may change at any time: "up", "dead" (closes every connection) or "stuck" (never answers)."""

    def __init__(self) -> None:
        self.health: Literal["up", "dead", "stuck"] = "up"
        self.runs: dict[str, Run] = {}
        self.alerts: list[dict] = []
        self.requests = 0  # that reached the service while it was up
        self.lock = threading.Lock()
        self._closing = threading.Event()
        self._server = _Server(("127.0.0.1", 0), _handler(self))
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    @property
    def environment(self) -> dict[str, str]:
        """What a client needs to come here."""
        return {"WANDB_BASE_URL": self.url, "WANDB_API_KEY": KEY}

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._closing.set()
        self._server.shutdown()
        self._server.server_close()

    def wait_while_stuck(self) -> None:
        while self.health == "stuck" and not self._closing.wait(0.05):
            pass

    def answer(self, path: str, body: bytes) -> dict:
        """The JSON answer to one request."""
        if path == "/graphql":
            asked = json.loads(body)
            named = re.search(r"(?:query|mutation)\s+(\w+)", asked["query"])
            respond = OPERATIONS.get(named[1] if named else "")
            if respond is None:
                return {"errors": [{"message": f"not known here: {asked['query'][:80]!r}"}]}
            return {"data": respond(self, asked.get("variables") or {})}
        if stream := re.fullmatch(r"/files/[^/]+/[^/]+/([^/]+)/file_stream", path):
            self._stream(self.runs[stream[1]], json.loads(body))
        return {}  # uploads and telemetry are swallowed

    def _stream(self, run: Run, sent: dict) -> None:
        files = sent.get("files") or {}
        if history := files.get("wandb-history.jsonl"):
            for at, line in enumerate(history["content"], history["offset"]):
                run.lines[at] = json.loads(line, parse_constant=str)  # NaN is text in the service's answers
        if summary := files.get("wandb-summary.json"):
            run.summary = json.loads(summary["content"][-1])
        if sent.get("complete"):
            run.state = "finished" if sent.get("exitcode") == 0 else "failed"


def _viewer(service: Loopback, asked: dict) -> dict:
    return {
        "viewer": {
            "id": "1",
            "entity": ENTITY,
            "username": ENTITY,
            "email": None,
            "flags": "{}",
            "teams": {"edges": []},
        }
    }


def _project(name: str, **more: object) -> dict:
    return {"id": PROJECT_ID, "name": name, "entity": {"id": "1", "name": ENTITY}, **more}


def _resume_status(service: Loopback, asked: dict) -> dict:
    run = service.runs.get(asked["name"])
    if run is None:
        return {"model": _project(asked["project"], bucket=None)}
    last = [run.lines[max(run.lines)]] if run.lines else []
    bucket = _bucket(run) | {
        "summaryMetrics": json.dumps(run.summary),
        "logLineCount": 0,
        "eventsLineCount": 0,
        "historyTail": json.dumps([json.dumps(line) for line in last]),
        "eventsTail": "[]",
        "tags": [],
        "notes": None,
        "wandbConfig": json.dumps({"t": 1}),  # without it the client takes the run for one that never began
    }
    return {"model": _project(asked["project"], bucket=bucket)}


def _bucket(run: Run) -> dict:
    return {
        "id": f"bucket-{run.id}",
        "name": run.id,
        "displayName": run.name,
        "description": None,
        "config": json.dumps(run.config),
        "sweepName": None,
        "historyLineCount": len(run.lines),
        "project": _project(run.project),
    }


def _upsert(service: Loopback, asked: dict) -> dict:
    new = asked["name"] not in service.runs
    run = service.runs.setdefault(asked["name"], Run(asked["name"], asked["project"]))
    run.name = asked["displayName"] or run.name
    run.group = asked["groupName"] or run.group
    run.config = json.loads(asked["config"]) if asked["config"] else run.config
    if asked["host"]:  # sent when a client begins the run, not when it updates it
        run.opened += 1
        run.state = "running"
    return {"upsertBucket": {"bucket": _bucket(run), "inserted": new}}


def _alert(service: Loopback, asked: dict) -> dict:
    service.alerts.append(asked)
    return {"notifyScriptableRunAlert": {"success": True}}


def _files(service: Loopback, asked: dict) -> dict:
    files = [{"name": name, "uploadUrl": f"{service.url}/upload/{name}"} for name in asked["files"]]
    return {"createRunFiles": {"runID": asked["run"], "uploadHeaders": [], "files": files}}


def _run(service: Loopback, asked: dict) -> dict:
    run = service.runs.get(asked["name"])
    if run is None:
        return {"project": {"run": None}}
    found = _bucket(run) | {
        "projectId": PROJECT_ID,
        "state": run.state,
        "group": run.group,
        "summaryMetrics": json.dumps(run.summary),
        "systemMetrics": "{}",
        "historyKeys": {"lastStep": max((line["_step"] for line in run.lines.values()), default=-1)},
        "user": {"name": ENTITY, "username": ENTITY},
        "tags": [],
    }
    return {"project": {"run": found}}


def _parquet(service: Loopback, asked: dict) -> dict:
    return {"project": {"run": {"parquetHistory": {"parquetUrls": [], "liveData": _lines(service, asked)}}}}


def _page(service: Loopback, asked: dict) -> dict:
    page = [
        json.dumps(line)
        for line in _lines(service, {"runName": asked["run"]})
        if asked["minStep"] <= line["_step"] < asked["maxStep"]
    ]
    return {"project": {"run": {"history": page}}}


def _sampled(service: Loopback, asked: dict) -> dict:
    spec = json.loads(asked["spec"])
    page = [
        {key: line[key] for key in spec["keys"]}
        for line in _lines(service, {"runName": asked["run"]})
        if spec["minStep"] <= line["_step"] <= spec["maxStep"] and set(spec["keys"]) <= set(line)
    ]
    return {"project": {"run": {"sampledHistory": [page]}}}


def _lines(service: Loopback, asked: dict) -> list[dict]:
    run = service.runs[asked["runName"]]
    return [run.lines[at] for at in sorted(run.lines)]


OPERATIONS: dict[str, Callable[[Loopback, dict], dict]] = {
    "Viewer": _viewer,
    "GetDefaultEntity": _viewer,
    "RunResumeStatus": _resume_status,
    "UpsertBucket": _upsert,
    "NotifyScriptableRunAlert": _alert,
    "CreateRunFiles": _files,
    "Run": _run,
    "RunHistoryKeys": _run,
    "RunParquetHistory": _parquet,
    "HistoryPage": _page,
    "SampledHistoryPage": _sampled,
}


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass  # a client that was killed is no news


def _handler(service: Loopback) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self._body()
            service.wait_while_stuck()
            if service.health != "up":
                self.close_connection = True
                return
            with service.lock:
                service.requests += 1
                content = json.dumps(service.answer(self.path, body)).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_PUT = do_POST
        do_GET = do_POST

        def _body(self) -> bytes:
            if self.headers.get("Transfer-Encoding") == "chunked":
                parts = []
                while size := int(self.rfile.readline(), 16):
                    parts.append(self.rfile.read(size))
                    self.rfile.readline()
                self.rfile.readline()
                body = b"".join(parts)
            else:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            return gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body

        def log_message(self, format: str, *args: object) -> None:
            pass

    return Handler


if __name__ == "__main__":
    with Loopback() as running:
        print(running.url, KEY, flush=True)
        for line in sys.stdin:
            command = line.strip()
            if command in ("up", "dead", "stuck"):
                running.health = command
            else:
                run = running.runs.get(command)
                print(json.dumps(run.rows if run else []), flush=True)

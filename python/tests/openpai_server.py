"""A scripted OpenPAI REST API v2, with the responses of the real rest-server, and local processes as jobs."""

import http.server
import json
import os
import signal
import subprocess
import threading
import urllib.parse

TOKEN = "a-secret"
USER = "me"

_TOP = {
    "protocolVersion",
    "name",
    "type",
    "jobRetryCount",
    "prerequisites",
    "parameters",
    "secrets",
    "taskRoles",
    "deployments",
    "defaults",
    "extras",
}


class Server(http.server.ThreadingHTTPServer):
    """The server. A job runs immediately, unless its virtual cluster is full."""

    daemon_threads = True

    def __init__(self, root="/rest-server", variables=None):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.root = root
        self.variables = variables or {}
        self.jobs = {}
        self.lock = threading.Lock()
        self.full = False
        #: The unused resources of the virtual cluster `default`.
        self.unused = {"cpu": 4, "memory": 4096, "gpu": 2}
        self.token = TOKEN
        #: Responses that replace the next ones: (status, body), by method and path without the root.
        self.next = {}
        self.requests = []
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def host(self):
        return f"http://127.0.0.1:{self.server_port}"

    def settings(self, local, inside):
        return {
            "host": self.host,
            "username": USER,
            "token": TOKEN,
            "dockerImage": "python:3.12",
            "trialCpuNumber": 1,
            "trialMemorySize": 2048,
            "storageConfigName": "nfs",
            "localStorageMountPoint": str(local),
            "containerStorageMountPoint": str(inside),
        }

    def submit(self, job):
        problem = _problem(job)
        if problem:
            return 400, {"code": "InvalidProtocolError", "message": problem}
        if job.get("defaults", {}).get("virtualCluster", "default") not in ("default", "gpu"):
            return 403, {
                "code": "ForbiddenUserError",
                "message": f"User {USER} is not allowed to do operation in vc",
            }
        if any(one["name"] != "nfs" for one in job["extras"]["storages"]):
            return 404, {"code": "NoStorageError", "message": "Storage is not found."}
        with self.lock:
            if job["name"] in self.jobs:
                message = f"Job {USER}~{job['name']} already exists."
                return 409, {"code": "ConflictJobError", "message": message}
            self.jobs[job["name"]] = {"job": job, "process": None, "stopped": False}
        if not self.full:
            self.run(job["name"])
        return 202, {"status": 202, "message": f"update job {USER}~{job['name']} successfully"}

    def run(self, name):
        job = self.jobs[name]["job"]
        commands = "\n".join(next(iter(job["taskRoles"].values()))["commands"])
        environment = {**os.environ, "FC_FRAMEWORK_ATTEMPT_ID": "0", "FC_TASK_ATTEMPT_ID": "0", **self.variables}
        pipe = subprocess.DEVNULL
        # OpenPAI's runtime uses Bash.
        self.jobs[name]["process"] = subprocess.Popen(
            ["bash", "-c", commands],
            stdin=pipe,
            stdout=pipe,
            stderr=pipe,
            start_new_session=True,
            env=environment,
        )

    def stop(self, name):
        job = self.jobs[name]
        if self.state(name)["state"] in ("SUCCEEDED", "FAILED"):
            return 500, {"code": "UnknownError", "message": "Unexpected end of JSON input"}
        job["stopped"] = True
        if job["process"] is not None:
            # No SIGTERM: the runtime's shell waits for its child until the grace period ends.
            os.killpg(job["process"].pid, signal.SIGKILL)
            job["process"].wait()
        return 202, {"status": 202, "message": "execute job successfully"}

    def state(self, name):
        job = self.jobs[name]
        code = None if job["process"] is None else job["process"].poll()
        if job["stopped"]:
            return {"state": "STOPPED", "subState": "Completed", "appExitCode": -210}
        if job["process"] is None:
            return {"state": "WAITING", "subState": "AttemptCreationPending", "appExitCode": None}
        if code is None:
            return {"state": "RUNNING", "subState": "AttemptRunning", "appExitCode": None}
        code = code if code >= 0 else 128 - code
        state = "SUCCEEDED" if code == 0 else "FAILED"
        return {"state": state, "subState": "Completed", "appExitCode": code, "retries": 0}


def _problem(job):
    """Validates a job against the schema of protocol 2."""
    if set(job) - _TOP:
        return f"should NOT have additional properties: {sorted(set(job) - _TOP)}"
    if job.get("protocolVersion") != 2 or job.get("type") != "job" or not job.get("taskRoles"):
        return "should have required properties"
    images = {one["name"] for one in job["prerequisites"] if one["type"] == "dockerimage" and one["uri"]}
    for role in job["taskRoles"].values():
        sizes = role["resourcePerInstance"]
        if set(sizes) != {"cpu", "memoryMB", "gpu"} or not all(type(size) is int for size in sizes.values()):
            return "resourcePerInstance should be integers"
        if role["dockerImage"] not in images or not all(type(line) is str for line in role["commands"]):
            return "dockerImage or commands"
        if any("<%" in line for line in role["commands"]):
            return "an expression that cannot be filled in"
    return None


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def answer(self, body):
        server = self.server
        address = urllib.parse.urlsplit(self.path)
        query = urllib.parse.parse_qs(address.query)
        root = f"{server.root}/api/v2/"
        server.requests.append((self.command, self.path))
        if not address.path.startswith(root):
            return 404, {"code": "NoApiError", "message": "no such API"}
        path = address.path[len(root) :]
        scripted = server.next.get((self.command, path.split("/")[0]))
        if scripted:
            return scripted.pop(0)
        if path == "info":
            return 200, {"name": "PAI RESTful API", "version": "v1.8.0", "launcherType": "k8s"}
        if self.headers["Authorization"] != f"Bearer {server.token}":
            return 401, {"code": "UnauthorizedUserError", "message": "Your token is invalid."}
        if path == "virtual-clusters":
            used = {"cpu": 8, "memory": 1024, "gpu": 6}
            usable = {name: used[name] + unused for name, unused in server.unused.items()}
            total = {name: amount + 100 for name, amount in usable.items()}
            default = {"resourcesUsed": used, "resourcesGuaranteed": usable, "resourcesTotal": total}
            return 200, {"default": default, "gpu": {"resourcesUsed": used, "resourcesTotal": used}}
        if path == "storages":
            return 200, {"storages": [{"name": "nfs", "share": True}]}
        if path == "jobs" and self.command == "POST":
            assert self.headers["Content-Type"] == "text/yaml"
            return server.submit(json.loads(body))
        if path == "jobs":
            keyword = query["keyword"][0]
            jobs = [name for name in server.jobs if keyword in name]
            return 200, [{"name": name, "username": USER, **server.state(name)} for name in jobs]
        parts = urllib.parse.unquote(path).split("/")
        user, name = parts[1].split("~", 1)
        if user != USER or name not in server.jobs:
            return 404, {"code": "NoJobError", "message": f"Job {parts[1]} is not found."}
        if parts[2:] == ["executionType"]:
            assert json.loads(body) == {"value": "STOP"}
            return server.stop(name)
        return 200, {"name": name, "jobStatus": server.state(name)}

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        status, answer = self.answer(body)
        if status is None:
            # The connection breaks, and the response is lost.
            self.close_connection = True
            return
        headers = answer.pop("headers", {}) if isinstance(answer, dict) else {}
        text = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    do_GET = do_PUT = do_POST  # noqa: N815
